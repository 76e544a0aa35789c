"""Sphinx's settings for the site. `build.py` writes the pages, and hands over the rest in COURSE_SITE (JSON)."""

from __future__ import annotations

import json
import os

told = json.loads(os.environ["COURSE_SITE"])
project = html_title = html_short_title = "PyTorch on many devices"
author = "the course's authors"
language = "en"
extensions = ["myst_nb", "sphinx_copybutton"]
nb_execution_mode = "off"  # the course executes its notebooks itself: ranks, GPUs, time limits
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # nothing from a CDN: explorers.js moves the explorers
nb_merge_streams = True
nb_mime_priority_overrides = [("html", "text/html", 0), ("html", "text/markdown", 1), ("html", "image/png", 2)]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
myst_heading_slug_func = "anchors.slug"
suppress_warnings = ["myst.header", "mystnb.unknown_mime_type", *told["suppress"]]
html_theme = "furo"
html_theme_options = {
    "source_repository": told["repository"], "source_branch": "main", "source_directory": "notebooks/",
    "light_css_variables": {"color-brand-primary": "#005A8C", "color-brand-content": "#005A8C"},
    "dark_css_variables": {"color-brand-primary": "#8CC8F0", "color-brand-content": "#8CC8F0"},
    "top_of_page_buttons": [],
}  # fmt: skip
html_static_path = told["static"]
html_extra_path = told["extra"]
html_favicon = "favicon.svg"
html_css_files = ["course.css", *(["moves.css"] if told["explorers"] else [])]
html_js_files = [("explorers.js", {"defer": "defer", "data-size": told["explorers"]})] if told["explorers"] else []
html_show_sphinx = html_show_copyright = html_show_sourcelink = html_copy_source = False
html_use_index = False
html_last_updated_fmt = None
copybutton_exclude = ".linenos, .gp, .go"
