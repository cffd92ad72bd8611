"""An owner of a task that writes to a Delta table, as a process without Spark that can be killed or stopped in a batch.

Arguments: the table's folder, the batch's number, the parent's process id. It takes over and prints ``owns``. At the
next line on stdin it writes a part of the files and prints ``inside``; at the next line the rest, and ``staged``; at
the next it checks whether the table has the batch, and prints ``looked`` unless it has; at the next line it commits,
and prints ``committed``. At the end of the batch it prints ``done``, or ``fenced``.
"""

import sys
from pathlib import Path

from deltalake import CommitProperties, DeltaTable

from coterie.spark.fence import FencedError
from coterie.spark.sinks.delta_columns import DeltaTableLayout
from coterie.spark.sinks.delta_files import write_parquet_by_arrow
from coterie.spark.sinks.delta_table import CommitAction
from coterie.spark.sinks.delta_writer import DeltaWriter
from tests.spark.sinks.delta_rows import LINEAGE, ROWS, SCHEMA, arrow, target_of
from tests.spark.sinks.owner_process import wait_at
from tests.spark.task_process import end_with, print_line


class Pausing(DeltaWriter):
    """Waits between the check of the table and the commit, and after the commit."""

    def commit(self, batch_id: int, layout: DeltaTableLayout, action: CommitAction) -> None:
        def paused(table: DeltaTable, properties: CommitProperties) -> None:
            wait_at("looked")
            action(table, properties)
            wait_at("committed")

        super().commit(batch_id, layout, paused)


def main(path: Path, batch_id: int) -> None:
    def files(out: Path) -> None:
        write_parquet_by_arrow(arrow(batch_id * ROWS, ROWS // 2), out, ())
        (out / "part-0.parquet").rename(out / "part-1.parquet")
        wait_at("inside")
        write_parquet_by_arrow(arrow(batch_id * ROWS + ROWS // 2, ROWS // 2), out, ())

    writer = Pausing(target_of(path, {}), LINEAGE)
    writer.remove_earlier_staged_files()
    wait_at("owns")
    try:
        staged = writer.stage_files(batch_id, writer.check_or_create_table(SCHEMA), files)
        wait_at("staged")
        staged.commit()
        print_line("done")
    except FencedError:
        print_line("fenced")


if __name__ == "__main__":
    end_with(int(sys.argv[3]))
    main(Path(sys.argv[1]), int(sys.argv[2]))
