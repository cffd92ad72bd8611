"""`coterie rest user`: the users of workers' REST APIs, in the file that workers have as rest.users.file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.passwords import check_user_name, read_or_prompt_new_password
from coterie.nouns.errors import WorldError

if TYPE_CHECKING:
    from coterie.rest.users import Users

rest_app = typer.Typer(no_args_is_help=True, help="Manage the access to workers' REST APIs.")
users_app = typer.Typer(
    no_args_is_help=True,
    help="Add, remove and list the users in the file that workers have as rest.users.file. Workers read the file again "
    "when it changes.",
)
rest_app.add_typer(users_app, name="user")

UsersFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="The users file, as in rest.users.file.", show_default=False)
]
UserName = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.", show_default=False)]


@users_app.command("add")
def add_or_change_user(
    file: UsersFile,
    name: UserName,
    role: Annotated[
        str,
        typer.Option(
            "--role",
            metavar="ROLE",
            help="read (see everything but secrets), operate (also pause, resume, stop and restart), or admin (also "
            "change connectors and workers).",
            show_default=False,
        ),
    ],
    certificate: Annotated[
        bool,
        typer.Option(
            "--certificate",
            help="The user has no password, but a client certificate with NAME as its subject, such as CN=loader,O=Co.",
        ),
    ] = False,
) -> None:
    """Add a user, or change a user's role and password.

    The password is prompted for, or read as one line of standard input. The file contains a salted hash of the
    password, and only its owner may read the file.
    """
    from coterie.rest.endpoints import USER_ROLES, Role
    from coterie.rest.users import PasswordHash, RestUser, locked_users_file, write_users

    check_user_name(name)
    if role not in USER_ROLES:
        raise typer.BadParameter(f"{role} is not a role; the roles are {', '.join(USER_ROLES)}", param_hint="--role")
    if ":" in name and not certificate:
        raise WorldError(f"{name!r} is not a valid user name: Basic authentication allows no colon in a user's name")
    if file.exists():
        _users_in(file)  # Before the prompt: a file that cannot be read is reported at once.
    password = None if certificate else PasswordHash.from_password(read_or_prompt_new_password(name))
    with locked_users_file(file):
        users = _users_in(file) if file.exists() else {}
        write_users(file, {**users, name: RestUser(role=Role(role), password_hash=password)})
    typer.echo(f"{'Changed' if name in users else 'Added'} user {name} with the role {role}.")


@users_app.command("remove")
def remove_user(file: UsersFile, name: UserName) -> None:
    """Remove a user. Running workers refuse the user's requests once they have read the file again, within seconds."""
    from coterie.rest.users import locked_users_file, write_users

    with locked_users_file(file):
        users = _users_in(file)
        if name not in users:
            raise WorldError(f"there is no user {name} in {file}; `coterie rest user list {file}` lists the users")
        write_users(file, {other: user for other, user in users.items() if other != name})
    typer.echo(f"Removed user {name}.")


@users_app.command("list")
def list_users(file: UsersFile) -> None:
    """Show the names and roles of all users."""
    for name, user in _users_in(file).items():
        typer.echo(f"{name}  {user.role}" if user.password_hash is not None else f"{name}  {user.role}  by certificate")


def _users_in(file: Path) -> "Users":
    """The users in ``file``, by name.

    :raises WorldError: when the file cannot be read or is not a users file.
    """
    from coterie.rest.users import read_users

    return read_users(file)
