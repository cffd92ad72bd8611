"""Runs typical queries once, so that the first query of a task does not run on a cold JVM (6-8 s, afterwards 0.5 s).

Also writes the archive of the classes that these queries load.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from coterie.nouns.errors import WorldError
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.checkpoint import create_first_checkpoint_if_absent, take_over_checkpoint
from coterie.spark.class_archive import DEFAULT_JAVA_OPTIONS_KEY, archive_path, jvm_option_with_path
from coterie.spark.fence import Fence
from coterie.spark.generations.split import SplitFunction
from coterie.spark.java import find_or_write_java_home
from coterie.spark.pipeline import Pipeline
from coterie.spark.query import TaskQuery
from coterie.spark.redaction import new_redacting_session
from coterie.spark.session import make_spark_settings, start_driver
from coterie.spark.settings import SparkConfig

FILE_FORMATS = ("json", "parquet")
"""The formats of the files that two of the warm-up queries write: the first by Spark's writer, the second by Arrow."""
ROWS_PER_FILE = 200
"""Number of rows in each input file of the warm-up queries."""
QUERY_TIMEOUT_S = 300
"""Time limit, in seconds, for each warm-up query. Spark's start and these queries have taken up to 102 s on a busy
machine."""
ARCHIVE_TIMEOUT_S = 600
"""Time limit, in seconds, for the end of the JVM, which writes the archive when it ends."""


def run_warm_up_queries(spark: SparkSession, scratch_folder: Path) -> None:
    """Run three queries at the same time, each in a session as a task has one. Two with two batches read CSV, filter,
    cast, and write files by Spark's writer and by Arrow. The third reads the rate source and writes nothing. Each query
    loads the JVM's classes that it uses; a class that several tasks load at the same time makes them wait for each
    other. Returns when all queries have ended.

    All files are in a new folder in ``scratch_folder``, which is removed afterwards.

    :raises WorldError, PySparkException, Py4JError: when a query fails, or has not ended within
        :data:`QUERY_TIMEOUT_S`.
    """
    folder = Path(tempfile.mkdtemp(prefix="warm-up-", dir=scratch_folder))
    try:
        configs = {
            "rate": _rate_source_task_config(),
            **{format_: _write_csv_and_make_config(folder, format_) for format_ in FILE_FORMATS},
        }
        with ThreadPoolExecutor(len(configs)) as threads:
            runs = [threads.submit(_run_warm_up_query, spark, folder, name, config) for name, config in configs.items()]
            for run in runs:
                run.result()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_spark_to_write_class_archive(config: SparkConfig) -> None:
    """Write the archive of classes for workers with this config (:func:`archive_path`): start Spark as such a worker
    does, warm it up, and end it. At its end Java writes an archive of the classes that it has loaded.

    :raises WorldError: when there is no suitable Java, Spark does not start, a warm-up query fails, or the archive
        cannot be written.
    """
    config.scratch_folder.mkdir(parents=True, exist_ok=True)
    java_home = find_or_write_java_home(config.scratch_folder, os.environ)
    path = archive_path(java_home, make_spark_settings(config.user_settings, config.scratch_folder), os.environ)
    unfinished_file = path.with_name(f".{config.scratch_folder.name}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        settings = {
            **config.user_settings,
            DEFAULT_JAVA_OPTIONS_KEY: jvm_option_with_path("ArchiveClassesAtExit", unfinished_file),
        }
        driver = start_driver(replace(config, user_settings=settings), lambda _: None)
        try:
            run_warm_up_queries(driver.spark, config.scratch_folder)
            driver.close(timeout_s=ARCHIVE_TIMEOUT_S)
        finally:
            # After an error or Ctrl-C; it does nothing where the JVM has ended.
            driver.close()
        unfinished_file.rename(path)
    except (PySparkException, Py4JError) as error:
        raise WorldError(f"a warm-up query of Spark failed; no archive of classes was written: {error}") from error
    except FileNotFoundError:
        last_log_lines = config.jvm_log_file.read_text(errors="replace").splitlines()[-5:]
        raise WorldError(f"Java ({java_home}) wrote no archive of classes: {' / '.join(last_log_lines)}") from None
    except OSError as error:
        raise WorldError(f"No archive of classes can be written to {path.parent}: {error.strerror}") from error
    finally:
        unfinished_file.unlink(missing_ok=True)


def _rate_source_task_config() -> Mapping[str, str]:
    """The config of a task that reads the rate source and writes nothing."""
    return {
        "task.class": "RateSource",
        "task.index": "0",
        "task.count": "1",
        "task.split": SplitFunction.PARTS_V1.value,
        "task.parts": '["rate"]',
        "sink.format": "noop",
    }


def _write_csv_and_make_config(folder: Path, format_: str) -> Mapping[str, str]:
    """Write two CSV files into a new folder in ``folder``. Returns the config of a task that reads them, and writes
    their rows to files of the format ``format_``."""
    source_folder = folder / f"{format_}-in"
    source_folder.mkdir()
    for number in range(2):
        lines = (f"{row},{row / 7},text {row}\n" for row in range(ROWS_PER_FILE))
        (source_folder / f"{number}.csv").write_text("id,amount,text\n" + "".join(lines))
    return {
        "task.class": "FileSource",
        "task.index": "0",
        "task.count": "1",
        "task.split": SplitFunction.PATH_HASH_V1.value,
        "source.format": "csv",
        "source.path": str(source_folder),
        "source.schema": "id BIGINT, amount DOUBLE, text STRING",
        "source.option.header": "true",
        "source.max.files.per.trigger": "1",
        "transforms": "kept,typed",
        "transforms.kept.type": "Filter",
        "transforms.kept.condition": "id % 2 = 0 AND text IS NOT NULL",
        "transforms.typed.type": "Cast",
        "transforms.typed.spec": "id:int,amount:float",
        "sink.format": format_,
        "sink.path": str(folder / f"{format_}-out"),
    }


def _run_warm_up_query(spark: SparkSession, folder: Path, name: str, config: Mapping[str, str]) -> None:
    """Run a task with ``config`` until it has processed its input. Its checkpoint is in ``folder``.

    :raises WorldError, PySparkException, Py4JError: as :func:`run_warm_up_queries`.
    """
    checkpoints = folder / f"{name}-checkpoints"
    create_first_checkpoint_if_absent(checkpoints)
    query = TaskQuery(
        new_redacting_session(spark, config, config),
        ConnectorTaskId(ConnectorName(f"warm-up-{name}"), 0),
        Pipeline.of(config, {}),
        take_over_checkpoint(checkpoints),
        Fence(),
    )
    query.run_available_input_until_end(timeout_s=QUERY_TIMEOUT_S)
