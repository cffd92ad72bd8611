"""The pinned jars, and those that a JVM lacks."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coterie.nouns.errors import WorldError
from coterie.spark.jars import (
    FoundJars,
    JarPackage,
    default_jar_folder,
    jar_packages,
    jar_settings_unless_user_sets_jars,
    missing_jars_message,
    missing_jars_message_by_package,
)
from coterie.spark.runtime import SparkTaskRuntime
from coterie.spark.settings import JarSettings, SparkConfig
from tests.mirror import jar_of
from tests.ports import free_ports
from tests.spark.conftest import Rig, rows_of


def test_each_pinned_jar_has_a_unique_file_name_and_a_complete_checksum() -> None:
    jars = [jar for package in jar_packages().values() for jar in package.jars]
    assert len({jar.file_name for jar in jars}) == len(jars)
    assert all(len(bytes.fromhex(jar.sha256)) == 32 for jar in jars)


def write_jars(folder: Path, *names: str) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = [folder / name for name in names]
    for path in paths:
        path.touch()
    return paths


def test_the_default_folder_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert default_jar_folder({}) == Path("/home/ada/.cache/coterie/jars")
    assert default_jar_folder({"XDG_CACHE_HOME": "/caches"}) == Path("/caches/coterie/jars")
    assert default_jar_folder({"XDG_CACHE_HOME": "caches"}) == Path("/home/ada/.cache/coterie/jars"), "XDG ignores it"


def test_a_local_session_gets_every_jar_of_the_folder_on_its_class_path(tmp_path: Path) -> None:
    ours, users = write_jars(tmp_path, "postgresql-42.7.8.jar", "users-driver.jar")
    write_jars(tmp_path, "notes.txt", ".postgresql-42.7.8.jar.x1.part")
    assert jar_settings_unless_user_sets_jars(tmp_path, {}) == {"spark.driver.extraClassPath": f"{ours}:{users}"}
    assert jar_settings_unless_user_sets_jars(tmp_path, {"spark.master": "local[2]"}).keys() == {
        "spark.driver.extraClassPath"
    }


def test_executors_on_other_machines_get_the_jars_from_spark(tmp_path: Path) -> None:
    (ours,) = write_jars(tmp_path, "postgresql-42.7.8.jar")
    settings = jar_settings_unless_user_sets_jars(tmp_path, {"spark.master": "spark://master:7077"})
    assert settings == {"spark.jars": f"file://{ours}"}


def test_a_session_with_deltas_jars_gets_deltas_settings(tmp_path: Path) -> None:
    delta = jar_packages()["delta"]
    write_jars(tmp_path, *(jar.file_name for jar in delta.jars[1:]))
    assert "spark.sql.extensions" not in jar_settings_unless_user_sets_jars(tmp_path, {}), (
        "one of Delta's jars is missing"
    )
    write_jars(tmp_path, delta.jars[0].file_name)
    assert jar_settings_unless_user_sets_jars(tmp_path, {}).items() >= delta.spark_settings.items()


@pytest.mark.parametrize("key", ["spark.jars", "spark.jars.packages", "spark.driver.extraClassPath"])
def test_jars_of_the_user_replace_ours_and_that_is_logged(
    tmp_path: Path, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_jars(tmp_path, "postgresql-42.7.8.jar")
    with caplog.at_level(logging.WARNING):
        assert jar_settings_unless_user_sets_jars(tmp_path, {key: "mine"}) == {}
    assert caplog.messages == [
        f"{key} is set for this worker, so the 1 jars in {tmp_path} are not added to Spark; remove the setting to use "
        "them"
    ]


def test_of_two_versions_of_a_jar_the_pinned_one_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    old, pinned = write_jars(tmp_path, "kafka-clients-3.9.1.jar", "kafka-clients-3.9.2.jar")
    found = FoundJars.find_in_folder(tmp_path)
    assert (found.used, found.unused) == ((pinned,), (old,))
    with caplog.at_level(logging.WARNING):
        assert jar_settings_unless_user_sets_jars(tmp_path, {}) == {"spark.driver.extraClassPath": str(pinned)}
    assert str(old) in caplog.text
    pinned.unlink()
    assert FoundJars.find_in_folder(tmp_path).used == (old,), "a jar that was copied there by hand is used"


def test_a_missing_folder_means_no_jars_and_an_unreadable_one_is_named(tmp_path: Path) -> None:
    assert jar_settings_unless_user_sets_jars(tmp_path / "none", {}) == {}
    (tmp_path / "file").touch()
    with pytest.raises(WorldError, match=r"file \(jars\.dir\) cannot be read: Not a directory"):
        jar_settings_unless_user_sets_jars(tmp_path / "file", {})


IN_SPARK = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]


def spark_of(rig: Rig) -> SparkSession:
    return rig.spark_runtime._running_driver().spark


class TestInSpark:
    pytestmark = IN_SPARK

    async def test_a_worker_with_all_jars_reports_none_missing(self, spark_jars: Path, rig: Rig) -> None:
        assert rig.spark_runtime.missing_jars() == {}
        options = {"subscribe": "topic", "kafka.bootstrap.servers": "127.0.0.1:1"}
        stream = spark_of(rig).readStream.format("kafka").options(**options).load()
        assert stream.columns[:3] == ["key", "value", "topic"]

    async def test_deltas_jars_append_to_a_table(self, spark_jars: Path, rig: Rig, tmp_path: Path) -> None:
        spark, table = spark_of(rig).newSession(), str(tmp_path / "table")
        spark.conf.set("spark.databricks.delta.snapshotPartitions", "1")
        for _ in range(2):
            spark.range(3).write.format("delta").mode("append").save(table)
        assert rows_of(tmp_path / "table", "id") == [0, 0, 1, 1, 2, 2]

    async def test_missing_jars_are_reported_with_coordinates_and_command(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        there, absent = (
            replace(jar_of("kafka", b""), class_name_to_check=name) for name in ("java.lang.String", "org.Absent")
        )
        package = JarPackage(
            name="kafka", needed_for="", jars=(there, replace(absent, version="2.0")), spark_settings={}
        )
        monkeypatch.setattr("coterie.spark.jars.jar_packages", lambda: {"kafka": package})
        sentence = (
            "The worker's JVM does not have org.example:kafka:2.0: run `coterie jars fetch kafka` on every worker, "
            "then restart the workers; or name these coordinates in the worker's spark.jars.packages"
        )
        assert missing_jars_message(spark_of(rig), "kafka") == sentence
        assert missing_jars_message_by_package(spark_of(rig)) == {"kafka": sentence}


async def test_a_worker_whose_configured_fetch_of_jars_fails_does_not_start(tmp_path: Path) -> None:
    mirror = f"http://127.0.0.1:{free_ports(1)[0]}"
    config = SparkConfig(
        checkpoint_location=tmp_path / "checkpoints",
        scratch_folder=tmp_path / "scratch",
        jvm_log_file=tmp_path / "log",
        jar_folder_settings=JarSettings(folder=tmp_path / "jars", fetches_missing_jars=True, repository_url=mirror),
    )
    runtime = SparkTaskRuntime(config)
    with pytest.raises(WorldError, match=rf"could not be fetched from {mirror}.*jars\.mirror"):
        await runtime.open()
    await runtime.close()
    assert not (tmp_path / "log").exists(), "the JVM was started although the fetch failed"
