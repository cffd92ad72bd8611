"""A re-split from two tasks to three, step by step: what stands on the file system after each step."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.spark.checkpoint import HeldCheckpoint, is_taken
from coterie.spark.fence import Fence, FencedError
from coterie.spark.generations import resplit
from coterie.spark.generations.layout import GenerationId, generation_folder, standing
from coterie.spark.generations.manifest import Manifest, Plan, read_manifest
from coterie.spark.generations.resplit import (
    Finisher,
    OvertakenError,
    adopt,
    close,
    release,
    retire_old,
    sign_of_life,
    unreleased,
)
from coterie.spark.generations.split import Split, SplitFunction
from coterie.spark.generations.stores import FilePositions
from coterie.spark.generations.taking import GenerationAbsentError, GenerationClosedError, take_closed, take_open
from coterie.spark.positions import commit_empty_batches
from coterie.spark.sources.kafka_positions import KafkaPart, KafkaPositions

PARTS = tuple(str(KafkaPart(topic="flights", partition=number, topic_id="id")) for number in range(4))


def plan(number: int, tasks: Sequence[Sequence[str]], id_: str = "a", start: int = 0) -> Plan:
    return Plan(
        generation=GenerationId(number=number, id=id_),
        split=Split(function=SplitFunction.PARTS_V1, tasks=tuple(tuple(parts) for parts in tasks)),
        config={"tasks.max": str(len(tasks)), "password": "${file:secrets:password}"},
        inferred={"schema": "value STRING"},
        starts={part: start for parts in tasks for part in parts},
    )


def run_nothing(manifest: Manifest, task: int, held: HeldCheckpoint) -> None:
    raise AssertionError("no batch is in flight")


def finisher(connector: Path, fence: Fence | None = None) -> Finisher:
    return Finisher(connector=connector, store=KafkaPositions(), run_batch=run_nothing, fence=fence or Fence())


def read_to(held: HeldCheckpoint, line: str) -> None:
    """Commit batch 0 at ``line``."""
    commit_empty_batches(held.path, line, batches=1)


def names(folder: Path) -> list[str]:
    return sorted(name + "/" * (folder / name).is_dir() for name in os.listdir(folder))


def test_users_of_the_machine_do_not_read_the_config_in_a_manifest(tmp_path: Path) -> None:
    connector = tmp_path / "c-i"
    finisher(connector).begin(plan(1, [PARTS]))
    assert connector.stat().st_mode & 0o777 == 0o770 & ~current_umask()


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_two_tasks_become_three(tmp_path: Path) -> None:
    connector = tmp_path / "c-i"
    one = finisher(connector)

    # The first generation is made from nothing; its tasks begin where the plan says.
    assert standing(connector) is None
    born = one.begin(plan(1, [PARTS[:2], PARTS[2:3]], start=7))
    gen_1 = connector / "gen-1"
    assert names(connector) == ["gen-1/"]
    assert names(gen_1) == ["0/", "1/", "manifest.json"]
    assert born.positions == dict.fromkeys(PARTS[:3], 7)

    # Tasks start in it, and read.
    assert unreleased(gen_1, born) == frozenset(), "nothing runs, so that nothing has to stop"
    tasks = [take_open(gen_1, born.generation, task) for task in range(2)]
    assert (tasks[0].path / "sources" / "0" / "0").read_bytes() == b'\0v1\n{"flights": {"0": 7, "1": 7}}'
    read_to(tasks[0], '{"flights":{"0":10,"1":20}}')

    # a. It is closed. The first plan counts.
    second = plan(2, [PARTS[:1], PARTS[1:2], PARTS[3:]], "b")
    assert close(connector, second) == second
    assert close(connector, plan(2, [PARTS], "c")) == second
    assert names(gen_1) == ["0/", "1/", "closed", "manifest.json"]
    with pytest.raises(GenerationClosedError):
        take_open(gen_1, born.generation, 0)

    # b. Each runtime says that it stopped its task.
    assert unreleased(gen_1, born) == {0, 1}
    release(gen_1, 0)
    assert unreleased(gen_1, born) == {1}

    # c. The finisher takes the checkpoints, stopped or not.
    assert sign_of_life(gen_1) is None
    held = one.take(1)
    assert sign_of_life(gen_1) is not None
    assert names(gen_1 / "closing") == ["0/", "1/", "alive"]
    assert all(is_taken(task.path) and task.path.is_file() for task in tasks)
    assert [one.lineage for one in held] == [task.lineage for task in tasks]

    # d. and e. No batch is in flight. The positions are dealt out anew; task 1 never read, and partition 3 is new.
    one.run_batches(1, held)
    one.commit(1, held)
    gen_2 = connector / "gen-2"
    assert names(connector) == ["gen-1/", "gen-2/"]
    made = read_manifest(gen_2)
    assert made.positions == {PARTS[0]: 10, PARTS[1]: 20, PARTS[3]: 0}
    assert made.parked == {PARTS[2]: 7}
    assert (made.generation, made.split, made.config, made.inferred) == (
        second.generation,
        second.split,
        second.config,
        second.inferred,
    )
    assert take_open(gen_2, made.generation, 1).lineage not in {task.lineage for task in tasks}

    # g. The last two generations stay. The partition that was parked comes back where its reading ended.
    retire_old(connector)
    assert names(connector) == ["gen-1/", "gen-2/"]
    close(connector, plan(3, [PARTS]))
    assert one.finish(2).positions == {PARTS[0]: 10, PARTS[1]: 20, PARTS[2]: 7, PARTS[3]: 0}
    # A generation stays until its sink has forgotten the lineages of its tasks.
    told: list[tuple[Manifest, dict[int, str]]] = []

    def forget(manifest: Manifest, lineages: Mapping[int, str]) -> bool:
        told.append((manifest, dict(lineages)))
        return len(told) > 1

    retire_old(connector, forget)
    assert names(connector) == ["gen-1/", "gen-2/", "gen-3/"]
    retire_old(connector, forget)
    assert names(connector) == ["gen-1", "gen-2/", "gen-3/"]
    assert told == [(born, {task: one.lineage for task, one in enumerate(tasks)})] * 2
    with pytest.raises(GenerationClosedError):
        take_open(gen_1, born.generation, 0)
    with pytest.raises(NotADirectoryError):
        (tasks[0].path / "offsets").mkdir(parents=True)


def test_a_finisher_that_stood_still_for_a_generation_changes_nothing(tmp_path: Path) -> None:
    connector = tmp_path / "c-i"
    frozen, quick = finisher(connector), finisher(connector)
    quick.begin(plan(1, [PARTS]))
    close(connector, plan(2, [PARTS], "b"))
    held = frozen.take(1)
    assert quick.finish(1).generation.number == 2
    with pytest.raises(OvertakenError):
        frozen.commit(1, held)

    close(connector, plan(3, [PARTS], "c"))
    made = quick.finish(2)
    retire_old(connector)
    assert frozen.finish(1) == made
    assert names(connector) == ["gen-1", "gen-2/", "gen-3/"]


def test_a_finisher_shows_life_while_a_batch_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resplit, "SIGN_EVERY_MS", 10)
    signs: set[int | None] = set()

    def take_long(manifest: Manifest, task: int, held: HeldCheckpoint) -> None:
        while len(signs) < 3:
            signs.add(sign_of_life(tmp_path / "gen-1"))
        (held.path / "offsets" / "0").unlink()

    born = finisher(tmp_path).begin(plan(1, [PARTS]))
    held = take_open(tmp_path / "gen-1", born.generation, 0)
    (held.path / "offsets").mkdir()
    (held.path / "offsets" / "0").touch()
    close(tmp_path, plan(2, [PARTS]))
    assert replace(finisher(tmp_path), run_batch=take_long).finish(1).generation.number == 2
    assert len(signs) == 3


def test_a_closed_fence_lets_no_generation_into_place(tmp_path: Path) -> None:
    fence = Fence()
    finisher(tmp_path).begin(plan(1, [PARTS]))
    close(tmp_path, plan(2, [PARTS]))
    fence.close()
    with pytest.raises(FencedError):
        finisher(tmp_path, fence).finish(1)
    assert standing(tmp_path) == 1
    assert finisher(tmp_path).finish(1).generation.number == 2
    retire_old(tmp_path)
    assert names(tmp_path) == ["gen-1/", "gen-2/"]


def test_a_task_starts_only_in_the_generation_that_its_config_names(tmp_path: Path) -> None:
    finisher(tmp_path).begin(plan(1, [PARTS], "a"))
    with pytest.raises(GenerationAbsentError, match="the config names 1-b"):
        take_open(tmp_path / "gen-1", GenerationId(number=1, id="b"), 0)
    with pytest.raises(GenerationAbsentError, match=r"share checkpoint\.location"):
        take_open(tmp_path / "gen-2", GenerationId(number=2, id="a"), 0)
    assert names(tmp_path) == ["gen-1/"]


def test_a_start_that_takes_a_checkpoint_back_before_it_is_moved_loses_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    born = finisher(tmp_path).begin(plan(1, [PARTS]))
    gen_1 = tmp_path / "gen-1"
    rename = os.rename
    starts: list[HeldCheckpoint] = []

    def rename_after_a_start(old: str, new: str) -> None:
        if not starts:
            starts.append(take_open(gen_1, born.generation, 0))
        rename(old, new)

    monkeypatch.setattr(os, "rename", rename_after_a_start)
    held = take_closed(gen_1, 0)
    assert is_taken(starts[0].path)
    assert held.path.parent == gen_1 / "closing" / "0"
    assert held.lineage == starts[0].lineage


def test_the_layout_of_before_is_generation_0_and_its_folders_become_files(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    flat = Manifest(
        generation=GenerationId(number=0, id="flat"),
        split=Split(function=SplitFunction.PATH_HASH_V0, tasks=(("/in",), ("/in",))),
        config={},
        inferred={},
        positions={},
        parked={},
    )
    one = Finisher(connector=tmp_path, store=FilePositions(), run_batch=run_nothing, fence=Fence())
    assert standing(tmp_path) == 0
    adopt(tmp_path, flat)
    split = Split(function=SplitFunction.PATH_HASH_V1, tasks=(("/in",),))
    for number in (1, 2):
        close(
            tmp_path,
            Plan(generation=GenerationId(number=number, id="x"), split=split, config={}, inferred={}, starts={}),
        )
        one.finish(number - 1)
        retire_old(tmp_path)
    assert names(tmp_path) == ["0", "1", "closed", "closing", "gen-1/", "gen-2/", "manifest.json"]
    assert one.finish(0).generation.number == 2
    assert generation_folder(tmp_path, 0) == tmp_path
