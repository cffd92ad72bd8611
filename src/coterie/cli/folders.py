"""The parser of folder options."""

from pathlib import Path

import typer


def parse_folder_unless_blank(text: str) -> Path:
    """Return the path of the folder named ``text``, unchanged: ``~`` is not expanded. The folder need not exist.

    :raises typer.BadParameter: when ``text`` is empty or blank, for example from an unset shell variable: an empty path
        would mean the current folder.
    """
    if not str(text).strip():
        raise typer.BadParameter("the folder name is empty; use . for the current folder")
    return Path(text)
