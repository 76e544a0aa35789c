"""`python -m course_utils.lab [FOLDER]`: see `start`."""

from .start import main

main()
