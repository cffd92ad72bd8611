"""Users of the broker, as an operator keeps them; each run is a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.broker.security.users import Users
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
    credential = Users(BrokerSettings(data_path=tmp_path / "broker").users_path).find("alice")["SCRAM-SHA-512"]
    assert credential.fits("SCRAM-SHA-512", "second")
    assert user("remove", data, "alice").stdout == "Removed user alice.\n"
    assert user("list", data).stdout == ""


@pytest.mark.parametrize(
    ("arguments", "stdin", "complaint"),
    [
        (["add", "DATA", "alice"], b"p\xe4ss \xff\n", "is not UTF-8"),
        (["add", "DATA", "alice"], "\n", "standard input contains no password"),
        (["add", "DATA", "a\tb"], "p\n", "is not a valid user name"),
        (["remove", "DATA", "nobody"], "", "there is no user nobody in"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path: Path, arguments: list[str], stdin: str | bytes, complaint: str) -> None:
    words = [str(tmp_path) if word == "DATA" else word for word in arguments]
    run = user(*words, stdin=stdin, check=1)
    assert complaint in run.stderr
    assert run.stderr.count("\n") == 1


def test_a_folder_that_was_mistyped_gets_no_users(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter").touch()
    for words in (["list"], ["remove", "alice"], ["add", "alice"]):
        complaint = user(words[0], str(tmp_path / "other"), *words[1:], stdin="p\n", check=1).stderr
        assert (
            complaint
            == f"coterie: {tmp_path}/other is not a broker's folder; use the folder that the broker has as --data\n"
        )
    for words in (["list"], ["remove", "alice"]):
        complaint = user(words[0], str(tmp_path / "nowhere"), *words[1:], check=1).stderr
        assert (
            complaint
            == f"coterie: there is no folder {tmp_path}/nowhere; use the folder that the broker has as --data\n"
        )
    assert user("add", str(tmp_path / "new"), "alice", stdin="p\n").stderr == f"Created the folder {tmp_path}/new.\n"
    assert user("add", str(tmp_path / "new"), "alice", stdin="p\n").stderr == ""


def test_a_broken_file_of_users_is_repaired_as_the_complaint_says(tmp_path: Path) -> None:
    path = BrokerSettings(data_path=tmp_path).users_path
    path.write_text("no users")
    assert "move it away" in user("add", str(tmp_path), "alice", stdin="p\n", check=1).stderr
    path.rename(path.with_name("users.json.broken"))
    assert user("add", str(tmp_path), "alice", stdin="p\n").stdout == "Added user alice.\n"


def test_a_wrong_security_protocol_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "coterie", "broker", "--data", str(tmp_path), "--security", "tls"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 1
    assert (
        run.stderr == "coterie: --security tls: unknown protocol; use one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL\n"
    )
