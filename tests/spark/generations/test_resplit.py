"""A re-split from two tasks to three, step by step, with the files after each step."""

import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.nouns.errors import WorldError
from coterie.spark.checkpoint import FIRST_CHECKPOINT_NAME, HeldCheckpoint, is_checkpoint_taken_over_or_absent
from coterie.spark.fence import Fence, FencedError
from coterie.spark.generations import checkpoint_take_over, resplit
from coterie.spark.generations.checkpoint_take_over import (
    GenerationAbsentError,
    GenerationClosedError,
    take_over_in_closed_generation,
    take_over_in_open_generation,
)
from coterie.spark.generations.layout import STOPPED_FOLDER, GenerationId, generation_folder, newest_generation_number
from coterie.spark.generations.manifest import GenerationPlan, Manifest, read_manifest
from coterie.spark.generations.resplit import (
    ResplitFinisher,
    SupersededError,
    close_generation_and_return_stored_plan,
    record_task_stopped,
    remove_all_but_last_two_generations,
    resplit_liveness_mtime_ns,
    started_tasks_without_recorded_stop,
    write_legacy_layout_manifest_if_absent,
)
from coterie.spark.generations.split import Split, SplitFunction
from coterie.spark.generations.stores import FileSourcePositionStore
from coterie.spark.positions import Positions, commit_empty_batches
from coterie.spark.sources.kafka_positions import KafkaPositionStore, TopicIdPartition

PARTS = tuple(str(TopicIdPartition(topic="flights", partition=number, topic_id="id")) for number in range(4))


def plan(number: int, tasks: Sequence[Sequence[str]], id_: str = "a", start: int = 0) -> GenerationPlan:
    return GenerationPlan(
        generation=GenerationId(number=number, id=id_),
        split=Split(function=SplitFunction.PARTS_V1, partitions_by_task=tuple(tuple(parts) for parts in tasks)),
        config={"tasks.max": str(len(tasks)), "password": "${file:secrets:password}"},
        inferred_values={"schema": "value STRING"},
        initial_positions={part: start for parts in tasks for part in parts},
    )


def run_nothing(manifest: Manifest, task: int, held: HeldCheckpoint) -> None:
    raise AssertionError("no batch is in flight")


def finisher(connector: Path, fence: Fence | None = None) -> ResplitFinisher:
    return ResplitFinisher(
        connector_path=connector,
        find_position_store=lambda config: KafkaPositionStore(),
        run_batch_in_flight=run_nothing,
        fence=fence or Fence(),
    )


def read_to(held: HeldCheckpoint, line: str) -> None:
    """Commit batch 0 at ``line``."""
    commit_empty_batches(held.path, line, batch_count=1)


def names(folder: Path) -> list[str]:
    return sorted(name + "/" * (folder / name).is_dir() for name in os.listdir(folder))


def test_other_users_cannot_read_the_config_in_a_manifest(tmp_path: Path) -> None:
    connector = tmp_path / "c-i"
    finisher(connector).create_first_generation(plan(1, [PARTS]))
    assert connector.stat().st_mode & 0o777 == 0o770 & ~current_umask()


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_re_split_turns_two_tasks_into_three(tmp_path: Path) -> None:
    connector = tmp_path / "c-i"
    one = finisher(connector)

    # The first generation is new; its tasks begin at the positions of the plan.
    assert newest_generation_number(connector) is None
    first_generation = one.create_first_generation(plan(1, [PARTS[:2], PARTS[2:3]], start=7))
    gen_1 = connector / "gen-1"
    assert names(connector) == ["gen-1/"]
    assert names(gen_1) == ["0/", "1/", "manifest.json"]
    assert first_generation.positions == dict.fromkeys(PARTS[:3], 7)

    # Tasks start in the first generation, and read.
    assert started_tasks_without_recorded_stop(gen_1, first_generation) == frozenset(), (
        "no task runs, so none has to stop"
    )
    tasks = [take_over_in_open_generation(gen_1, first_generation.generation, task) for task in range(2)]
    assert (tasks[0].path / "sources" / "0" / "0").read_bytes() == b'\0v1\n{"flights": {"0": 7, "1": 7}}'
    read_to(tasks[0], '{"flights":{"0":10,"1":20}}')

    # a. The generation is closed. The first plan counts.
    second = plan(2, [PARTS[:1], PARTS[1:2], PARTS[3:]], "b")
    assert close_generation_and_return_stored_plan(connector, second) == second
    assert close_generation_and_return_stored_plan(connector, plan(2, [PARTS], "c")) == second
    assert names(gen_1) == ["0/", "1/", "closed", "manifest.json"]
    with pytest.raises(GenerationClosedError):
        take_over_in_open_generation(gen_1, first_generation.generation, 0)

    # b. Each runtime records that it has stopped its task.
    assert started_tasks_without_recorded_stop(gen_1, first_generation) == {0, 1}
    record_task_stopped(gen_1, 0)
    (gen_1 / STOPPED_FOLDER / ".nfs0001").touch()
    assert started_tasks_without_recorded_stop(gen_1, first_generation) == {1}

    # c. The finisher takes the checkpoints of all tasks, stopped or not.
    assert resplit_liveness_mtime_ns(gen_1) is None
    held = one.take_over_checkpoints(1)
    assert resplit_liveness_mtime_ns(gen_1) is not None
    assert names(gen_1 / "closing") == ["0/", "1/", "alive"]
    assert all(is_checkpoint_taken_over_or_absent(task.path) and task.path.is_file() for task in tasks)
    assert [one.lineage_id for one in held] == [task.lineage_id for task in tasks]

    # d. and e. No batch is in flight. The positions are distributed again; task 1 never read, and partition 3 is new.
    one.run_batches_in_flight(1, held)
    one.publish_next_generation(1, held)
    gen_2 = connector / "gen-2"
    assert names(connector) == ["gen-1/", "gen-2/"]
    made = read_manifest(gen_2)
    assert made.positions == {PARTS[0]: 10, PARTS[1]: 20, PARTS[3]: 0}
    assert made.absent_partition_positions == {PARTS[2]: 7}
    assert (made.generation, made.split, made.config, made.inferred_values) == (
        second.generation,
        second.split,
        second.config,
        second.inferred_values,
    )
    assert take_over_in_open_generation(gen_2, made.generation, 1).lineage_id not in {task.lineage_id for task in tasks}

    # g. The last two generations stay. The partition that was absent continues at its former position.
    remove_all_but_last_two_generations(connector)
    assert names(connector) == ["gen-1/", "gen-2/"]
    close_generation_and_return_stored_plan(connector, plan(3, [PARTS]))
    assert one.create_next_generation(2).positions == {PARTS[0]: 10, PARTS[1]: 20, PARTS[2]: 7, PARTS[3]: 0}
    # A generation stays until its sink has retired the lineages of its tasks.
    retired: list[tuple[Manifest, dict[int, str]]] = []

    def retire(manifest: Manifest, lineages: Mapping[int, str]) -> bool:
        retired.append((manifest, dict(lineages)))
        return len(retired) > 1

    remove_all_but_last_two_generations(connector, retire)
    assert names(connector) == ["gen-1/", "gen-2/", "gen-3/"]
    remove_all_but_last_two_generations(connector, retire)
    assert names(connector) == ["gen-1", "gen-2/", "gen-3/"]
    assert retired == [(first_generation, {task: one.lineage_id for task, one in enumerate(tasks)})] * 2
    with pytest.raises(GenerationClosedError):
        take_over_in_open_generation(gen_1, first_generation.generation, 0)
    with pytest.raises(NotADirectoryError):
        (tasks[0].path / "offsets").mkdir(parents=True)


def test_a_finisher_that_was_frozen_during_a_generation_changes_nothing(tmp_path: Path) -> None:
    connector = tmp_path / "c-i"
    frozen, quick = finisher(connector), finisher(connector)
    quick.create_first_generation(plan(1, [PARTS]))
    close_generation_and_return_stored_plan(connector, plan(2, [PARTS], "b"))
    held = frozen.take_over_checkpoints(1)
    assert quick.create_next_generation(1).generation.number == 2
    with pytest.raises(SupersededError):
        frozen.publish_next_generation(1, held)

    close_generation_and_return_stored_plan(connector, plan(3, [PARTS], "c"))
    made = quick.create_next_generation(2)
    remove_all_but_last_two_generations(connector)
    assert frozen.create_next_generation(1) == made
    assert names(connector) == ["gen-1", "gen-2/", "gen-3/"]


def test_a_finisher_shows_progress_during_a_long_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resplit, "LIVENESS_INTERVAL_MS", 10)
    signs: set[int | None] = set()

    def take_long(manifest: Manifest, task: int, held: HeldCheckpoint) -> None:
        while len(signs) < 3:
            signs.add(resplit_liveness_mtime_ns(tmp_path / "gen-1"))
        (held.path / "offsets" / "0").unlink()

    first_generation = finisher(tmp_path).create_first_generation(plan(1, [PARTS]))
    held = take_over_in_open_generation(tmp_path / "gen-1", first_generation.generation, 0)
    (held.path / "offsets").mkdir()
    (held.path / "offsets" / "0").touch()
    close_generation_and_return_stored_plan(tmp_path, plan(2, [PARTS]))
    assert replace(finisher(tmp_path), run_batch_in_flight=take_long).create_next_generation(1).generation.number == 2
    assert len(signs) == 3


def test_no_generation_is_put_in_place_behind_a_closed_fence(tmp_path: Path) -> None:
    fence = Fence()
    finisher(tmp_path).create_first_generation(plan(1, [PARTS]))
    close_generation_and_return_stored_plan(tmp_path, plan(2, [PARTS]))
    fence.close_and_wait()
    with pytest.raises(FencedError):
        finisher(tmp_path, fence).create_next_generation(1)
    assert newest_generation_number(tmp_path) == 1
    assert finisher(tmp_path).create_next_generation(1).generation.number == 2
    remove_all_but_last_two_generations(tmp_path)
    assert names(tmp_path) == ["gen-1/", "gen-2/"]


def test_a_task_starts_only_in_the_generation_that_its_config_names(tmp_path: Path) -> None:
    finisher(tmp_path).create_first_generation(plan(1, [PARTS], "a"))
    with pytest.raises(GenerationAbsentError, match="the task's config names 1-b"):
        take_over_in_open_generation(tmp_path / "gen-1", GenerationId(number=1, id="b"), 0)
    with pytest.raises(GenerationAbsentError, match=r"share checkpoint\.location"):
        take_over_in_open_generation(tmp_path / "gen-2", GenerationId(number=2, id="a"), 0)
    assert names(tmp_path) == ["gen-1/"]


def test_a_start_that_takes_a_checkpoint_over_before_it_is_moved_loses_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_generation = finisher(tmp_path).create_first_generation(plan(1, [PARTS]))
    gen_1 = tmp_path / "gen-1"
    rename = os.rename
    starts: list[HeldCheckpoint] = []

    def rename_after_a_start(old: str, new: str) -> None:
        if not starts:
            starts.append(take_over_in_open_generation(gen_1, first_generation.generation, 0))
        rename(old, new)

    monkeypatch.setattr(os, "rename", rename_after_a_start)
    held = take_over_in_closed_generation(gen_1, 0)
    assert is_checkpoint_taken_over_or_absent(starts[0].path)
    assert held.path.parent == gen_1 / "closing" / "0"
    assert held.lineage_id == starts[0].lineage_id


def test_a_re_split_that_finds_no_checkpoint_pauses_between_its_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finisher(tmp_path).create_first_generation(plan(1, [PARTS]))
    shutil.rmtree(tmp_path / "gen-1" / "0" / FIRST_CHECKPOINT_NAME)
    pauses: list[float] = []
    monkeypatch.setattr(checkpoint_take_over, "TAKE_OVER_TIMEOUT_MS", 50)
    monkeypatch.setattr(time, "sleep", pauses.append)
    with pytest.raises(WorldError, match="check whether files were removed there"):
        take_over_in_closed_generation(tmp_path / "gen-1", 0)
    assert pauses
    assert all(pauses)


def test_a_re_split_that_hangs_after_its_fence_was_closed_lets_another_worker_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resplit, "LIVENESS_INTERVAL_MS", 10)
    fence, read, go_on = Fence(), threading.Event(), threading.Event()

    class HangingPositions(KafkaPositionStore):
        def read(self, checkpoint: Path, source_partitions: Sequence[str]) -> Positions:
            read.set()
            assert go_on.wait(60)
            return KafkaPositionStore.read(self, checkpoint, source_partitions)

    one = replace(finisher(tmp_path, fence), find_position_store=lambda config: HangingPositions())
    one.create_first_generation(plan(1, [PARTS]))
    close_generation_and_return_stored_plan(tmp_path, plan(2, [PARTS]))
    thread = threading.Thread(target=lambda: expect_fenced(one.create_next_generation, 1))
    thread.start()
    try:
        assert read.wait(60)
        touched_ns = resplit_liveness_mtime_ns(generation_folder(tmp_path, 1))
        while resplit_liveness_mtime_ns(generation_folder(tmp_path, 1)) == touched_ns:
            time.sleep(0.01)
        fence.close_nowait()
        touching = [thread for thread in threading.enumerate() if thread.name == "coterie-signs"]
        for one_thread in touching:
            one_thread.join(10)
            assert not one_thread.is_alive(), "the liveness file is touched although the re-split publishes nothing"
        assert finisher(tmp_path).create_next_generation(1).generation.number == 2
    finally:
        go_on.set()
        thread.join()


def expect_fenced(create_next_generation: Callable[[int], object], number: int) -> None:
    """The re-split of a worker whose fence was closed."""
    with pytest.raises((FencedError, SupersededError)):
        create_next_generation(number)


def test_the_layout_without_generations_is_generation_0_and_its_folders_become_files(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    flat = Manifest(
        generation=GenerationId(number=0, id="flat"),
        split=Split(function=SplitFunction.PATH_HASH_V0, partitions_by_task=(("/in",), ("/in",))),
        config={},
        inferred_values={},
        positions={},
        absent_partition_positions={},
    )
    one = ResplitFinisher(
        connector_path=tmp_path,
        find_position_store=lambda config: FileSourcePositionStore(),
        run_batch_in_flight=run_nothing,
        fence=Fence(),
    )
    assert newest_generation_number(tmp_path) == 0
    write_legacy_layout_manifest_if_absent(tmp_path, flat)
    split = Split(function=SplitFunction.PATH_HASH_V1, partitions_by_task=(("/in",),))
    for number in (1, 2):
        close_generation_and_return_stored_plan(
            tmp_path,
            GenerationPlan(
                generation=GenerationId(number=number, id="x"),
                split=split,
                config={},
                inferred_values={},
                initial_positions={},
            ),
        )
        one.create_next_generation(number - 1)
        remove_all_but_last_two_generations(tmp_path)
    assert names(tmp_path) == ["0", "1", "closed", "closing", "gen-1/", "gen-2/", "manifest.json"]
    assert one.create_next_generation(0).generation.number == 2
    assert generation_folder(tmp_path, 0) == tmp_path
