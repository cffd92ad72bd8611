"""Options that commands in several modules use."""

import functools
import inspect
import os
import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from coterie.nouns.errors import WorldError

UrlOption = Annotated[str, typer.Option("--url", help="REST address of any worker of the group.")]
DEFAULT_URL = "http://127.0.0.1:8083"
CommandT = TypeVar("CommandT", bound=Callable[..., Any])

_UserOption = Annotated[
    str | None,
    typer.Option(
        "--user",
        metavar="NAME",
        envvar="COTERIE_USER",
        help="Log in as this user; the password is read from COTERIE_PASSWORD, else prompted for.",
        show_default=False,
    ),
]
_CaOption = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        metavar="FILE",
        envvar="COTERIE_CA",
        help="PEM file with the CA certificates to trust, for https; by default those of the system.",
        show_default=False,
        exists=True,
        dir_okay=False,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestLogin:
    """How the running command logs in to workers."""

    user: str | None = None
    """The user's name; None: no log-in."""
    password: str = field(default="", repr=False)
    """The password of ``user``; without a user empty."""
    ca_file: Path | None = None
    """The file with the trusted CA certificates; None: those of the system."""


_login: ContextVar[RestLogin] = ContextVar("rest_login", default=RestLogin())  # noqa: B039 - it is immutable


def current_rest_login() -> RestLogin:
    """How the running command logs in to workers: the options of :func:`with_login_options`."""
    return _login.get()


def with_login_options(command: CommandT) -> CommandT:
    """Decorator of a command that sends requests to workers: adds the options ``--user`` and ``--ca``, which
    :func:`current_rest_login` returns while the command runs."""

    @functools.wraps(command)
    def command_with_login(*arguments: Any, user: str | None = None, ca: Path | None = None, **options: Any) -> Any:
        password = _password_from_environment_or_prompt(user) if user is not None else ""
        token = _login.set(RestLogin(user=user, password=password, ca_file=ca))
        try:
            return command(*arguments, **options)
        finally:
            _login.reset(token)

    signature = inspect.signature(command, eval_str=True)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in (("user", _UserOption), ("ca", _CaOption))
    ]
    parameters = [*signature.parameters.values(), *added]
    command_with_login.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command_with_login.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command_with_login  # type: ignore[return-value]


def _password_from_environment_or_prompt(user: str) -> str:
    """The password of ``user``, from the environment, else from a prompt. A password is never an option, because every
    process on the machine can read command lines.

    :raises WorldError: when the environment has no password, and there is no terminal for the prompt.
    """
    if (password := os.environ.get("COTERIE_PASSWORD")) is not None:
        return password
    if not (sys.stdin.isatty() or _has_controlling_terminal()):
        raise WorldError(
            f"--user {user} needs a password, and there is no terminal to prompt for the password: set "
            "COTERIE_PASSWORD in the environment of the command"
        )
    return str(typer.prompt(f"Password of {user}", hide_input=True, err=True))


def _has_controlling_terminal() -> bool:
    """Whether this process has a terminal: a prompt for a password then uses the terminal, also if standard input is a
    file or a pipe."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
