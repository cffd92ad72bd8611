"""A worker's only Spark session: its default settings, and the start, supervision and end of its JVM."""

import logging
import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from coterie.nouns.errors import WorldError
from coterie.spark.class_archive import with_archive_option_if_usable
from coterie.spark.java import find_or_write_java_home, write_signal_ignoring_launcher
from coterie.spark.java_names import CachingJvmView
from coterie.spark.jvm_log import open_redacted_jvm_log
from coterie.spark.redacted_events import EventRedactor, install_redactor_if_ui_or_log
from coterie.spark.redaction import REDACTION_SETTINGS
from coterie.spark.settings import SparkConfig

log = logging.getLogger(__name__)

# When a query is interrupted, py4j prints the stack trace of its foreachBatch. The task's status contains the
# same trace as the query's exception.
logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
# PySpark logs the errors of queries with its own handlers. These write to standard error and do not hide the values of
# references. No error is lost: PySpark also raises each error.
for _logger_name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
    PySparkLogger.getLogger(_logger_name).disabled = True

DEFAULT_SPARK_SETTINGS = {
    # Hadoop's local file system starts a chmod process for every file; the raw one with this manager does not. This
    # halves the time of a small batch (30 queries at 1 s: from 14-20 batches/s to the full 30).
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.session.timeZone": "UTC",
    # Small files are packed into one Spark partition, and so into one output file, up to 32 MB.
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.files.openCostInBytes": "65536",
    "spark.sql.files.maxPartitionBytes": "32m",
    # List the files of a batch in the driver; on one machine a Spark job for it costs more than it saves.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    # A query without input reports progress at this interval: a check without new input is progress too.
    "spark.sql.streaming.noDataProgressEventInterval": "2s",
    "spark.sql.streaming.stopTimeout": "30s",
    # Spark assigns a free thread to the pool with the fewest running threads, and each connector task has its own pool.
    # With Spark's default, FIFO, the oldest job gets the free thread, so one task with a backlog delays all others.
    "spark.scheduler.mode": "FAIR",
    # A batch takes a consumer for each of its Kafka partitions from this cache, and opens a missing one. So the cache
    # needs capacity for all Kafka partitions of the worker's tasks. Consumers are closed after 5 minutes without use.
    "spark.kafka.consumer.cache.capacity": "10000",
    # Coterie stages the output and commits it by its own rename: Spark's cheap committer is sufficient.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    **REDACTION_SETTINGS,
}
LOOPBACK_SETTINGS = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""Settings for a Spark whose executors run in the driver's JVM: other machines cannot connect to the driver."""

THREADS_PER_CORE = 4
"""The number of Spark's threads for each core, if the user does not set ``spark.master``. A Spark partition of a
backlog occupies its thread for seconds. With more threads than cores other tasks still get a thread, and the operating
system divides the cores between all threads."""

_launch_lock = threading.Lock()
"""Held while this process starts a JVM: two starts at the same time must not both find that there is no session."""


def make_spark_settings(user_settings: Mapping[str, str], scratch_folder: Path) -> dict[str, str]:
    """Coterie's default settings, overridden by ``user_settings``, the user's ``spark.*`` settings. The user's value of
    a key replaces Coterie's value: lists of options are not merged. ``scratch_folder``: the folder for Spark's
    temporary files."""
    default_settings = {
        **DEFAULT_SPARK_SETTINGS,
        "spark.master": "local[*]",
        "spark.app.name": "coterie",
        "spark.local.dir": str(scratch_folder),
        "spark.sql.warehouse.dir": str(scratch_folder / "warehouse"),
        # TieredStopAtLevel=1 halves the CPU of small batches; heavy queries run slower.
        "spark.driver.extraJavaOptions": (
            f"-Djava.io.tmpdir={scratch_folder} -Dderby.system.home={scratch_folder} -XX:TieredStopAtLevel=1"
        ),
    }
    if user_settings.get("spark.master", "local").startswith("local"):
        default_settings |= LOOPBACK_SETTINGS
    return {**default_settings, **user_settings}


class SparkDriver:
    """A SparkSession in this process, with its JVM.

    When the JVM ends and :meth:`close` was not called before, ``on_exit(reason)`` is called on a thread of this object.
    """

    def __init__(
        self,
        spark: SparkSession,
        event_redactor: EventRedactor | None,
        gateway: Any,
        jvm_log_file: Path,
        on_exit: Callable[[str], None],
    ) -> None:
        self.spark = spark
        self._event_redactor = event_redactor
        self.jvm_pid: int = gateway.proc.pid
        self._gateway = gateway
        self._closing = threading.Event()

        def wait_and_report_jvm_exit() -> None:
            exit_code = gateway.proc.wait()
            if not self._closing.is_set():
                end_text = f"was killed by signal {-exit_code}" if exit_code < 0 else f"exited with {exit_code}"
                on_exit(f"Spark's JVM (process {self.jvm_pid}) {end_text}; its log is {jvm_log_file}")

        self._jvm_exit_thread = threading.Thread(target=wait_and_report_jvm_exit, name="coterie-jvm-watch", daemon=True)
        self._jvm_exit_thread.start()

    def await_exit_report_or_timeout(self, *, timeout_s: float) -> None:
        """Wait ``timeout_s`` seconds at most until the JVM has ended and ``on_exit`` has returned. For a caller whose
        call of the JVM has failed, possibly a moment before the end of the JVM is noticed."""
        self._jvm_exit_thread.join(timeout_s)

    def close(self, *, timeout_s: float = 10) -> None:
        """Stop Spark and end the JVM. A JVM that still runs ``timeout_s`` seconds after Spark was stopped is killed.
        The JVM may have ended before; failures of Spark are logged."""
        self._closing.set()
        if self._event_redactor is not None:
            self._event_redactor.close()
        try:
            if self._gateway.proc.poll() is None:
                self.spark.stop()
        except Exception as error:  # noqa: BLE001 - a failure of the JVM; the JVM is ended below in any case
            log.warning("Stopping Spark failed, so its JVM is ended now: %s", error)
        _end_jvm_and_clear_pyspark(self._gateway, timeout_s=timeout_s)
        self._jvm_exit_thread.join()


def start_driver(config: SparkConfig, on_exit: Callable[[str], None]) -> SparkDriver:
    """Start a JVM and a Spark session in it. ``on_exit``: see :class:`SparkDriver`.

    :raises WorldError: when there is no suitable Java, Spark does not start, or this process already has a session; the
        message contains the reason or the log file to read.
    """
    scratch_folder, jvm_log_file = config.scratch_folder, config.jvm_log_file
    scratch_folder.mkdir(parents=True, exist_ok=True)
    jvm_log_file.parent.mkdir(parents=True, exist_ok=True)
    java_home = find_or_write_java_home(scratch_folder, os.environ)
    conf = SparkConf(loadDefaults=False)
    conf.setAll(
        list(
            with_archive_option_if_usable(
                make_spark_settings(config.user_settings, scratch_folder), java_home, os.environ
            ).items()
        )
    )
    with _launch_lock, open_redacted_jvm_log(jvm_log_file) as jvm_output:
        if SparkContext._active_spark_context is not None:
            raise WorldError("This process already runs a Spark session; a process can have only one")
        try:
            # The JVM is in this process's group, so that a SIGKILL or SIGSTOP for the group reaches it. The JVM ignores
            # the signals that end this process in a clean way: it must not end before the last batches are committed.
            launcher = write_signal_ignoring_launcher(
                Path(_find_spark_home(), "bin", "spark-submit"), scratch_folder, java_home
            )
            options = {"executable": str(launcher), "stdout": jvm_output, "stderr": jvm_output}
            gateway = launch_gateway(conf, options)  # type: ignore[no-untyped-call]
            gateway.jvm = CachingJvmView(gateway.jvm)
        except (PySparkException, OSError) as error:
            raise WorldError(f"Spark's JVM did not start ({java_home}); see {jvm_log_file}: {error}") from error
        try:
            if "spark.master" not in config.user_settings:
                # Java takes the CPU limit of a container into account.
                cores = gateway.jvm.java.lang.Runtime.getRuntime().availableProcessors()
                conf.set("spark.master", f"local[{THREADS_PER_CORE * cores}]")
                # Number of Spark partitions for rows from the driver: one for each core, not for each thread.
                conf.setIfMissing("spark.default.parallelism", str(cores))
            context = SparkContext(gateway=gateway, conf=conf)
            context.setLogLevel("WARN")
            spark = SparkSession(context)
            return SparkDriver(spark, install_redactor_if_ui_or_log(spark), gateway, jvm_log_file, on_exit)
        except Exception as error:
            _end_jvm_and_clear_pyspark(gateway, timeout_s=10)
            raise WorldError(f"Spark did not start; see {jvm_log_file}: {error}") from error


def _end_jvm_and_clear_pyspark(gateway: Any, *, timeout_s: float) -> None:
    """End the JVM of ``gateway`` and clear PySpark's references to it, so that this process can start another JVM. The
    JVM is killed if it has not ended after ``timeout_s`` seconds."""
    jvm: subprocess.Popen[bytes] = gateway.proc
    try:
        gateway.shutdown()
    except Exception as error:  # noqa: BLE001 - py4j raises various exceptions when the JVM has ended
        log.debug("Shutting down the py4j gateway failed: %s", error)
    if jvm.stdin is not None:
        # The JVM ends when this pipe is closed, which also happens when this process is killed.
        jvm.stdin.close()
    try:
        jvm.wait(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        jvm.kill()
        jvm.wait()
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None
