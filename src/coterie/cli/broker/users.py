"""`coterie broker user`: the users that may log in to an embedded broker. A running broker applies changes at once."""

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.folders import parse_folder_unless_blank
from coterie.cli.passwords import check_user_name, read_or_prompt_new_password
from coterie.nouns.errors import WorldError

users_app = typer.Typer(
    no_args_is_help=True,
    help="Add, remove and list the users that may log in to a broker; a running broker applies changes at once.",
)

DataFolder = Annotated[
    Path,
    typer.Argument(
        metavar="DATA", parser=parse_folder_unless_blank, help="The broker's folder, as in --data.", show_default=False
    ),
]
UserName = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.", show_default=False)]


@users_app.command("add")
def add_or_change_user(data: DataFolder, name: UserName) -> None:
    """Add a user, or change a user's password. The password is prompted for, or read as one line of standard input.

    The broker stores salted keys for PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512, in a file that only its owner may read.
    """
    from coterie.broker.security.users import BrokerUsersFile
    from coterie.broker.settings import BrokerSettings

    check_user_name(name)
    is_new_folder = not _check_folder_and_return_exists(data)
    is_new = BrokerUsersFile(BrokerSettings(data_path=data).users_path).add(name, read_or_prompt_new_password(name))
    if is_new_folder:
        typer.echo(f"Created the folder {data.absolute()}.", err=True)
    typer.echo(f"Added user {name}." if is_new else f"Changed the password of user {name}.")


@users_app.command("remove")
def remove_user(data: DataFolder, name: UserName) -> None:
    """Remove a user, who can then no longer log in. The user's open connections stay open."""
    from coterie.broker.security.users import BrokerUsersFile
    from coterie.broker.settings import BrokerSettings

    _check_broker_folder_exists(data)
    if not BrokerUsersFile(BrokerSettings(data_path=data).users_path).remove(name):
        raise WorldError(f"there is no user {name} in {data}; `coterie broker user list {data}` lists the users")
    typer.echo(f"Removed user {name}.")


@users_app.command("list")
def list_users(data: DataFolder) -> None:
    """Show the names of all users."""
    from coterie.broker.security.users import BrokerUsersFile
    from coterie.broker.settings import BrokerSettings

    _check_broker_folder_exists(data)
    for name in BrokerUsersFile(BrokerSettings(data_path=data).users_path).read_names():
        typer.echo(name)


def _check_broker_folder_exists(data: Path) -> None:
    """Check that the folder ``data`` exists, and is a broker's folder or empty.

    :raises WorldError: when there is no such folder, it cannot be read, or it contains files but none of a broker.
    """
    if not _check_folder_and_return_exists(data):
        raise WorldError(f"there is no folder {data.absolute()}; use the folder that the broker has as --data")


def _check_folder_and_return_exists(data: Path) -> bool:
    """Check the folder ``data``, if it exists: it must be a broker's folder or empty. Returns whether it exists.

    :raises WorldError: when the folder cannot be read, or contains files but none of a broker. So a mistyped name does
        not put a file of users into a folder of other files.
    """
    from coterie.broker.settings import BrokerSettings

    settings = BrokerSettings(data_path=data)
    broker_file_names = (settings.log_path.name, settings.lock_path.name, settings.users_path.name)
    try:
        file_names = [path.name for path in data.iterdir()]
    except FileNotFoundError:
        return False
    except OSError as error:
        raise WorldError(f"the folder {data.absolute()} cannot be used: {error.strerror}") from error
    # `startswith` also accepts renamed files such as users.json.broken.
    if file_names and not any(name.startswith(broker_file_names) for name in file_names):
        raise WorldError(f"{data.absolute()} is not a broker's folder; use the folder that the broker has as --data")
    return True
