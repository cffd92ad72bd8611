"""The loggers of Spark's JVM: listed and set without a restart; none without a JVM."""

from pathlib import Path

import pytest

from coterie.nouns.logger_levels import LoggerLevel
from coterie.spark.runtime import SparkTaskRuntime
from coterie.spark.settings import SparkConfig
from tests.spark.conftest import Rig

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


async def test_levels_are_set_for_a_logger_and_its_descendants(rig: Rig) -> None:
    levels = await rig.runtime.logger_levels()
    assert levels["root"] is LoggerLevel.WARN, "Coterie starts Spark so"
    assert {"org.apache.spark.SparkContext", "org.sparkproject.jetty"} <= levels.keys(), "a class; a configured name"
    try:
        # A descendant for which Spark's logging configuration sets another level gets the new level, too.
        await rig.runtime.set_logger_level("org.sparkproject", LoggerLevel.FATAL)
        await rig.runtime.set_logger_level("org.example.New", LoggerLevel.TRACE)
        changed = await rig.runtime.logger_levels()
        assert changed["org.sparkproject"] is changed["org.sparkproject.jetty"] is LoggerLevel.FATAL
        assert changed["org.example.New"] is LoggerLevel.TRACE
        jvm_logger = rig.session._jvm.org.slf4j.LoggerFactory.getLogger("org.example.New")  # type: ignore[union-attr]
        assert jvm_logger.isTraceEnabled()
        assert changed["org.apache.spark.SparkContext"] is levels["org.apache.spark.SparkContext"], "no descendant"
    finally:
        await rig.runtime.set_logger_level("root", LoggerLevel.WARN)
    assert set((await rig.runtime.logger_levels()).values()) == {LoggerLevel.WARN}


async def test_without_a_jvm_there_are_no_loggers_and_none_is_started(tmp_path: Path) -> None:
    config = SparkConfig(checkpoint_location=tmp_path, scratch_folder=tmp_path, jvm_log_file=tmp_path / "log")
    runtime = SparkTaskRuntime(config)
    assert await runtime.logger_levels() == {}
    await runtime.set_logger_level("org.apache.spark", LoggerLevel.DEBUG)
    assert runtime.jvm_pid is None
