"""The parser of folder options."""

from pathlib import Path

import typer


def folder(text: str) -> Path:
    """Parse the name of a folder.

    :raises typer.BadParameter: when it is empty, as of an unset shell variable: it would mean the current folder.
    """
    if not str(text).strip():
        raise typer.BadParameter("the folder name is empty; use . for the current folder")
    return Path(text)
