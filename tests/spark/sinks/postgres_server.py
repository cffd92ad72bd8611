"""A real PostgreSQL server for tests: installed on this machine, run with a new data folder and port."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
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
    """A server whose user :data:`USER` has all rights and authenticates with a password."""

    folder: Path
    port: int

    def start(self) -> None:
        settings = f"-h 127.0.0.1 -p {self.port} -k {self.folder} -c fsync=off -c max_connections=50"
        self._control("start", "-l", str(self.folder / "log"), "-o", settings)

    def stop(self) -> None:
        """End the server at once; it recovers at its next start."""
        self._control("stop", "-m", "immediate")

    def _control(self, *words: str) -> None:
        run_as_owner(self.folder, program("pg_ctl"), "-w", "-D", str(self.folder / "data"), *words)

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self._dsn, autocommit=True)

    @property
    def _dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} dbname=postgres user={USER} password={PASSWORD}"

    @property
    def keys(self) -> dict[str, str]:
        """The keys of a config for this server."""
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
    """The path of one of the server's programs; Debian does not put them on PATH."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -int(path.parent.name.split(".")[0]))
    found = shutil.which(name, path=os.pathsep.join([*map(str, places), os.environ.get("PATH", "")]))
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail(HOW_TO_GET)
        pytest.skip(HOW_TO_GET)
    return found


@contextmanager
def running_server() -> Iterator[PostgresServer]:
    """A server that runs until the end of the block."""
    initdb = program("initdb")
    # Not in pytest's folder, which only this user may access.
    folder = Path(tempfile.mkdtemp(prefix="coterie-postgres-"))
    try:
        passwords = folder / "password"
        passwords.write_text(PASSWORD)
        if is_root():
            for path in (folder, passwords):
                shutil.chown(path, "postgres", "postgres")
        how = ["-U", USER, "-A", "scram-sha-256", f"--pwfile={passwords}", "-E", "UTF8", "--no-sync"]
        run_as_owner(folder, initdb, "-D", str(folder / "data"), *how)
        server = PostgresServer(folder=folder, port=free_port())
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_root() -> bool:
    return os.geteuid() == 0


def run_as_owner(folder: Path, *command: str) -> None:
    """Run a command, as the user postgres if this user is root: the server refuses to run as root."""
    user = "postgres" if is_root() else None
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, cwd=folder, timeout=60, user=user, group=user, extra_groups=None
    )
