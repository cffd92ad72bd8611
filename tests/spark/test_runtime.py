"""Tasks on a real Spark session: starts, stops and failures."""

import asyncio
import errno
import os
from collections import Counter
from pathlib import Path

import pytest

from coterie.herder.seams import TaskProgressed
from coterie.nouns.errors import WorldError
from coterie.spark.checkpoint import (
    find_batch_id_in_flight,
    is_checkpoint_taken_over_or_absent,
    last_batch_id_in_log,
    take_over_checkpoint,
)
from coterie.spark.sinks.files import FileSink
from tests.spark.conftest import Rig, rows_of, write_file

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]


@pytest.mark.parametrize("format_", ["json", "parquet"])
async def test_rows_are_filtered_and_cast_and_each_file_is_read_by_one_task(
    rig: Rig, tmp_path: Path, format_: str
) -> None:
    config = rig.config(
        tmp_path,
        tasks__max="3",
        sink__format=format_,
        transforms="flown,typed",
        transforms__flown__type="Filter",
        transforms__flown__condition="delay IS NOT NULL",
        transforms__typed__type="Cast",
        transforms__typed__spec="distance:double",
    )
    for number in range(9):
        write_file(
            tmp_path / "in", f"{number} ü%.csv", [(number * 10 + i, None if i == 3 else 1.5, i) for i in range(10)]
        )
    assert await rig.config_errors(config, ()) == {}
    starts = [await rig.start(config, format_, index) for index in range(3)]
    expected = sorted(row for row in range(90) if row % 10 != 3)
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == expected)
    for start in starts:
        await rig.runtime.stop(start.task, grace_ms=10_000)
    assert rows_of(tmp_path / "out") == expected
    assert os.listdir(tmp_path / ".out.coterie" / "staged") == []


def replace_folder_by_file(out: Path) -> None:
    """Replace an empty sink folder by a plain file."""
    out.rmdir()
    out.write_text("in the way")


async def test_a_trigger_without_new_files_counts_as_progress(rig: Rig, tmp_path: Path) -> None:
    write_file(tmp_path / "in", "a.csv", [(1, 1.0, 1)])
    start = await rig.start(rig.config(tmp_path, trigger__interval__ms="200"), "idle")
    rows: list[int] = []
    async with asyncio.timeout(60):
        while rows[-1:] != [0]:
            event = await rig.runtime.next_event()
            if isinstance(event, TaskProgressed) and event.task == start.task:
                rows.append(event.input_rows)
    await rig.runtime.stop(start.task, grace_ms=5_000)


async def test_a_graceful_stop_commits_the_batch_and_the_next_start_continues(rig: Rig, tmp_path: Path) -> None:
    config = rig.config(tmp_path, source__max__files__per__trigger="1")
    for number in range(20):
        write_file(tmp_path / "in", f"{number}.csv", [(number, 1.0, 1)])
    for round_ in range(4):
        start = await rig.start(config, "graceful")
        held = rig.spark_runtime.held_checkpoint(start.task)
        assert held is not None
        assert held.task_start_number == round_ + 1
        await rig.wait_until(lambda: (last_batch_id_in_log(held.path / "commits") or 0) >= round_ * 3 + 2)  # noqa: B023
        await rig.runtime.stop(start.task, grace_ms=30_000)
        assert find_batch_id_in_flight(held.path) is None
        assert rig.spark_runtime.held_checkpoint(start.task) is None
    start = await rig.start(config, "graceful")
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == list(range(20)))
    await rig.runtime.stop(start.task, grace_ms=5_000)


async def test_each_task_has_its_own_pool_in_sparks_scheduler(rig: Rig, tmp_path: Path) -> None:
    write_file(tmp_path / "in", "a.csv", [(1, 1.0, 1)])
    start = await rig.start(rig.config(tmp_path), "pooled")
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == [1])
    context = rig.session._jsparkSession.sparkContext()
    assert str(context.getSchedulingMode()) == "FAIR"
    assert context.getPoolForName(str(start.task)).isDefined()
    assert not context.getPoolForName("a task that never ran").isDefined()
    await rig.runtime.stop(start.task, grace_ms=5_000)


async def test_an_idle_query_whose_checkpoint_was_taken_is_reported_and_ends(rig: Rig, tmp_path: Path) -> None:
    write_file(tmp_path / "in", "a.csv", [(1, 1.0, 1)])
    start = await rig.start(rig.config(tmp_path), "taken")
    held = rig.spark_runtime.held_checkpoint(start.task)
    assert held is not None
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == [1])
    take_over_checkpoint(held.path.parent)
    assert is_checkpoint_taken_over_or_absent(held.path)
    assert not (await rig.end_of(start.task)).holds_checkpoint


async def test_a_failed_query_can_be_restarted_on_the_same_checkpoint(rig: Rig, tmp_path: Path) -> None:
    """The output folder cannot be written for a time."""
    start = await rig.start(rig.config(tmp_path), "revived")
    held = rig.spark_runtime.held_checkpoint(start.task)
    assert held is not None
    replace_folder_by_file(tmp_path / "out")
    write_file(tmp_path / "in", "a.csv", [(1, 1.0, 1)])
    died = await rig.end_of(start.task)
    assert (died.holds_checkpoint, died.can_restart) == (True, True)
    cause = f"Batch 0 failed: sink.path={tmp_path / 'out'} cannot be used: {tmp_path / 'out'}: File exists. This worker"
    assert died.trace.startswith(cause)
    assert last_batch_id_in_log(held.path / "offsets") == 0
    (tmp_path / "out").unlink()
    await rig.runtime.restart(start.task)
    await rig.wait_until(lambda: (tmp_path / "out").is_dir() and rows_of(tmp_path / "out") == [1])
    assert rig.spark_runtime.held_checkpoint(start.task) == held
    await rig.runtime.stop(start.task, grace_ms=5_000)


async def test_a_failed_restart_can_be_repeated_after_any_error(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").write_text("in the way")
    start = await rig.start(rig.config(tmp_path), "left-for-dead")

    def stale(*_: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(FileSink, "take_over", stale)
    write_file(tmp_path / "in", "a.csv", [(1, 1.0, 1)])
    assert (await rig.end_of(start.task)).holds_checkpoint
    for _ in range(2):
        await rig.runtime.restart(start.task)
        died = await rig.end_of(start.task)
        assert (died.holds_checkpoint, died.can_restart) == (True, True)
        assert died.trace.startswith("The query did not start: Stale file handle")
    await rig.runtime.stop(start.task, grace_ms=0)
    with pytest.raises(WorldError, match="it has no failed query here that still holds the checkpoint"):
        await rig.runtime.restart(start.task)


# -- bad input --------------------------------------------------------------------------------------------------------


async def error_of_failed_task(rig: Rig, config: dict[str, str], name: str) -> str:
    start = await rig.start(config, name)
    event = await rig.end_of(start.task)
    assert event.holds_checkpoint
    await rig.runtime.stop(start.task, grace_ms=0)
    return event.trace


@pytest.mark.parametrize("name", ["a{b,c}.csv", "a[b].csv", "a*.csv", "a?.csv", "a\\b.csv"])
async def test_a_file_with_a_glob_character_fails_the_task_by_name(rig: Rig, tmp_path: Path, name: str) -> None:
    write_file(tmp_path / "in", "ab.csv", [(1, 1.0, 1)])
    write_file(tmp_path / "in", name, [(2, 1.0, 1)])
    trace = await error_of_failed_task(rig, rig.config(tmp_path), f"glob-{ord(name[1])}")
    assert str(tmp_path / "in" / name) in trace
    assert rows_of(tmp_path / "out") == []


async def test_a_file_that_was_deleted_after_planning_fails_the_task_by_name(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").write_text("in the way until the file is gone")
    monkeypatch.setattr(FileSink, "take_over", lambda *_: None)
    write_file(tmp_path / "in", "stays.csv", [(1, 1.0, 1)])
    gone = write_file(tmp_path / "in", "goes.csv", [(2, 1.0, 1)])
    config = rig.config(tmp_path)
    start = await rig.start(config, "vanished")
    held = rig.spark_runtime.held_checkpoint(start.task)
    assert held is not None
    await rig.wait_until(lambda: last_batch_id_in_log(held.path / "offsets") == 0)
    await rig.runtime.stop(start.task, grace_ms=0)
    monkeypatch.undo()
    gone.unlink()
    (tmp_path / "out").unlink()
    assert str(gone) in await error_of_failed_task(rig, config, "vanished")
    assert rows_of(tmp_path / "out") == []

    write_file(tmp_path / "in", "goes.csv", [(2, 1.0, 1)])
    start = await rig.start(config, "vanished")
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == [1, 2])
    await rig.runtime.stop(start.task, grace_ms=5_000)


async def test_a_malformed_line_fails_the_task_with_its_file(rig: Rig, tmp_path: Path) -> None:
    write_file(tmp_path / "in", "good.csv", [(1, 1.0, 1)])
    bad = tmp_path / "in" / "bad.csv"
    bad.write_text("row,delay,distance\n2,1.0,1\n3,not a number,1\n")
    cause = (await error_of_failed_task(rig, rig.config(tmp_path), "malformed")).splitlines()[0]
    assert bad.name in cause
    assert "Malformed records are detected in record parsing: [3,null,1]" in cause
    assert rows_of(tmp_path / "out") == []
    json = {"source.format": "json", "source.path": str(tmp_path / "json")}
    cut_off = write_file(tmp_path / "json", "cut off.json", [])
    cut_off.write_text('{"row": 1, "delay": 1.0, "distance": 2}\n{"row": 2, "del\n')
    config = {key: value for key, value in rig.config(tmp_path).items() if not key.startswith("source.option")} | json
    cause = (await error_of_failed_task(rig, config, "malformed-json")).splitlines()[0]
    assert "cut%20off.json" in cause
    assert "Malformed records are detected in record parsing" in cause


async def test_a_header_with_other_columns_fails_the_task(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "swapped.csv").write_text("row,distance,delay\n1,2,3\n")
    cause = (await error_of_failed_task(rig, rig.config(tmp_path), "header")).splitlines()[0]
    assert cause.startswith("Batch 0 failed: ")
    assert "CSV header does not conform to the schema. Header: row, distance, delay" in cause
    assert "swapped.csv" in cause


async def test_a_missing_source_folder_fails_the_task_by_name(rig: Rig, tmp_path: Path) -> None:
    config = rig.config(tmp_path)
    (tmp_path / "in").rmdir()
    cause = (await error_of_failed_task(rig, config, "missing")).splitlines()[0]
    assert cause == f"The query did not start: [PATH_NOT_FOUND] Path does not exist: {tmp_path / 'in'}."


async def test_a_file_of_any_age_is_read(rig: Rig, tmp_path: Path) -> None:
    config = rig.config(tmp_path)
    write_file(tmp_path / "in", "new.csv", [(1, 1.0, 1)])
    start = await rig.start(config, "old")
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == [1])
    aside = write_file(tmp_path / "aside", "old.csv", [(2, 1.0, 1)])
    os.utime(aside, (1_000_000_000, 1_000_000_000))
    aside.rename(tmp_path / "in" / "old.csv")
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == [1, 2])
    await rig.runtime.stop(start.task, grace_ms=5_000)


# -- effects ----------------------------------------------------------------------------------------------------------


async def test_a_replayed_batch_is_written_once(rig: Rig, tmp_path: Path) -> None:
    config = rig.config(tmp_path, source__max__files__per__trigger="1")
    for number in range(4):
        write_file(tmp_path / "in", f"{number}.csv", [(number, 1.0, 1)])
    start = await rig.start(config, "replay")
    held = rig.spark_runtime.held_checkpoint(start.task)
    assert held is not None
    await rig.wait_until(lambda: last_batch_id_in_log(held.path / "commits") == 3)
    await rig.runtime.stop(start.task, grace_ms=5_000)
    (held.path / "commits" / "3").unlink()

    start = await rig.start(config, "replay")
    again = rig.spark_runtime.held_checkpoint(start.task)
    assert again is not None
    assert again.batch_id_in_flight == 3
    await rig.wait_until(lambda: last_batch_id_in_log(again.path / "commits") == 3)
    await rig.runtime.stop(start.task, grace_ms=5_000)
    assert Counter(rows_of(tmp_path / "out")) == Counter(range(4))


async def test_batches_without_rows_write_no_file(rig: Rig, tmp_path: Path) -> None:
    for format_ in ("json", "parquet"):
        folder = tmp_path / format_
        config = rig.config(
            folder,
            sink__format=format_,
            transforms="none",
            transforms__none__type="Filter",
            transforms__none__condition="row < 0",
        )
        write_file(folder / "in", "a.csv", [(1, 1.0, 1)])
        start = await rig.start(config, f"empty-{format_}")
        held = rig.spark_runtime.held_checkpoint(start.task)
        assert held is not None
        await rig.wait_until(lambda: last_batch_id_in_log(held.path / "commits") == 0)  # noqa: B023
        await rig.runtime.stop(start.task, grace_ms=5_000)
        assert os.listdir(folder / "out") == []


async def test_no_effect_follows_a_stop_without_grace(rig: Rig, tmp_path: Path) -> None:
    config = rig.config(tmp_path, source__max__files__per__trigger="1")
    for number in range(20):
        write_file(tmp_path / "in", f"{number}.csv", [(number, 1.0, 1)])
    start = await rig.start(config, "abrupt")
    await rig.wait_until(lambda: len(rows_of(tmp_path / "out")) > 0)
    await rig.runtime.stop(start.task, grace_ms=0)
    before = rows_of(tmp_path / "out")
    await asyncio.sleep(0.3)
    assert rows_of(tmp_path / "out") == before
    start = await rig.start(config, "abrupt")
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == list(range(20)))
    await rig.runtime.stop(start.task, grace_ms=5_000)
