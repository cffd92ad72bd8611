"""Options that commands in several modules use."""

from typing import Annotated

import typer

UrlOption = Annotated[str, typer.Option("--url", help="REST address of any worker of the group.")]
DEFAULT_URL = "http://127.0.0.1:8083"
