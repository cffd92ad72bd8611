"""An owner of a task that writes to a Delta table, as a process without Spark: it can be killed or stopped in a batch.

Arguments: the table's folder, the batch's number, the parent's process id. It takes over and says ``owns``. At the next
line on stdin it writes a part of the files and says ``inside``; at the next line the rest, and ``staged``; at the next
it looks whether the table has the batch, and says ``looked`` unless it has; at the next line it commits, and says
``committed``. At the end of the batch it says ``done``, or ``fenced``.
"""

import sys
from pathlib import Path

from deltalake import CommitProperties, DeltaTable

from coterie.spark.fence import FencedError
from coterie.spark.sinks.delta_columns import Layout
from coterie.spark.sinks.delta_files import write_small
from coterie.spark.sinks.delta_table import Act
from coterie.spark.sinks.delta_writer import DeltaWriter
from tests.spark.holder import end_with, say
from tests.spark.sinks.delta_rows import LINEAGE, ROWS, SCHEMA, arrow, target_of


def wait() -> None:
    sys.stdin.readline()


class Pausing(DeltaWriter):
    """Waits between the look and the commit, and after the commit."""

    def commit(self, batch_id: int, layout: Layout, act: Act) -> None:
        def paused(table: DeltaTable, properties: CommitProperties) -> None:
            say("looked")
            wait()
            act(table, properties)
            say("committed")
            wait()

        super().commit(batch_id, layout, paused)


def main(path: Path, batch_id: int) -> None:
    def files(out: Path) -> None:
        write_small(arrow(batch_id * ROWS, ROWS // 2), out, ())
        (out / "part-0.parquet").rename(out / "part-1.parquet")
        say("inside")
        wait()
        write_small(arrow(batch_id * ROWS + ROWS // 2, ROWS // 2), out, ())

    writer = Pausing(target_of(path, {}), LINEAGE)
    writer.sweep()
    say("owns")
    wait()
    try:
        staged = writer.stage_files(batch_id, writer.fitting(SCHEMA), files)
        say("staged")
        wait()
        staged.put_in_place()
        say("done")
    except FencedError:
        say("fenced")


if __name__ == "__main__":
    end_with(int(sys.argv[3]))
    main(Path(sys.argv[1]), int(sys.argv[2]))
