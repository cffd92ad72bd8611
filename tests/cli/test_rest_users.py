"""`coterie rest user`, and the log-in of commands that send requests to workers; each run is a separate process."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from coterie.cli import rest_users
from coterie.rest.endpoints import Role
from coterie.rest.users import read_users
from tests.certificates import Authority, Pair
from tests.cli.answers import use_certificate


def run(
    *arguments: str, stdin: str = "", environment: Mapping[str, str] | None = None, check: int = 0
) -> "subprocess.CompletedProcess[str]":
    completed = subprocess.run(
        [sys.executable, "-m", "coterie", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", **(environment or {})},
    )
    assert completed.returncode == check, completed.stderr
    return completed


def test_a_user_is_added_listed_changed_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    file = str(path)
    assert run("rest", "user", "add", file, "alice", "--role", "read", stdin="first\n").stdout == (
        "Added user alice with the role read.\n"
    )
    changed = run("rest", "user", "add", file, "alice", "--role", "admin", stdin="second\n")
    assert changed.stdout == "Changed user alice with the role admin.\n"
    run("rest", "user", "add", file, "CN=loader,O=Co", "--role", "operate", "--certificate")
    assert run("rest", "user", "list", file).stdout == "CN=loader,O=Co  operate  by certificate\nalice  admin\n"
    alice = read_users(path)["alice"]
    assert alice.role is Role.ADMIN
    assert alice.password_hash is not None
    assert alice.password_hash.matches_password("second")
    assert run("rest", "user", "remove", file, "alice").stdout == "Removed user alice.\n"
    assert list(read_users(path)) == ["CN=loader,O=Co"]


def test_a_user_that_is_removed_while_the_password_of_another_is_typed_stays_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "users.json"
    run("rest", "user", "add", str(file), "alice", "--role", "read", stdin="first\n")

    def remove_alice_and_return_password(_: str) -> str:
        rest_users.remove_user(file, "alice")
        return "second"

    monkeypatch.setattr(rest_users, "read_or_prompt_new_password", remove_alice_and_return_password)
    rest_users.add_or_change_user(file, "bob", role="read", certificate=False)
    assert list(read_users(file)) == ["bob"]


def test_users_that_are_added_at_the_same_time_are_all_there(tmp_path: Path) -> None:
    file, names = str(tmp_path / "users.json"), [f"u{number}" for number in range(6)]
    with ThreadPoolExecutor(len(names)) as threads:
        list(threads.map(lambda name: run("rest", "user", "add", file, name, "--role", "read", stdin="p\n"), names))
    assert sorted(read_users(Path(file))) == names


@pytest.mark.parametrize(
    ("arguments", "stdin", "error", "code"),
    [
        (["add", "FILE", "a:b", "--role", "read"], "p\n", "allows no colon in a user's name", 1),
        (["add", "FILE", "a", "--role", "read"], "\n", "standard input contains no password", 1),
        (["add", "FILE", "a", "--role", "owner"], "p\n", "the roles are read, operate, admin", 2),
        (["remove", "FILE", "carol"], "", "users.json cannot be read", 1),
    ],
)
def test_an_invalid_request_prints_the_reason(
    tmp_path: Path, arguments: list[str], stdin: str, error: str, code: int
) -> None:
    words = [str(tmp_path / "users.json") if word == "FILE" else word for word in arguments]
    assert error in run("rest", "user", *words, stdin=stdin, check=code).stderr
    assert not list(tmp_path.iterdir())


@contextmanager
def worker_that_keeps_logins(pair: Pair | None = None) -> Iterator[tuple[str, list[str | None]]]:
    """The URL of a server that responds with no connectors to alice and with 401 to others, and the headers
    ``Authorization`` that it receives. With the certificate ``pair``, it serves https."""
    received: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append(self.headers["Authorization"])
            is_alice = received[-1] == "Basic YWxpY2U6cHc="
            body = b"{}" if is_alice else b"User cannot access the resource."
            self.send_response(200 if is_alice else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if pair is not None:
            use_certificate(server, pair)
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"{'http' if pair is None else 'https'}://127.0.0.1:{server.server_address[1]}", received
        finally:
            server.shutdown()
            thread.join()


def test_commands_log_in_with_options_or_the_environment() -> None:
    with worker_that_keeps_logins() as (url, received):
        password = {"COTERIE_PASSWORD": "pw"}
        run("connectors", "list", "--url", url, "--user", "alice", environment=password)
        run("connectors", "list", "--url", url, environment={**password, "COTERIE_USER": "alice"})
        assert set(received) == {"Basic YWxpY2U6cHc="}
        refused = run("connectors", "list", "--url", url, check=1)
        assert "The worker needs a log-in: use --user NAME with the right password (HTTP 401" in refused.stderr
        assert received[-1] is None


def test_without_a_terminal_a_command_needs_the_password_in_the_environment() -> None:
    for name in ("plan", "group"):
        refused = subprocess.run(
            [sys.executable, "-m", "coterie", name, "--user", "alice"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            start_new_session=True,  # The test may have a terminal.
            env={key: value for key, value in os.environ.items() if key != "COTERIE_PASSWORD"},
        )
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr == (
            "coterie: --user alice needs a password, and there is no terminal to prompt for the password: set "
            "COTERIE_PASSWORD in the environment of the command\n"
        )


def test_commands_trust_the_authorities_in_the_file_that_an_option_or_the_environment_names(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path / "own"), Authority(tmp_path / "stranger", "stranger")
    login = ("--user", "alice")
    environment = {"COTERIE_PASSWORD": "pw"}
    with worker_that_keeps_logins(authority.pair("worker")) as (url, received):
        command = ("connectors", "list", "--url", url, *login)
        run(*command, "--ca", str(authority.certificate), environment=environment)
        run(*command, environment={**environment, "COTERIE_CA": str(authority.certificate)})
        accepted = len(received)
        refused = run(*command, "--ca", str(stranger.certificate), environment=environment, check=1)
        assert "certificate verify failed" in refused.stderr
        missing = run(*command, "--ca", "none.pem", environment=environment, check=2)
        assert "does not exist" in missing.stderr
        assert len(received) == accepted > 0, "the password goes to no server that is not trusted"
