"""The class archive that a JVM uses at its start, and the error if no archive can be written."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from coterie.nouns.errors import WorldError
from coterie.spark import warmup
from coterie.spark.class_archive import (
    DEFAULT_JAVA_OPTIONS_KEY,
    archive_path,
    jvm_option_with_path,
    with_archive_option_if_usable,
)
from coterie.spark.jars import jar_settings_unless_user_sets_jars
from coterie.spark.java import find_or_write_java_home
from coterie.spark.session import make_spark_settings
from coterie.spark.settings import SparkConfig
from tests.cli.command import coterie
from tests.spark.conftest import Rig


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A Java, a jar and a cache folder."""

    java_home: Path
    jar: Path
    cache: Path

    @property
    def settings(self) -> dict[str, str]:
        return {"spark.driver.extraClassPath": str(self.jar)}

    @property
    def environment(self) -> dict[str, str]:
        return {"XDG_CACHE_HOME": str(self.cache)}

    @property
    def archive(self) -> Path:
        return archive_path(self.java_home, self.settings, self.environment)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(java_home=tmp_path / "java", jar=tmp_path / "a.jar", cache=tmp_path / "cache")
    (made.java_home / "bin").mkdir(parents=True)
    (made.java_home / "bin" / "java").write_text("a Java")
    made.jar.write_text("classes")
    return made


def test_each_java_and_class_path_has_its_own_class_archive(machine: Machine) -> None:
    names = [machine.archive]
    assert machine.archive == names[0]
    machine.jar.write_text("other classes")
    names.append(machine.archive)
    (machine.java_home / "release").write_text("another Java")
    names.append(machine.archive)
    names.append(archive_path(machine.java_home, {}, machine.environment))
    assert len(set(names)) == len(names)
    assert {name.parent for name in names} == {machine.cache / "coterie" / "classes"}


def test_a_session_uses_an_existing_archive_unless_the_user_sets_java_options(machine: Machine) -> None:
    def settings(**users: str) -> dict[str, str]:
        return with_archive_option_if_usable({**machine.settings, **users}, machine.java_home, machine.environment)

    assert settings() == machine.settings
    machine.archive.parent.mkdir(parents=True)
    machine.archive.touch()
    assert settings()[DEFAULT_JAVA_OPTIONS_KEY] == f'"-XX:SharedArchiveFile={machine.archive}"'
    assert settings(**{DEFAULT_JAVA_OPTIONS_KEY: "-Xshare:off"})[DEFAULT_JAVA_OPTIONS_KEY] == "-Xshare:off"


def test_a_path_with_spaces_and_quotes_is_one_java_option() -> None:
    assert jvm_option_with_path("SharedArchiveFile", Path('/a "b"/c')) == r'"-XX:SharedArchiveFile=/a \"b\"/c"'


def test_a_user_without_a_home_starts_spark_without_an_archive(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", without_home)
    assert with_archive_option_if_usable(machine.settings, machine.java_home, {}) == machine.settings


class TestOfTheTests:
    """`make test` writes the archives for its own JVMs before the tests start."""

    @pytest.mark.spark
    @pytest.mark.timeout(300)
    def test_a_jvm_starts_from_its_archive(self, rig: Rig, spark_jars: Path, tmp_path: Path) -> None:
        archive = existing_archive(spark_jars, tmp_path)
        assert str(archive) in Path(f"/proc/{rig.spark_runtime.jvm_pid}/maps").read_text()

    def test_an_existing_archive_is_not_written_again(self, spark_jars: Path, tmp_path: Path) -> None:
        archive = existing_archive(spark_jars, tmp_path)
        written_ns = archive.stat().st_mtime_ns
        output = coterie("jars", "archive", "--in", str(spark_jars)).stdout
        assert output == f"{archive} exists already; workers use it\n"
        assert archive.stat().st_mtime_ns == written_ns


def existing_archive(jars: Path, scratch: Path) -> Path:
    settings = make_spark_settings(jar_settings_unless_user_sets_jars(jars, {}), scratch)
    archive = archive_path(find_or_write_java_home(scratch, os.environ), settings, os.environ)
    if not archive.exists() and os.environ.get("CI") != "true":
        pytest.skip("python -m tests.class_archives has not been run")
    return archive


def test_the_error_for_a_java_that_writes_no_archive_contains_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SparkConfig(
        checkpoint_location=tmp_path / "c", scratch_folder=tmp_path / "s", jvm_log_file=tmp_path / "log"
    )

    class EndedWithoutOne:
        spark = None

        def close(self, *, timeout_s: float = 0) -> None:
            config.jvm_log_file.write_text("first line\nDynamicDump is unsupported\n")

    def fail(*_: object) -> None:
        raise PySparkException("no query runs")

    monkeypatch.setattr(warmup, "start_driver", lambda *_: EndedWithoutOne())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(warmup, "run_warm_up_queries", fail)
    with pytest.raises(WorldError, match="no archive of classes was written: no query runs"):
        warmup.run_spark_to_write_class_archive(config)
    monkeypatch.setattr(warmup, "run_warm_up_queries", lambda *_: None)
    with pytest.raises(WorldError, match=r"wrote no archive of classes: first line / DynamicDump is unsupported$"):
        warmup.run_spark_to_write_class_archive(config)
    assert list((tmp_path / "cache" / "coterie" / "classes").iterdir()) == []
