"""Runs in each kernel that the lab starts (PYTHONSTARTUP): `%%ranks` in a cell before `%load_ext course_utils` says
what is missing."""

try:
    __import__("course_utils.cells.magic_names", fromlist=["watch"]).watch(globals()["get_ipython"]())
except (ImportError, KeyError):  # another environment's kernel, or Python itself in a terminal
    pass
