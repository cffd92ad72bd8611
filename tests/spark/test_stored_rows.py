"""Rows whose Spark partitions may be larger than the driver's memory reach the driver in pieces, by way of the disk."""

import asyncio
import gzip
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from coterie.nouns.errors import UnreachableError
from coterie.spark.arrow import (
    STORED_ARROW_BATCH_ROWS_MAX,
    arrow_batches_to_internal_rows,
    read_arrow_batches,
    store_and_yield_arrow_partitions,
)
from coterie.spark.bad_records.separator import SeparatedRows
from tests.spark.conftest import Rig

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]

ROWS = 5 * STORED_ARROW_BATCH_ROWS_MAX


def numbers(session: SparkSession) -> DataFrame:
    """Rows in four Spark partitions, of which the second has none."""
    return session.range(0, ROWS, 1, 4).where(f"id < {ROWS // 4} OR id >= {ROWS // 2}")


def stored_rdds(session: Any) -> list[int]:
    """The ids of the RDDs that Spark stores."""
    return [int(number) for number in session.sparkContext._jsc.getPersistentRDDs()]


def has_blocks(session: Any, rdd: int) -> bool:
    """Whether blocks of an RDD are stored. Spark removes them on another thread, which waits for their readers."""
    manager = session._jvm.org.apache.spark.SparkEnv.get().blockManager()
    block_ids = [session._jvm.org.apache.spark.storage.RDDBlockId(rdd, number) for number in range(4)]
    return any(manager.getStatus(block_id).isDefined() for block_id in block_ids)


@pytest.fixture
def session(rig: Rig) -> Iterator[SparkSession]:
    session = rig.session
    assert stored_rdds(session) == []
    yield session
    assert stored_rdds(session) == []


async def test_stored_rows_are_read_in_their_order_in_pieces_and_are_removed_at_the_end(
    rig: Rig, session: SparkSession
) -> None:
    rows = numbers(session).withColumn("text", F.concat(F.lit("é"), "id"))
    pieces: list[pa.RecordBatch] = []
    for piece in read_arrow_batches(rows, is_small=False, has_bounded_spark_partitions=False):
        (rdd,) = stored_rdds(session)
        pieces.append(piece)
    assert max(piece.num_rows for piece in pieces) == STORED_ARROW_BATCH_ROWS_MAX
    assert pa.Table.from_batches(pieces).equals(rows.toArrow())
    await rig.wait_until(lambda: not has_blocks(session, rdd))


@pytest.mark.parametrize("pieces_read", [1, 2])
async def test_stored_rows_are_removed_when_the_reader_stops(rig: Rig, session: SparkSession, pieces_read: int) -> None:
    """In the middle of the first Spark partition, and at its end."""
    rows = SeparatedRows(read_arrow_batches(numbers(session), is_small=False, has_bounded_spark_partitions=False))
    good_rows = rows.read_good_rows()
    for _ in range(pieces_read):
        next(good_rows)
    (rdd,) = stored_rdds(session)
    assert has_blocks(session, rdd)
    rows.close()
    assert stored_rdds(session) == []
    await rig.wait_until(lambda: not has_blocks(session, rdd))


async def test_nothing_stays_stored_of_rows_that_fail_or_are_lost(rig: Rig, session: SparkSession) -> None:
    failing = numbers(session).select(F.when(F.col("id") == ROWS - 1, F.raise_error(F.lit("no row"))).otherwise("id"))
    with pytest.raises(Exception, match="no row"):
        list(read_arrow_batches(failing, is_small=False, has_bounded_spark_partitions=False))
    assert stored_rdds(session) == []
    java: Any = session._jvm
    partitions = store_and_yield_arrow_partitions(numbers(session))
    next(partitions)
    (rdd,) = stored_rdds(session)
    java.org.apache.spark.SparkEnv.get().blockManager().removeBlock(
        java.org.apache.spark.storage.RDDBlockId(rdd, 1), True
    )
    with pytest.raises(UnreachableError, match="stored rows of Spark partition 1 are lost"):
        next(partitions)
    await rig.wait_until(lambda: not has_blocks(session, rdd))


async def test_the_rows_of_each_piece_are_converted_and_freed_before_the_next_piece(
    rig: Rig, session: SparkSession
) -> None:
    """The conversion to Spark's internal form uses memory outside the heap of the JVM."""
    java: Any = session._jvm
    allocator = getattr(getattr(java.org.apache.spark.sql.util, "ArrowUtils$"), "MODULE$").rootAllocator()
    rows = numbers(session).withColumn("text", F.repeat(F.lit("x"), 1000))
    counts: list[int] = []
    with closing(store_and_yield_arrow_partitions(rows)) as partitions:
        for partition in partitions:
            for converted_rows in arrow_batches_to_internal_rows(rows, partition):
                assert converted_rows.hasNext()
                assert 0 < allocator.getAllocatedMemory() < 3 * STORED_ARROW_BATCH_ROWS_MAX * 1000
                # The first piece is not read to its end.
                counts.append(converted_rows.size() if counts else STORED_ARROW_BATCH_ROWS_MAX)
    assert sum(counts) == rows.count() > 3 * STORED_ARROW_BATCH_ROWS_MAX
    assert allocator.getAllocatedMemory() == 0


READER = """
import sys
from pathlib import Path
from coterie.spark.arrow import read_arrow_batches
from coterie.spark.session import start_driver
from coterie.spark.settings import SparkConfig

path, scratch, heap = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
config = SparkConfig(
    checkpoint_location=scratch,
    scratch_folder=scratch,
    jvm_log_file=scratch / "spark.log",
    user_settings={"spark.master": "local[2]", "spark.driver.memory": heap},
)
driver = start_driver(config, print)
rows = driver.spark.read.text(str(path))
assert rows.rdd.getNumPartitions() == 1
print(sum(batch.num_rows for batch in read_arrow_batches(rows, is_small=False, has_bounded_spark_partitions=False)))
driver.close()
"""


async def test_a_compressed_file_larger_than_the_memory_of_the_jvm_is_read(tmp_path: Path) -> None:
    """Spark cannot divide a gzip file: it is one Spark partition."""
    lines, line = 600_000, b"x" * 999 + b"\n"
    with gzip.open(tmp_path / "a.txt.gz", "wb", compresslevel=1) as file:
        for _ in range(lines // 1000):
            file.write(line * 1000)
    # Less than 450 MB Spark refuses.
    command = [sys.executable, "-c", READER, str(tmp_path / "a.txt.gz"), str(tmp_path / "scratch"), "512m"]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=150, check=False)
    assert ended.stdout == f"{lines}\n", ended.stderr[-2000:]
