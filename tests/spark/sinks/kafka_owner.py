"""An owner of a task that writes to Kafka, as a process without Spark that can be killed or stopped inside a batch.

Arguments: the sink's keys as JSON, the folder of jars, the batch's number, the parent's process id.
It takes over, prints ``owns``, and at the next line on stdin stages the batch: it sends half of the rows, prints
``inside``, sends the rest at the next line, prints ``staged``, and commits at the next. It prints ``done`` or
``fenced``.
"""

import json
import sys
from pathlib import Path

from coterie.spark.fence import FencedError
from coterie.spark.sinks.kafka_writer import KafkaWriter
from tests.spark.sinks.kafka_jvm import Producers, running_jvm
from tests.spark.sinks.kafka_rows import LINEAGE, ROWS, numbered, target_of
from tests.spark.sinks.owner_process import wait_at
from tests.spark.task_process import end_with, print_line


def inside() -> None:
    wait_at("inside")


def main(keys: dict[str, str], jars: Path, batch_id: int) -> None:
    with running_jvm(jars) as java:
        writer = KafkaWriter(target_of(keys), LINEAGE, java, Producers(java))
        try:
            writer.take_over()
            wait_at("owns")
            staged = writer.stage(batch_id, numbered(java, keys["topic"], batch_id * ROWS, inside))
            wait_at("staged")
            staged.commit()
            wait_at("done")
        except FencedError:
            print_line("fenced")
        finally:
            writer.close()


if __name__ == "__main__":
    end_with(int(sys.argv[4]))
    main(json.loads(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
