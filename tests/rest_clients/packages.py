"""Installs clients of Connect's REST API from package registries, once on each machine, into the user's cache folder.

Each client is installed into a separate environment, with the versions of its lock file, so its dependencies cannot
conflict with Coterie's.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.kafka.real_kafka import Modules, ProgramUnavailableError, java_path, resolve

FOLDER = Path(__file__).parent
JAVA_CLIENT: Modules = (("org.sourcelab", "kafka-connect-client", "4.0.5"),)
"""Its own POM names the versions of its dependencies."""
INSTALL_TIMEOUT_S = 600


def python_client(name: str) -> Path:
    """The ``bin`` folder of a virtual environment with the packages of ``<name>.txt``.

    :raises ProgramUnavailableError: when they cannot be installed.
    """
    requirements = FOLDER / f"{name}.txt"

    def install(folder: Path) -> None:
        _run(sys.executable, "-m", "venv", str(folder))
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
        _run(*pip, "install", "--no-deps", "-r", str(requirements))

    return _installed(name, requirements.read_bytes() + sys.version.encode(), install) / "bin"


def npm_client() -> Path:
    """The folder with the ``node_modules`` of ``npm/package-lock.json``.

    :raises ProgramUnavailableError: when there is no Node.js, or they cannot be installed.
    """
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise ProgramUnavailableError("There is no Node.js with npm on PATH (Debian: apt install nodejs npm)")

    def install(folder: Path) -> None:
        folder.mkdir()
        for file in ("package.json", "package-lock.json"):
            shutil.copy(FOLDER / "npm" / file, folder)
        _run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", folder=folder)

    return _installed("npm", (FOLDER / "npm" / "package-lock.json").read_bytes(), install)


def go_client() -> Path:
    """The program that ``go/main.go`` becomes with the versions of ``go/go.sum``.

    :raises ProgramUnavailableError: when there is no Go, or it cannot be built.
    """
    if shutil.which("go") is None:
        raise ProgramUnavailableError("There is no Go on PATH (Debian: apt install golang-go)")
    sources = [FOLDER / "go" / name for name in ("go.mod", "go.sum", "main.go")]

    def install(folder: Path) -> None:
        folder.mkdir()
        for file in sources:
            shutil.copy(file, folder)
        _run("go", "build", "-mod=readonly", "-buildvcs=false", "-o", "client", ".", folder=folder)

    return _installed("go", b"".join(file.read_bytes() for file in sources), install) / "client"


def java_client() -> Path:
    """The folder with the jars of ``JAVA_CLIENT`` and of its dependencies.

    :raises ProgramUnavailableError: when there is no Java, or they cannot be fetched.
    """
    java = java_path()

    def install(folder: Path) -> None:
        folder.mkdir()
        resolve(java, folder, JAVA_CLIENT)

    return _installed("java", repr(JAVA_CLIENT).encode(), install) / "jars"


def _installed(name: str, versions: bytes, install: Callable[[Path], None]) -> Path:
    """The folder of the installation ``name`` with these ``versions``, which is made if it does not exist. A folder has
    its final name from the beginning, as environments of Python contain it; a file says that it is complete."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coterie"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"rest-client-{name}-{hashlib.sha256(versions).hexdigest()[:12]}"
    complete = folder / "complete"
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            install(folder)
            complete.touch()
    return folder


def _run(*command: str, folder: Path | None = None) -> None:
    """:raises ProgramUnavailableError: when the command fails."""
    with tempfile.TemporaryFile("w+") as output:
        try:
            subprocess.run(command, cwd=folder, stdout=output, stderr=output, timeout=INSTALL_TIMEOUT_S, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            output.seek(0)
            raise ProgramUnavailableError(f"{' '.join(command)} failed: {error}\n{output.read()[-2000:]}") from error
