"""Headings' addresses, as JupyterLab makes them: links inside lessons work in both places."""


def slug(title: str) -> str:
    return title.strip().replace(" ", "-")
