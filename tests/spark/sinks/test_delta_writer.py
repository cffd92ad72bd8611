"""A batch is in a real Delta table once, even if owners are killed, freeze or resume."""

import contextlib
import errno
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from pyspark.sql.types import (
    BooleanType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from coterie.nouns.errors import UnreachableError, WorldError
from coterie.spark.fence import FencedError
from coterie.spark.prefixed_config import SINK_PREFIX, PrefixedConfig
from coterie.spark.sinks.delta_check import find_first_table_error
from coterie.spark.sinks.delta_columns import DeltaTableLayout
from coterie.spark.sinks.delta_files import write_parquet_by_arrow
from coterie.spark.sinks.delta_table import CommitAction, shared_table_at
from coterie.spark.sinks.delta_target import LOG_FOLDER
from coterie.spark.sinks.delta_writer import STAGING_FOLDER, DeltaWriter
from tests.spark.sinks.delta_rows import LINEAGE, ROWS, SCHEMA, append, arrow, rows_of, target_of, versions, write
from tests.spark.sinks.owner_process import OwnerProcess

POINTS = ("owns", "inside", "staged", "looked", "committed")
"""Before the batch, inside its files, before the check, before the commit, and after it but before Spark's commit."""


def numbers(batches: int) -> list[int]:
    return list(range(batches * ROWS))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A folder for a table, with a name that is not valid in a URL."""
    return tmp_path / "a table 100% é"


@pytest.fixture
def own(path: Path) -> Callable[..., DeltaWriter]:
    """A function that takes the task over, with changed keys."""

    def owner(kind: type[DeltaWriter] = DeltaWriter, *, at: Path = path, **changes: str) -> DeltaWriter:
        writer = kind(target_of(at, {key.replace("__", "."): value for key, value in changes.items()}), LINEAGE)
        writer.remove_earlier_staged_files()
        return writer

    return owner


@pytest.fixture
def elsewhere(path: Path) -> Path:
    """Another name of the same folder, so that one process has two views of the table as two processes have."""
    path.mkdir()
    link = path.with_name("link")
    link.symlink_to(path)
    return link


def at_once(run: Callable[[DeltaWriter], object], writers: Sequence[DeltaWriter]) -> None:
    with ThreadPoolExecutor(len(writers)) as threads:
        list(threads.map(run, writers))


@pytest.fixture
def start_process(path: Path) -> Iterator[Callable[[int], OwnerProcess]]:
    """A function that starts an owner of one batch."""
    with contextlib.ExitStack() as stack:

        def process(batch_id: int) -> OwnerProcess:
            started = OwnerProcess("delta_owner", str(path), str(batch_id))
            stack.callback(started.end)
            return started

        yield process


# -- exactly once -----------------------------------------------------------------------------------------------------


def test_a_batch_is_visible_only_after_it_was_put_in_place(path: Path, own: Callable[..., DeltaWriter]) -> None:
    writer = own()
    staged = writer.stage_files(
        0, writer.check_or_create_table(SCHEMA), partial(write_parquet_by_arrow, arrow(0, ROWS), partition_columns=())
    )
    assert rows_of(path) == []
    staged.commit()
    staged.clean_up()
    assert rows_of(path) == numbers(1)
    assert list((path / STAGING_FOLDER).iterdir()) == []


def test_a_replay_writes_nothing_and_another_lineage_counts_its_own_batches(
    path: Path, own: Callable[..., DeltaWriter]
) -> None:
    for _ in range(2):
        writer = own()
        write(writer, 0)
        write(writer, 1)
        write(writer, 0)
    assert rows_of(path) == numbers(2)
    assert versions(path) == 3
    assert DeltaTable(str(path)).transaction_version("my/é-2/l") == 1
    write(DeltaWriter(target_of(path, {}), replace(LINEAGE, lineage_id="m")), 0)
    assert len(rows_of(path)) == 3 * ROWS


class WithoutTransaction(DeltaWriter):
    """A mutant whose commits do not contain the batch's number."""

    def commit(self, batch_id: int, layout: DeltaTableLayout, action: CommitAction) -> None:
        super().commit(batch_id, layout, lambda table, _: action(table, CommitProperties(max_commit_retries=0)))


class WithoutLook(DeltaWriter):
    """A mutant that passes the number to deltalake and does not check it."""

    def commit(self, batch_id: int, layout: DeltaTableLayout, action: CommitAction) -> None:
        batch = Transaction(self._application_id, batch_id)
        action(DeltaTable(str(self._target.path)), CommitProperties(max_commit_retries=0, app_transactions=[batch]))


@pytest.mark.parametrize("mutant", [WithoutTransaction, WithoutLook])
def test_without_the_ledger_a_replay_doubles_every_row(
    path: Path, own: Callable[..., DeltaWriter], mutant: type[DeltaWriter]
) -> None:
    """Shows that the previous test can fail, and that deltalake does not refuse a batch because of its number."""
    for _ in range(2):
        write(own(mutant), 0)
    assert len(rows_of(path)) == 2 * ROWS


def test_of_two_concurrent_owners_the_first_one_commits_each_batch(
    path: Path, elsewhere: Path, own: Callable[..., DeltaWriter]
) -> None:
    one, other = own(), own(at=elsewhere)
    write(one, 0)

    def run(writer: DeltaWriter) -> None:
        for batch_id in range(20):
            write(writer, batch_id)

    at_once(run, (one, other))
    assert rows_of(path) == numbers(20)
    assert versions(path) == 21


def test_concurrent_commits_of_tasks_of_several_workers_lose_nothing(
    path: Path, elsewhere: Path, own: Callable[..., DeltaWriter]
) -> None:
    write(own(), 0)
    tasks = [
        DeltaWriter(target_of(at, {}), replace(LINEAGE, lineage_id=f"{at.name} {number}"))
        for number in range(2)
        for at in (path, elsewhere)
    ]

    def run(writer: DeltaWriter) -> None:
        for batch_id in range(10):
            write(writer, batch_id)

    at_once(run, tasks)
    assert len(rows_of(path)) == ROWS + len(tasks) * 10 * ROWS


# -- owners that are killed or freeze ---------------------------------------------------------------------------------


def run_to(process: OwnerProcess, point: str) -> None:
    for word in POINTS:
        process.wait_for_word(word)
        if word == point:
            return
        process.go_on()


@pytest.mark.parametrize("point", POINTS)
def test_an_owner_that_is_killed_at_a_point_loses_and_doubles_nothing(
    path: Path, own: Callable[..., DeltaWriter], start_process: Callable[[int], OwnerProcess], point: str
) -> None:
    process = start_process(0)
    run_to(process, point)
    assert rows_of(path) == (numbers(1) if point == "committed" else [])
    process.end()
    write(own(), 0)
    assert rows_of(path) == numbers(1)
    assert list((path / STAGING_FOLDER).iterdir()) == []


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("point", POINTS)
def test_owners_that_are_killed_repeatedly_at_a_point_lose_and_double_nothing(
    path: Path, own: Callable[..., DeltaWriter], start_process: Callable[[int], OwnerProcess], point: str
) -> None:
    for batch_id in range(20):
        process = start_process(batch_id)
        run_to(process, point)
        assert rows_of(path) == numbers(batch_id + (point == "committed"))
        process.end()
        write(own(), batch_id)
        assert rows_of(path) == numbers(batch_id + 1)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_owners_that_freeze_repeatedly_before_the_commit_double_nothing(
    path: Path, own: Callable[..., DeltaWriter], start_process: Callable[[int], OwnerProcess]
) -> None:
    for batch_id in range(20):
        process = start_process(batch_id)
        run_to(process, "looked")
        os.kill(process.process.pid, signal.SIGSTOP)
        write(own(), batch_id)
        os.kill(process.process.pid, signal.SIGCONT)
        process.go_on()
        process.wait_for_word("done")
        process.end()
        assert rows_of(path) == numbers(batch_id + 1)
    assert versions(path) == 21


def test_an_owner_stopped_between_the_check_and_the_commit_doubles_nothing_when_it_continues(
    path: Path, own: Callable[..., DeltaWriter], start_process: Callable[[int], OwnerProcess]
) -> None:
    process = start_process(0)
    run_to(process, "looked")
    os.kill(process.process.pid, signal.SIGSTOP)
    new = own()
    write(new, 0)
    write(new, 1)
    os.kill(process.process.pid, signal.SIGCONT)
    process.go_on()
    # Its commit fails, and it checks the table again.
    process.wait_for_word("done")
    assert rows_of(path) == numbers(2)
    DeltaTable(str(path)).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert len(list(path.glob("part-*"))) == 2, "VACUUM leaves the files of a commit that failed"


def test_an_owner_whose_files_were_removed_commits_nothing(path: Path, own: Callable[..., DeltaWriter]) -> None:
    old = own()
    staged = old.stage_files(
        0, old.check_or_create_table(SCHEMA), partial(write_parquet_by_arrow, arrow(0, ROWS), partition_columns=())
    )
    new = own()
    with pytest.raises(FencedError):
        staged.commit()
    staged.clean_up()
    assert rows_of(path) == []
    write(new, 0)
    assert rows_of(path) == numbers(1)


# -- the table --------------------------------------------------------------------------------------------------------


def test_other_changes_of_the_table_affect_no_batch(path: Path, own: Callable[..., DeltaWriter]) -> None:
    writer = own()
    for batch_id in range(4):
        write(writer, batch_id)
        other = DeltaTable(str(path))
        other.optimize.compact()
        other.create_checkpoint()
        other.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        other.cleanup_metadata()
        write(writer, batch_id)
    write(own(), 3)
    assert rows_of(path) == numbers(4)
    assert len(DeltaTable(str(path)).file_uris()) == 1


def test_a_table_that_was_changed_during_a_batch_is_read_again(path: Path, own: Callable[..., DeltaWriter]) -> None:
    writer = own()
    write(writer, 0)
    files = partial(write_parquet_by_arrow, arrow(ROWS, ROWS), partition_columns=())
    staged = writer.stage_files(1, writer.check_or_create_table(SCHEMA), files)
    DeltaTable(str(path)).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(UnreachableError, match="was changed or removed while batch 1 was written"):
        staged.commit()
    write(writer, 1)
    assert rows_of(path) == numbers(2)


@pytest.mark.parametrize(
    ("failure", "waits"),
    [
        (OSError(errno.ESTALE, "Stale file handle"), True),
        (OSError("Generic LocalFileSystem error: Unable to open file: Input/output error (os error 5)"), True),
        (OSError("Generic LocalFileSystem error: Unable to open file: Permission denied (os error 13)"), False),
        (CommitFailedError("Failed to commit transaction: No space left on device (os error 28)"), False),
        (DeltaError("Generic DeltaTable error: a function of the user failed"), False),
    ],
)
def test_a_task_waits_only_for_an_unreachable_file_system(
    path: Path, own: Callable[..., DeltaWriter], failure: Exception, waits: bool
) -> None:
    """A permanent error fails the batch: with errors.retry.timeout=-1 it would be retried forever."""
    writer = own()
    write(writer, 0)

    def fail(*_: object) -> None:
        raise failure

    with pytest.raises(UnreachableError if waits else OSError, match="the commit of batch 1 failed: ") as caught:
        writer.commit(1, writer.check_or_create_table(SCHEMA), fail)
    assert isinstance(caught.value, UnreachableError) == waits
    write(writer, 1)
    assert rows_of(path) == numbers(2)


def test_a_task_that_retries_a_commit_lets_others_write_meanwhile(
    path: Path, own: Callable[..., DeltaWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = own()
    write(writer, 0)
    conflicts = [CommitFailedError("a commit of another process came first")] * 3
    pauses: list[float] = []

    def look_elsewhere(pause_s: float) -> None:
        pauses.append(pause_s)
        with ThreadPoolExecutor(1) as other:
            assert other.submit(shared_table_at(path).read_newest_layout).result(10) is not None

    def act(table: DeltaTable, properties: CommitProperties) -> None:
        if conflicts:
            raise conflicts.pop()

    monkeypatch.setattr("coterie.spark.sinks.delta_table.time.sleep", look_elsewhere)
    writer.commit(1, writer.check_or_create_table(SCHEMA), act)
    assert len(pauses) == 3
    assert min(pauses) >= 0
    assert max(pauses) <= 0.2


def test_a_commit_delays_no_validation_and_other_tasks_for_a_limited_time(
    path: Path, own: Callable[..., DeltaWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = own()
    write(writer, 0)
    monkeypatch.setattr("coterie.spark.sinks.delta_table.COMMIT_TIMEOUT_S", 0.2)
    end = PrefixedConfig(config={"path": str(path)}, prefix=SINK_PREFIX, is_prefix_optional=True)
    spark: Any = None

    def act(*_: object) -> None:
        with ThreadPoolExecutor(1) as other:
            assert other.submit(find_first_table_error, spark, end).result(10) == {}
            with pytest.raises(
                UnreachableError, match=r"other tasks of this worker have been writing to it for 0\.2 s"
            ):
                other.submit(shared_table_at(path).read_newest_layout).result(10)

    writer.commit(1, writer.check_or_create_table(SCHEMA), act)


def test_a_recreated_table_is_another_table(path: Path, own: Callable[..., DeltaWriter]) -> None:
    writer = own()
    for batch_id in range(3):
        write(writer, batch_id)
    path.rename(path.with_name("away"))
    write(writer, 3)
    assert rows_of(path) == list(range(3 * ROWS, 4 * ROWS))
    assert versions(path) == 2


def test_a_table_with_a_feature_that_deltalake_cannot_read_is_written_by_spark(
    path: Path, own: Callable[..., DeltaWriter]
) -> None:
    write(own(), 0)
    features = ["magic"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    (path / LOG_FOLDER / f"{versions(path):020}.json").write_text(json.dumps({"protocol": protocol}))
    layout = own().check_or_create_table(SCHEMA)
    assert layout.columns is None
    assert "'magic' is not supported" in (layout.spark_only_reason or "")


def test_two_tasks_that_find_no_table_create_only_one(
    path: Path, elsewhere: Path, own: Callable[..., DeltaWriter]
) -> None:
    at_once(lambda writer: writer.check_or_create_table(SCHEMA), [own(at=at) for at in (path, elsewhere) * 4])
    assert versions(path) == 1


def test_a_compaction_keeps_the_rows_in_fewer_files(path: Path, own: Callable[..., DeltaWriter]) -> None:
    writer = own()
    for batch_id in range(5):
        write(writer, batch_id)
    shared_table_at(path).merge_small_files()
    write(writer, 4)
    write(writer, 5)
    assert rows_of(path) == numbers(6)
    assert len(DeltaTable(str(path)).file_uris()) == 2


# -- rows -------------------------------------------------------------------------------------------------------------


def test_upsert_keeps_the_last_row_of_each_key_over_batches_and_replays(
    path: Path, own: Callable[..., DeltaWriter]
) -> None:
    writer = own(insert__mode="upsert", pk__fields="row")

    def merge(batch_id: int, *rows: tuple[int, str]) -> None:
        table = pa.table({"row": pa.array([row for row, _ in rows], pa.int64()), "text": [text for _, text in rows]})
        writer.stage_merge(batch_id, writer.check_or_create_table(SCHEMA), table).commit()

    merge(0, (3, "a"), (1, "b"), (3, "c"))
    merge(1, (1, "d"), (2, "e"), (2, "f"))
    merge(0, (3, "a"), (1, "b"), (3, "c"))
    assert DeltaTable(str(path)).to_pyarrow_table().sort_by("row").to_pylist() == [
        {"row": 1, "text": "d"},
        {"row": 2, "text": "f"},
        {"row": 3, "text": "c"},
    ]
    assert versions(path) == 3
    with pytest.raises(WorldError, match=r"row 1 \(counted from 0\): column row is null"):
        writer.stage_merge(2, writer.check_or_create_table(SCHEMA), pa.table({"row": pa.array([1, None], pa.int64())}))


def test_concurrent_changes_of_the_same_rows_by_two_tasks_both_succeed(path: Path, elsewhere: Path) -> None:
    keys = {"insert.mode": "upsert", "pk.fields": "row"}
    tasks = [DeltaWriter(target_of(at, keys), replace(LINEAGE, lineage_id=at.name)) for at in (path, elsewhere)]
    tasks[0].check_or_create_table(SCHEMA)

    def run(writer: DeltaWriter) -> None:
        for batch_id in range(5):
            writer.stage_merge(batch_id, writer.check_or_create_table(SCHEMA), arrow(0, ROWS)).commit()

    at_once(run, tasks)
    assert rows_of(path) == numbers(1)
    assert versions(path) == 11


PARTITIONED = StructType(
    [
        StructField("row", LongType()),
        StructField("city", StringType()),
        StructField("day", DateType()),
        StructField("number", IntegerType()),
        StructField("is_late", BooleanType()),
        StructField("at", TimestampType()),
    ]
)


def test_partition_values_of_each_type_are_those_of_the_rows(path: Path, own: Callable[..., DeltaWriter]) -> None:
    rows = [
        {"row": 0, "city": "Zürich / a=b%20", "day": date(2026, 1, 31), "number": -7, "is_late": True},
        {"row": 1, "city": None, "day": None, "number": None, "is_late": None},
        {"row": 2, "city": "Zürich / a=b%20", "day": date(1969, 1, 31), "number": 8, "is_late": False},
    ]
    schema = pa.schema(
        {"row": pa.int64(), "city": pa.string(), "day": pa.date32(), "number": pa.int32(), "is_late": pa.bool_()}
    )
    columns = ("city", "day", "number", "is_late")
    table = pa.Table.from_pylist(rows, schema)
    writer = own(partition__field__name=",".join(columns))
    append(writer, 0, PARTITIONED, partial(write_parquet_by_arrow, table, partition_columns=columns))
    found = DeltaTable(str(path)).to_pyarrow_table(columns=list(schema.names)).sort_by("row")
    assert found.to_pylist() == rows
    assert DeltaTable(str(path)).metadata().partition_columns == list(columns)


def test_a_file_has_statistics_with_its_smallest_and_largest_values(
    path: Path, own: Callable[..., DeltaWriter]
) -> None:
    at = datetime(2026, 1, 1, 12, 0, 0, 123_456, tzinfo=UTC)
    table = pa.table(
        {
            "row": pa.array([5, None, 2], pa.int64()),
            "city": ["b", "x" * 100, None],
            "day": [date(2026, 1, 2), date(2026, 1, 1), None],
            "at": pa.array([at, at + timedelta(seconds=1), None], pa.timestamp("us", "America/New_York")),
        }
    )
    append(own(), 0, PARTITIONED, partial(write_parquet_by_arrow, table, partition_columns=()))
    found = pa.table(DeltaTable(str(path)).get_add_actions(flatten=True)).to_pylist()[0]
    assert found["num_records"] == 3
    assert (found["min.row"], found["max.row"], found["null_count.row"]) == (2, 5, 1)
    assert (found["min.day"], found["max.day"]) == (date(2026, 1, 1), date(2026, 1, 2))
    assert found["min.at"] == at
    assert found["max.at"] == at + timedelta(seconds=1)
    assert found["max.city"] is None, "too long a value must have no statistics"


# -- refusals ---------------------------------------------------------------------------------------------------------


def with_column(name: str, type_: object) -> StructType:
    return StructType([*SCHEMA.fields, StructField(name, type_)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schema", "keys", "words"),
    [
        (with_column("a b", LongType()), {}, "its name has a space"),
        (with_column("none", NullType()), {}, "Column none has type void"),
        (with_column("in", MapType(StringType(), NullType())), {}, "Column in has type map<string,void>"),
        (SCHEMA, {"partition.field.name": "day"}, "no column day, which is in partition.field.name"),
        (with_column("d", DoubleType()), {"partition.field.name": "d"}, "takes text, whole numbers"),
        (SCHEMA, {"partition.field.name": "text,row"}, "contains all columns"),
        (SCHEMA, {"auto.create": "false"}, "There is no Delta table in"),
        (SCHEMA, {"insert.mode": "upsert", "pk.fields": "id"}, "no column id, which is in pk.fields"),
    ],
)
def test_rows_for_which_no_table_can_be_created_are_refused(
    path: Path, schema: StructType, keys: dict[str, str], words: str
) -> None:
    with pytest.raises(WorldError, match=words):
        DeltaWriter(target_of(path, keys), LINEAGE).check_or_create_table(schema)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (with_column("more", LongType()), "has no column more \\(bigint\\); add the column"),
        (StructType([StructField("row", IntegerType())]), "Column row of .* has type bigint, and the rows have int"),
        (StructType([StructField("row", LongType())]), "is partitioned by text, and the rows have no such column"),
    ],
)
def test_rows_that_do_not_fit_into_the_table_are_refused(path: Path, schema: StructType, words: str) -> None:
    DeltaWriter(target_of(path, {"partition.field.name": "text"}), LINEAGE).check_or_create_table(SCHEMA)
    with pytest.raises(WorldError, match=words):
        DeltaWriter(target_of(path, {}), LINEAGE).check_or_create_table(schema)


def test_a_column_that_is_missing_in_the_rows_is_null(path: Path, own: Callable[..., DeltaWriter]) -> None:
    write(own(), 0)
    rows = pa.table({"row": pa.array([1000], pa.int64())})
    append(own(), 1, StructType([SCHEMA.fields[0]]), partial(write_parquet_by_arrow, rows, partition_columns=()))
    assert DeltaTable(str(path)).to_pyarrow_table().sort_by("row").to_pylist()[-1] == {"row": 1000, "text": None}
