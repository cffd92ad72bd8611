"""The command line of a new user: help, errors, exit codes. Each run is a separate process."""

import subprocess
import sys
from pathlib import Path

import pytest

from coterie import __version__
from tests.cli.command import coterie


@pytest.mark.parametrize(
    ("command", "mentions"),
    [
        ([], ["up", "demo", "broker", "worker", "connectors", "group", "groups", "jars", "workers"]),
        (["up"], ["--workers", "--data", "--broker-port", "--rest-port", "--group-protocol", "Ctrl-C"]),
        ([], ["--version", "Fleets of PySpark"]),
        (["demo"], ["--data", "--broker-port", "--rest-port", "--group-protocol", "classic|connect", "killed"]),
        (["broker"], ["--listen", "HOST:PORT", "--advertise", "--data", "--connections-max", "Kafka"]),
        (["worker"], ["--config", "-c", "FILE", "SIGTERM", "drain"]),
        (["worker", "drain"], ["ID", "--url", "--uncordon", "static"]),
        (["workers", "restart"], ["--rolling", "--url", "--timeout", "SECONDS", "[ID]...", "session.timeout.ms"]),
        (["group"], ["--url", "--json"]),
        (["groups"], ["list", "describe", "config", "remove-member"]),
        (["groups", "list"], ["--bootstrap-servers", "--command-config", "--json"]),
        (["groups", "describe"], ["GROUP", "--bootstrap-servers", "--command-config", "--json"]),
        (["groups", "config"], ["GROUP", "--set", "KEY=VALUE", "--delete", "--bootstrap-servers", "--json"]),
        (["groups", "remove-member"], ["GROUP", "MEMBER", "--bootstrap-servers", "--command-config"]),
        (["jars"], ["fetch", "list", "Kafka", "Delta"]),
        (["jars", "fetch"], ["[NAME]...", "--to", "FOLDER", "--mirror", "URL", "SHA-256"]),
        (["jars", "list"], ["--in", "FOLDER"]),
        (["connectors"], ["list", "create", "status", "pause", "resume", "delete"]),
        (["connectors", "list"], ["--url"]),
        (["connectors", "create"], ["--url", "FILE", "JSON"]),
        (["connectors", "status"], ["--url", "NAME"]),
        (["connectors", "pause"], ["--url", "NAME"]),
        (["connectors", "resume"], ["--url", "NAME"]),
        (["connectors", "delete"], ["--url", "NAME"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_help_lists_every_option(command: list[str], mentions: list[str]) -> None:
    output = coterie(*command, "--help").stdout
    assert [word for word in mentions if word not in output] == []


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (["worker"], "Missing option '--config' / '-c'"),
        (["worker", "-c", "FILE", "drain", "worker-2"], "--config is only for running a worker"),
        (["workers", "restart"], "Use --rolling"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_command_without_a_required_option_prints_which_one(command: list[str], error: str) -> None:
    assert error in " ".join(coterie(*command, check=2).stderr.replace("│", "").split())


def test_the_version_is_one_line() -> None:
    assert coterie("--version").stdout == f"coterie {__version__}\n"


def test_help_imports_no_large_packages() -> None:
    program = (
        "import sys; from coterie.cli import app, connectors; "
        "print([name for name in ('pyspark', 'confluent_kafka', 'pyarrow', 'uvicorn') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60).strip() == "[]"


def test_an_invalid_worker_file_prints_one_line_for_each_invalid_key(tmp_path: Path) -> None:
    file = tmp_path / "worker.properties"
    file.write_text("group.id=g\nconfig.storage.topic=c\noffset.storage.topic=o\nconnect.protocol=fast\n")
    run = coterie("worker", "-c", str(file), check=1)
    assert run.stdout == ""
    lines = run.stderr.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"coterie: {file}: ") for line in lines)
    assert [
        key for key in ("status.storage.topic", "checkpoint.location", "connect.protocol") if key in run.stderr
    ] == [
        "status.storage.topic",
        "checkpoint.location",
        "connect.protocol",
    ]


def test_a_worker_file_that_cannot_be_parsed_is_reported_with_the_line_number(tmp_path: Path) -> None:
    file = tmp_path / "worker.properties"
    file.write_text("group.id=g\nworker.name=\\u12\n")
    run = coterie("worker", "-c", str(file), check=1)
    assert run.stderr.startswith(f"coterie: {file}, line 2: ")


def test_a_missing_worker_file_prints_one_line(tmp_path: Path) -> None:
    run = coterie("worker", "-c", str(tmp_path / "none"), check=1)
    assert run.stderr == f"coterie: {tmp_path / 'none'} cannot be read: No such file or directory\n"


@pytest.mark.parametrize("listen", ["9092", "host:", "host:port"])
def test_an_invalid_listen_address_prints_one_line(listen: str, tmp_path: Path) -> None:
    run = coterie("broker", "--listen", listen, "--data", str(tmp_path), check=1)
    assert run.stderr == f"coterie: --listen {listen} is not HOST:PORT\n"


def test_without_a_worker_the_connectors_command_prints_what_to_do() -> None:
    run = coterie("connectors", "list", "--url", "http://127.0.0.1:1", check=1)
    assert "No worker responds at http://127.0.0.1:1" in run.stderr
    assert "coterie up" in run.stderr
    assert run.stderr.count("\n") == 1


def test_a_connector_file_that_is_not_json_prints_one_line(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text("{name")
    run = coterie("connectors", "create", str(file), check=1)
    assert run.stderr.startswith(f"coterie: {file} is not valid JSON: ")
    assert run.stderr.count("\n") == 1


def test_a_connector_file_that_is_not_utf_8_prints_one_line(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_bytes('{"name": "größe"}'.encode("latin-1"))
    run = coterie("connectors", "create", str(file), check=1)
    assert run.stderr == (
        f"coterie: {file} is not UTF-8: invalid start byte at byte 12; convert it to UTF-8, for example with iconv\n"
    )


def test_standard_input_that_is_not_utf_8_prints_one_line() -> None:
    command = [sys.executable, "-m", "coterie", "connectors", "create", "-"]
    run = subprocess.run(command, input=b'{"name": "\xff"}', capture_output=True, timeout=60, check=False)
    assert run.returncode == 1
    assert run.stderr.startswith(b"coterie: Standard input is not UTF-8: ")
    assert run.stderr.count(b"\n") == 1


def test_an_interrupt_during_the_imports_prints_no_traceback() -> None:
    program = """
import sys
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from coterie.__main__ import main
main()
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stderr) == (130, "")
