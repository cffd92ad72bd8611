"""A throw-away query of the usual shape, so that the first real one does not pay for a cold JVM (6-8 s, then 0.5 s)."""

import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import SparkSession

from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.checkpoint import make_first, take_over
from coterie.spark.fence import Fence
from coterie.spark.generations.split import SplitFunction
from coterie.spark.pipeline import Pipeline
from coterie.spark.query import TaskQuery

FORMATS = ("json", "parquet")
"""One that Spark writes, and the one that Arrow writes."""
ROWS = 200


def warm_up(spark: SparkSession, scratch: Path) -> None:
    """CSV through a filter and a cast to files, by Spark's writer and by Arrow, two batches each; the files go away.

    :raises WorldError, PySparkException: when not even this works.
    """
    folder = Path(tempfile.mkdtemp(prefix="warm-up-", dir=scratch))
    try:
        with ThreadPoolExecutor(len(FORMATS)) as threads:
            for run in [threads.submit(_run, spark, folder, format_) for format_ in FORMATS]:
                run.result()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(spark: SparkSession, folder: Path, format_: str) -> None:
    source = folder / f"{format_}-in"
    source.mkdir()
    for number in range(2):
        lines = (f"{row},{row / 7},text {row}\n" for row in range(ROWS))
        (source / f"{number}.csv").write_text("id,amount,text\n" + "".join(lines))
    task = ConnectorTaskId(ConnectorName(f"warm-up-{format_}"), 0)
    checkpoints = folder / f"{format_}-checkpoints"
    make_first(checkpoints)
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
