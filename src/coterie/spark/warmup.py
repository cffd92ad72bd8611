"""Runs a typical query once, so that the first query of a task does not run on a cold JVM (6-8 s, afterwards 0.5 s).

Also writes the archive of the classes that this query loads.
"""

import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from coterie.nouns.errors import WorldError
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.checkpoint import create_first_checkpoint, take_over
from coterie.spark.class_archive import JAVA_OPTIONS, archive_path, option
from coterie.spark.fence import Fence
from coterie.spark.generations.split import SplitFunction
from coterie.spark.java import find_java_home
from coterie.spark.pipeline import Pipeline
from coterie.spark.query import TaskQuery
from coterie.spark.session import settings_for, start_driver
from coterie.spark.settings import SparkConfig

FORMATS = ("json", "parquet")
"""The formats of the sinks of the two queries: the first is written by Spark's writer, the second by Arrow."""
ROWS = 200
"""Number of rows in each input file."""
ARCHIVE_WITHIN_S = 600
"""Time limit, in seconds, for the end of the JVM, which writes the archive when it ends."""


def warm_up(spark: SparkSession, scratch: Path) -> None:
    """Run two queries with two batches each: read CSV, filter, cast, and write files by Spark's writer and by Arrow.
    Returns when both have ended.

    All files are in a new folder in ``scratch``, which is removed afterwards.

    :raises WorldError, PySparkException: when a query fails.
    """
    folder = Path(tempfile.mkdtemp(prefix="warm-up-", dir=scratch))
    try:
        with ThreadPoolExecutor(len(FORMATS)) as threads:
            for run in [threads.submit(_run, spark, folder, format_) for format_ in FORMATS]:
                run.result()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_archive(config: SparkConfig) -> None:
    """Write the archive of classes for workers with this config (:func:`archive_path`): start Spark as such a worker
    does, warm it up, and end it. At its end Java writes an archive of the classes that it has loaded.

    :raises WorldError: when there is no suitable Java, Spark does not start, its first query fails, or the archive
        cannot be written.
    """
    config.scratch.mkdir(parents=True, exist_ok=True)
    java_home = find_java_home(config.scratch, os.environ)
    path = archive_path(java_home, settings_for(config.settings, config.scratch), os.environ)
    unfinished = path.with_name(f".{config.scratch.name}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        settings = {**config.settings, JAVA_OPTIONS: option("ArchiveClassesAtExit", unfinished)}
        session = start_driver(replace(config, settings=settings), lambda _: None)
        try:
            warm_up(session.spark, config.scratch)
            session.close(timeout_s=ARCHIVE_WITHIN_S)
        finally:
            # After an error or Ctrl-C; it does nothing where the JVM has ended.
            session.close()
        unfinished.rename(path)
    except (PySparkException, Py4JError) as error:
        raise WorldError(f"Spark's first query failed; no archive of classes was written: {error}") from error
    except FileNotFoundError:
        printed = config.log_file.read_text(errors="replace").splitlines()[-5:]
        raise WorldError(f"Java ({java_home}) wrote no archive of classes: {' / '.join(printed)}") from None
    except OSError as error:
        raise WorldError(f"No archive of classes can be written to {path.parent}: {error.strerror}") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _run(spark: SparkSession, folder: Path, format_: str) -> None:
    """Write input files into ``folder`` and run a query that writes them to files of the format ``format_``."""
    source = folder / f"{format_}-in"
    source.mkdir()
    for number in range(2):
        lines = (f"{row},{row / 7},text {row}\n" for row in range(ROWS))
        (source / f"{number}.csv").write_text("id,amount,text\n" + "".join(lines))
    task = ConnectorTaskId(ConnectorName(f"warm-up-{format_}"), 0)
    checkpoints = folder / f"{format_}-checkpoints"
    create_first_checkpoint(checkpoints)
    held = take_over(checkpoints)
    config = {
        "task.class": "FileSource",
        "task.index": "0",
        "task.count": "1",
        "task.split": SplitFunction.PATH_HASH_V1.value,
        "source.format": "csv",
        "source.path": str(source),
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
    TaskQuery(spark, task, Pipeline.of(config, {}), held, Fence()).run_once()
