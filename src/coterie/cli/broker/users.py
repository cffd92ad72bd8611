"""`coterie broker user`: who may log in to an embedded broker; a running one takes the change at once."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.folders import folder
from coterie.nouns.errors import WorldError

users_app = typer.Typer(
    no_args_is_help=True,
    help="Add, remove and list the users who may log in to a broker; a running one takes the change at once.",
)

Data = Annotated[
    Path, typer.Argument(metavar="DATA", parser=folder, help="The broker's folder, as in --data.", show_default=False)
]
User = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.", show_default=False)]


@users_app.command("add")
def add_user(data: Data, name: User) -> None:
    """Add a user, or give one another password. It is asked for, or read as one line from standard input.

    What is kept are salted keys, good for PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512, in a file that only its owner may
    read.
    """
    from coterie.broker.security.users import Users
    from coterie.broker.settings import BrokerSettings

    if not name.isprintable() or not name.strip():
        raise WorldError(f"{name!r} is no name for a user: it must be printable")
    made = not _is_brokers(data)
    is_new = Users(BrokerSettings(data_path=data).users_path).add(name, _password(name))
    if made:
        typer.echo(f"The folder {data.absolute()} is new.", err=True)
    typer.echo(f"User {name} is added." if is_new else f"User {name} has another password.")


@users_app.command("remove")
def remove_user(data: Data, name: User) -> None:
    """Remove a user: it can log in no more. Connections that it has stay open."""
    from coterie.broker.security.users import Users
    from coterie.broker.settings import BrokerSettings

    _require_folder(data)
    if not Users(BrokerSettings(data_path=data).users_path).remove(name):
        raise WorldError(f"there is no user {name} in {data}")
    typer.echo(f"User {name} is removed.")


@users_app.command("list")
def list_users(data: Data) -> None:
    """Show the names of all users."""
    from coterie.broker.security.users import Users
    from coterie.broker.settings import BrokerSettings

    _require_folder(data)
    for name in Users(BrokerSettings(data_path=data).users_path).names():
        typer.echo(name)


def _require_folder(data: Path) -> None:
    """:raises WorldError: when there is no folder, or it is none of a broker."""
    if not _is_brokers(data):
        raise WorldError(f"there is no folder {data.absolute()}; name the one that --data names")


def _is_brokers(data: Path) -> bool:
    """Whether the folder is there.

    :raises WorldError: when it is somebody else's: a name that was mistyped may not get users.
    """
    from coterie.broker.settings import BrokerSettings

    settings = BrokerSettings(data_path=data)
    ours = (settings.log_path.name, settings.lock_path.name, settings.users_path.name)
    try:
        there = [path.name for path in data.iterdir()]
    except FileNotFoundError:
        return False
    except OSError as error:
        raise WorldError(f"the folder {data.absolute()} cannot be used: {error.strerror}") from error
    # Also what was set aside in it, as users.json.broken.
    if there and not any(name.startswith(ours) for name in there):
        raise WorldError(f"{data.absolute()} is not a broker's folder; name the one that --data names")
    return True


def _password(name: str) -> str:
    """Never of the command line: every process of the machine may read that."""
    if sys.stdin.isatty():
        return str(typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True))
    try:
        # Whatever the locale says: it is what clients send (RFC 4616, RFC 5802).
        password = sys.stdin.buffer.readline().decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise WorldError("the password at standard input is not UTF-8; clients could not send it") from error
    if not password:
        raise WorldError("there is no password at standard input: write it there as one line")
    return password
