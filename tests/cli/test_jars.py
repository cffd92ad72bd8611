"""`coterie jars`: each run is a separate process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.spark.jars import jar_packages
from tests.cli.command import ENVIRONMENT, coterie
from tests.mirror import serve
from tests.ports import free_ports


def test_a_folder_without_jars_is_listed_with_the_missing_jars_and_the_command_to_fetch_them(tmp_path: Path) -> None:
    output = coterie("jars", "list", "--in", str(tmp_path)).stdout
    for package in jar_packages().values():
        assert f"{package.name}: {package.needed_for}\n" in output
        for jar in package.jars:
            assert f"    missing  {jar.coordinates}\n" in output
    assert output.endswith("To fetch the missing jars: coterie jars fetch kafka delta avro postgres\n")


def test_other_versions_damaged_and_additional_jars_are_listed_as_such(tmp_path: Path) -> None:
    for name in ("kafka-clients-3.9.1.jar", "postgresql-42.7.8.jar", "users-driver.jar"):
        (tmp_path / name).touch()
    output = coterie("jars", "list", "--in", str(tmp_path)).stdout
    assert "    kafka-clients-3.9.1.jar instead of org.apache.kafka:kafka-clients:3.9.2\n" in output
    assert "    damaged (its SHA-256 is not the pinned one) org.postgresql:postgresql:42.7.8\n" in output
    assert "users-driver.jar is an additional jar in the folder; workers use it\n" in output


def test_two_concurrent_fetches_succeed_and_a_third_fetches_nothing(spark_jars: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "coterie", "jars", "fetch", "avro", "postgres", "--to", str(tmp_path / "jars")]
    wanted = [*jar_packages()["avro"].jars, *jar_packages()["postgres"].jars]
    with serve() as mirror:
        for jar in wanted:
            mirror.put(jar, (spark_jars / jar.file_name).read_bytes())
        both = [subprocess.Popen([*command, "--mirror", mirror.url], env={**os.environ, **ENVIRONMENT}) for _ in "ab"]
        assert [process.wait(60) for process in both] == [0, 0]
    assert sorted(path.name for path in (tmp_path / "jars").iterdir()) == sorted(jar.file_name for jar in wanted)
    third = subprocess.run([*command, "--mirror", mirror.url], capture_output=True, text=True, timeout=60, check=True)
    summary = f"2 jars are in {tmp_path / 'jars'} (0 of them new); workers that start from now on use them\n"
    assert (third.stdout, third.stderr) == (summary, "")


def test_a_fetch_without_a_network_prints_one_error_with_the_remedy(tmp_path: Path) -> None:
    mirror = f"http://127.0.0.1:{free_ports(1)[0]}"
    run = coterie("jars", "fetch", "avro", "--to", str(tmp_path), "--mirror", mirror, check=1)
    progress, error = run.stderr.splitlines()
    assert progress == f"Fetching 1 jars, 0.1 MB, into {tmp_path}"
    assert error.startswith(f"coterie: spark-avro_2.13-4.1.1.jar could not be fetched from {mirror}: ")
    assert "--mirror URL" in error


def test_an_unwritable_cache_folder_is_reported_with_the_option_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/sys")
    run = coterie("jars", "fetch", "avro", check=1)
    error = run.stderr.splitlines()[-1]
    assert error.startswith("coterie: The jars cannot be written to /sys/coterie/jars: ")
    assert "coterie jars fetch --to FOLDER" in error


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["nope"], "there is no package nope; the packages are kafka, delta, avro, postgres"),
        (["--mirror", "ftp://x"], "--mirror must be the http:// or https:// URL of a Maven repository"),
        (["--to", ""], "the folder name is empty"),
    ],
)
def test_an_invalid_argument_is_refused(arguments: list[str], error: str) -> None:
    assert error in " ".join(coterie("jars", "fetch", *arguments, check=2).stderr.replace("│", "").split())
