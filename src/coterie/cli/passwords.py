"""Names and passwords of users, for the commands that add users."""

import sys

import typer

from coterie.nouns.errors import WorldError


def check_user_name(name: str) -> None:
    """Check that ``name`` is printable and not blank, as the name of a user must be.

    :raises WorldError: when ``name`` is blank or not printable.
    """
    if not name.isprintable() or not name.strip():
        raise WorldError(f"{name!r} is not a valid user name: it must be printable and not blank")


def read_or_prompt_new_password(name: str) -> str:
    """Return the password of user ``name``, from a prompt on a terminal, else from one line of standard input.

    A password is never an option, because every process on the machine can read command lines.

    :raises WorldError: when standard input has no password, or one that is not UTF-8.
    """
    if sys.stdin.isatty():
        return str(typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True))
    try:
        # UTF-8 in every locale, because clients send UTF-8 (RFC 4616, RFC 5802).
        password = sys.stdin.buffer.readline().decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise WorldError("the password at standard input is not UTF-8; clients could not send it") from error
    if not password:
        raise WorldError("standard input contains no password: write it there as one line")
    return password
