"""`coterie broker user`; each run is a separate process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.broker.security.users import BrokerUsersFile
from coterie.broker.settings import BrokerSettings


def user(*arguments: str, stdin: str | bytes = "", check: int = 0) -> "subprocess.CompletedProcess[str]":
    run = subprocess.run(
        [sys.executable, "-m", "coterie", "broker", "user", *arguments],
        input=stdin.decode("utf-8", "surrogateescape") if isinstance(stdin, bytes) else stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="surrogateescape",
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"},
    )
    assert run.returncode == check, run.stderr
    return run


def test_a_user_is_added_listed_changed_and_removed(tmp_path: Path) -> None:
    data = str(tmp_path / "broker")
    assert user("add", data, "alice", stdin="first\n").stdout == "Added user alice.\n"
    assert user("add", data, "alice", stdin="second").stdout == "Changed the password of user alice.\n"
    assert user("list", data).stdout == "alice\n"
    credential = BrokerUsersFile(BrokerSettings(data_path=tmp_path / "broker").users_path).find_or_fake_credentials(
        "alice"
    )["SCRAM-SHA-512"]
    assert credential.matches_password("SCRAM-SHA-512", "second")
    assert user("remove", data, "alice").stdout == "Removed user alice.\n"
    assert user("list", data).stdout == ""


@pytest.mark.parametrize(
    ("arguments", "stdin", "error"),
    [
        (["add", "DATA", "alice"], b"p\xe4ss \xff\n", "is not UTF-8"),
        (["add", "DATA", "alice"], "\n", "standard input contains no password"),
        (["add", "DATA", "a\tb"], "p\n", "is not a valid user name"),
        (["remove", "DATA", "carol"], "", "there is no user carol in"),
    ],
)
def test_an_invalid_request_prints_one_line(
    tmp_path: Path, arguments: list[str], stdin: str | bytes, error: str
) -> None:
    words = [str(tmp_path) if word == "DATA" else word for word in arguments]
    run = user(*words, stdin=stdin, check=1)
    assert error in run.stderr
    assert run.stderr.count("\n") == 1


def test_no_user_is_added_to_a_folder_that_is_not_a_brokers(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter").touch()
    for words in (["list"], ["remove", "alice"], ["add", "alice"]):
        error = user(words[0], str(tmp_path / "other"), *words[1:], stdin="p\n", check=1).stderr
        assert (
            error
            == f"coterie: {tmp_path}/other is not a broker's folder; use the folder that the broker has as --data\n"
        )
    for words in (["list"], ["remove", "alice"]):
        error = user(words[0], str(tmp_path / "nowhere"), *words[1:], check=1).stderr
        assert (
            error == f"coterie: there is no folder {tmp_path}/nowhere; use the folder that the broker has as --data\n"
        )
    assert user("add", str(tmp_path / "new"), "alice", stdin="p\n").stderr == f"Created the folder {tmp_path}/new.\n"
    assert user("add", str(tmp_path / "new"), "alice", stdin="p\n").stderr == ""


def test_a_broken_users_file_can_be_repaired_as_the_error_message_describes(tmp_path: Path) -> None:
    path = BrokerSettings(data_path=tmp_path).users_path
    path.write_text("no users")
    assert "move it away" in user("add", str(tmp_path), "alice", stdin="p\n", check=1).stderr
    path.rename(path.with_name("users.json.broken"))
    assert user("add", str(tmp_path), "alice", stdin="p\n").stdout == "Added user alice.\n"


def test_an_unknown_security_protocol_prints_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "coterie", "broker", "--data", str(tmp_path), "--security", "tls"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 1
    assert (
        run.stderr == "coterie: --security tls: unknown protocol; use one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL\n"
    )
