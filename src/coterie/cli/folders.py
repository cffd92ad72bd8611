"""How a command takes a folder."""

from pathlib import Path

import typer


def folder(text: str) -> Path:
    """An empty word, as of a variable that is not set, would mean the folder where one stands.

    :raises typer.BadParameter: for that.
    """
    if not str(text).strip():
        raise typer.BadParameter("an empty word names no folder; for the one where you are write .")
    return Path(text)
