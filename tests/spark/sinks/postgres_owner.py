"""An owner of a task that writes to PostgreSQL, as a process without Spark that can be killed or stopped in a batch.

Arguments: the sink's keys as JSON, the task's start, the batch's number, its first row, the parent's process id.
It takes over, prints ``owns``, and at the next line on stdin stages the batch: it sends a piece of rows, prints
``inside``, sends the other piece at the next line, prints ``staged``, and commits at the next. It prints ``done`` or
``fenced``.
"""

import json
import sys
from collections.abc import Iterator

import pyarrow as pa

from coterie.spark.fence import FencedError
from coterie.spark.sinks.postgres_writer import PostgresWriter
from tests.spark.sinks.owner_process import wait_at
from tests.spark.sinks.postgres_rows import LINEAGE, ROWS, SCHEMA, divided, piece, target_of
from tests.spark.task_process import end_with, print_line


def pieces(first: int) -> Iterator[pa.RecordBatch]:
    yield piece(first, ROWS // 2)
    wait_at("inside")
    yield piece(first + ROWS // 2, ROWS // 2)


def main(keys: dict[str, str], start: int, batch_id: int, first: int) -> None:
    writer = PostgresWriter(target_of(keys), LINEAGE, start)
    try:
        writer.take_over()
        wait_at("owns")
        staged = writer.stage(batch_id, SCHEMA, divided(lambda: pieces(first)))
        wait_at("staged")
        staged.commit()
        wait_at("done")
    except FencedError:
        print_line("fenced")
    finally:
        writer.close()


if __name__ == "__main__":
    end_with(int(sys.argv[5]))
    main(json.loads(sys.argv[1]), *(int(word) for word in sys.argv[2:5]))
