"""A real PostgreSQL server for tests: found on this machine, with a data folder and a port of its own."""

import getpass
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from tests.ports import free_port

USER = "writer"
PASSWORD = "s3cret-of-the-tests"
HOW_TO_GET = "PostgreSQL's initdb is not on PATH nor in /usr/lib/postgresql (Debian: apt install postgresql)"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresServer:
    """A server that runs; its user :data:`USER` may do everything but is known by a password only."""

    port: int

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self._dsn, autocommit=True)

    @property
    def _dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} dbname=postgres user={USER} password={PASSWORD}"

    @property
    def keys(self) -> dict[str, str]:
        """The keys of a config that lead here."""
        return {
            "connection.url": f"jdbc:postgresql://127.0.0.1:{self.port}/postgres",
            "connection.user": USER,
            "connection.password": PASSWORD,
        }

    def rows(self, query: str) -> list[tuple[object, ...]]:
        with self.connect() as connection:
            return connection.execute(query.encode()).fetchall()

    def run(self, *statements: str) -> None:
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())


def program(name: str) -> str:
    """Where one of the server's programs is; Debian keeps them off PATH."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -int(path.parent.name.split(".")[0]))
    found = shutil.which(name, path=os.pathsep.join([*map(str, places), os.environ.get("PATH", "")]))
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail(HOW_TO_GET)
        pytest.skip(HOW_TO_GET)
    return found


@contextmanager
def running_server() -> Iterator[PostgresServer]:
    """A server until the end of the block. As root it runs as the user postgres: it refuses to run as root."""
    owner: Mapping[str, str] = {"user": "postgres", "group": "postgres"} if getpass.getuser() == "root" else {}
    initdb, pg_ctl = program("initdb"), program("pg_ctl")
    # Not in pytest's folder, into which only this user may look.
    folder = Path(tempfile.mkdtemp(prefix="coterie-postgres-"))
    try:
        passwords = folder / "password"
        passwords.write_text(PASSWORD)
        if owner:
            for path in (folder, passwords):
                shutil.chown(path, "postgres", "postgres")
        port = free_port()
        data, log = str(folder / "data"), str(folder / "log")

        def run(*command: str) -> None:
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder, timeout=60, **owner)  # type: ignore[call-overload]

        run(initdb, "-D", data, "-U", USER, "-A", "scram-sha-256", f"--pwfile={passwords}", "-E", "UTF8", "--no-sync")
        settings = f"-h 127.0.0.1 -p {port} -k {folder} -c fsync=off -c max_connections=50"
        run(pg_ctl, "start", "-w", "-D", data, "-l", log, "-o", settings)
        try:
            yield PostgresServer(port=port)
        finally:
            run(pg_ctl, "stop", "-w", "-D", data, "-m", "immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
