"""Ownership of a checkpoint: claims, exchanges, the fallback, and many concurrent processes."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from coterie.nouns.errors import WorldError
from coterie.nouns.jobs import TASKS_PER_CONNECTOR_MAX
from coterie.spark import checkpoint
from coterie.spark.checkpoint import (
    ExchangeUnsupportedError,
    create_checkpoint_location_and_test_write,
    create_first_checkpoint_if_absent,
    exchange_names,
    is_checkpoint_taken_over_or_absent,
    safe_file_name,
    take_over_checkpoint,
    task_start_number_of,
)
from coterie.spark.runtime import SparkTaskRuntime
from coterie.spark.settings import SparkConfig

WAYS = pytest.mark.parametrize("exchange_allowed", [True, False], ids=["exchange", "rename"])


async def test_an_unusable_checkpoint_location_is_named_before_spark_starts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    location = tmp_path / "file" / "checkpoints"
    config = SparkConfig(
        checkpoint_location=location, scratch_folder=tmp_path / "scratch", jvm_log_file=tmp_path / "jvm.log"
    )
    runtime = SparkTaskRuntime(config)
    with pytest.raises(WorldError, match=f"^checkpoint.location={location} cannot be used: Not a directory; name"):
        await runtime.open()
    await runtime.close()
    assert not (tmp_path / "jvm.log").exists()


def test_a_missing_checkpoint_location_is_created_and_the_check_leaves_nothing_in_it(tmp_path: Path) -> None:
    create_checkpoint_location_and_test_write(tmp_path / "a" / "b")
    assert os.listdir(tmp_path / "a" / "b") == []


@WAYS
def test_the_next_start_takes_the_checkpoint_over_from_the_first_one(tmp_path: Path, exchange_allowed: bool) -> None:
    create_first_checkpoint_if_absent(tmp_path / "task")
    first = take_over_checkpoint(tmp_path / "task", tries_exchange_first=exchange_allowed)
    assert first.task_start_number == 1
    assert first.batch_id_in_flight is None
    assert not is_checkpoint_taken_over_or_absent(first.path)
    (first.path / "offsets").mkdir()
    (first.path / "offsets" / "0").write_text("plan")
    (first.path / "offsets" / ".1.tmp").write_text("half a plan")

    second = take_over_checkpoint(tmp_path / "task", tries_exchange_first=exchange_allowed)
    assert second.task_start_number == 2
    assert second.lineage_id == first.lineage_id
    assert second.batch_id_in_flight == 0
    assert is_checkpoint_taken_over_or_absent(first.path)
    assert first.path.is_file()
    assert os.listdir(second.path / "offsets") == ["0"]


def test_a_take_over_creates_no_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="No such file"):
        take_over_checkpoint(tmp_path / "task")
    assert not os.listdir(tmp_path)


def test_a_new_checkpoint_has_a_new_lineage(tmp_path: Path) -> None:
    for name in ("0", "1"):
        create_first_checkpoint_if_absent(tmp_path / name)
    assert take_over_checkpoint(tmp_path / "0").lineage_id != take_over_checkpoint(tmp_path / "1").lineage_id


def test_a_query_that_writes_to_a_taken_checkpoint_is_stopped(tmp_path: Path) -> None:
    create_first_checkpoint_if_absent(tmp_path)
    first = take_over_checkpoint(tmp_path)
    take_over_checkpoint(tmp_path)
    with pytest.raises(NotADirectoryError):
        (first.path / "offsets").mkdir(parents=True)


def test_without_exchange_files_that_the_old_query_wrote_between_the_two_steps_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_first_checkpoint_if_absent(tmp_path)
    first = take_over_checkpoint(tmp_path)
    rename = Path.rename
    writes: list[int] = []

    def rename_and_let_the_old_query_write(self: Path, target: Path) -> Path:
        moved = rename(self, target)
        if self == first.path and len(writes) < 2:
            writes.append(len(writes) + 7)
            (first.path / "commits").mkdir(parents=True)
            (first.path / "commits" / str(writes[-1])).write_text("committed")
        return moved

    monkeypatch.setattr(Path, "rename", rename_and_let_the_old_query_write)
    # The old query writes once more after its folder was renamed, and the file is kept.
    second = take_over_checkpoint(tmp_path, tries_exchange_first=False)
    assert sorted(os.listdir(second.path / "commits")) == ["7", "8"]
    assert first.path.is_file()


def test_the_next_start_completes_a_take_over_that_was_killed_after_its_rename(tmp_path: Path) -> None:
    create_first_checkpoint_if_absent(tmp_path)
    first = take_over_checkpoint(tmp_path)
    dead = tmp_path / "2-dead"
    (tmp_path / f".close-{first.path.name}").touch()
    first.path.rename(dead)
    (first.path / "commits").mkdir(parents=True)
    (first.path / "commits" / "3").write_text("committed by the old query")

    third = take_over_checkpoint(tmp_path, tries_exchange_first=False)
    assert third.lineage_id == first.lineage_id
    assert (third.path / "commits" / "3").exists()
    assert first.path.is_file()
    assert dead.is_file()


def test_a_task_folder_without_its_checkpoint_is_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_first_checkpoint_if_absent(tmp_path)
    held = take_over_checkpoint(tmp_path)
    (held.path / "lineage").unlink()
    held.path.rmdir()
    monkeypatch.setattr(checkpoint, "TAKE_OVER_TIMEOUT_MS", 50)
    with pytest.raises(WorldError, match="check whether files were removed"):
        take_over_checkpoint(tmp_path)


@pytest.mark.timeout(20)
def test_a_start_whose_own_file_is_removed_is_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_first_checkpoint_if_absent(tmp_path)
    first = take_over_checkpoint(tmp_path)

    def remove_own_file() -> None:
        for entry in tmp_path.iterdir():
            if entry.is_file() and entry.name.startswith("2-"):
                entry.unlink()

    monkeypatch.setattr(checkpoint, "TAKE_OVER_TIMEOUT_MS", 50)
    with pytest.raises(WorldError, match=r"the file 2-.* of this start: check whether files were removed"):
        take_over_checkpoint(tmp_path, check=remove_own_file)
    assert not is_checkpoint_taken_over_or_absent(first.path)


def test_exchanging_with_a_missing_folder_raises_an_error(tmp_path: Path) -> None:
    (tmp_path / "one").touch()
    with pytest.raises(FileNotFoundError):
        exchange_names(tmp_path / "one", tmp_path / "other")


@pytest.mark.parametrize("name", ["plain", "with space", "ä/b", "..", "_hidden", "a=b", "{x}*?[y]\\", "%41", "~"])
def test_unusual_connector_names_become_safe_and_distinct_folders(name: str) -> None:
    safe = safe_file_name(name)
    assert not set(safe) & set(" /{}*?[]\\=:~")
    assert safe[0] not in "._"
    assert safe == name or safe != safe_file_name(safe)


@pytest.mark.parametrize("character", ["n", "ü", "😀"])
def test_the_longest_connector_names_become_distinct_folders_with_room_for_task_lineage_and_id(
    tmp_path: Path, character: str
) -> None:
    longest = character * (255 // len(character.encode()))
    names = [longest, longest[:-1], longest[:-1] + "m", longest[:184], longest[:185]]
    folders = {safe_file_name(name) for name in names}
    assert len(folders) == len(set(names))
    for folder in folders:
        (tmp_path / f"{folder}-{TASKS_PER_CONNECTOR_MAX}-{uuid.uuid4().hex}-{uuid.uuid4().hex}").mkdir()


# -- many processes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["exchange", "rename"])
def test_concurrent_take_overs_by_many_processes_leave_one_checkpoint(tmp_path: Path, way: str) -> None:
    create_first_checkpoint_if_absent(tmp_path)
    first = take_over_checkpoint(tmp_path)
    command = [sys.executable, str(Path(__file__).with_name("take_over_process.py")), str(tmp_path), "40", way]
    contenders = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(5)]
    taken = [name for contender in contenders for name in contender.communicate(timeout=100)[0].split()]
    assert [contender.returncode for contender in contenders] == [0] * 5

    assert len(taken) == len(set(taken)) == 200
    if way == "exchange":
        assert sorted(task_start_number_of(Path(name)) for name in taken) == list(range(2, 202))
    last = take_over_checkpoint(tmp_path, tries_exchange_first=way == "exchange")
    assert last.lineage_id == first.lineage_id
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [last.path]


def test_the_fallback_is_used_only_if_the_kernel_cannot_exchange() -> None:
    with pytest.raises(OSError, match="No such file"):
        exchange_names(Path("/nowhere/one"), Path("/nowhere/other"))
    assert not issubclass(ExchangeUnsupportedError, OSError)
