"""The worker that has a connector: when it makes a generation, and when it leaves the newest one as it is."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.nouns.errors import WorldError
from coterie.spark.checkpoint import make_first
from coterie.spark.fence import Fence, FencedError
from coterie.spark.generations import owner as owner_module
from coterie.spark.generations.layout import GenerationId
from coterie.spark.generations.manifest import Manifest, Plan, read_plan
from coterie.spark.generations.owner import Owner, Wanted, newest_stated
from coterie.spark.generations.resplit import Finisher, OvertakenError, close, release
from coterie.spark.generations.split import Split, SplitFunction
from coterie.spark.generations.stores import FilePositions, NoPositions
from coterie.spark.generations.taking import is_closed, take_open
from coterie.spark.sources.kafka_positions import KafkaPart, KafkaPositions

CONFIG = {"sink.format": "json", "sink.path": "/out", "sink.option.compression": "gzip", "transforms": "t"}
PARTS = tuple(str(KafkaPart(topic="t", partition=number, topic_id="i")) for number in range(3))


def finisher(connector: Path, fence: Fence | None = None) -> Finisher:
    def run_batch(manifest: Manifest, task: int, held: object) -> None:
        raise AssertionError("no batch is in flight")

    return Finisher(connector=connector, store=KafkaPositions(), run_batch=run_batch, fence=fence or Fence())


def owner(connector: Path, **keys: Any) -> Owner:
    return Owner(finisher(connector), **{"grace_ms": 0, "silence_ms": 200} | keys)


def wanted(
    *tasks: Sequence[str],
    known: bool = True,
    fixed: bool = False,
    asked: list[str] | None = None,
    open_keys: frozenset[str] = frozenset(),
    **config: str,
) -> Wanted:
    def starts(parts: Sequence[str], *, is_first: bool) -> dict[str, int]:
        if asked is not None:
            asked.extend(parts)
        return dict.fromkeys(parts, 3)

    return Wanted(
        config=CONFIG | {key.replace("__", "."): value for key, value in config.items()},
        split=Split(function=SplitFunction.PARTS_V1, tasks=tuple(tuple(parts) for parts in tasks)),
        sink=lambda config: {key: value for key, value in config.items() if key in ("sink.path", "sink.format")},
        starts=starts,
        open_keys=open_keys,
        infer=lambda known: dict.fromkeys(open_keys - known.keys(), f"inferred from {config}"),
        is_fixed=fixed,
        is_known=known,
        flat=None,
    )


def test_the_first_generation_is_made_once(tmp_path: Path) -> None:
    first = owner(tmp_path / "c").settle(wanted(PARTS, known=False))
    assert first.positions == dict.fromkeys(PARTS, 3)
    assert owner(tmp_path / "c").settle(wanted(PARTS)) == first


def test_a_folder_of_before_is_hidden_from_other_users_of_the_machine_at_the_next_start(tmp_path: Path) -> None:
    owner(tmp_path / "c").settle(wanted(PARTS, known=False))
    (tmp_path / "c").chmod(0o2755)
    owner(tmp_path / "c").settle(wanted(PARTS))
    assert (tmp_path / "c").stat().st_mode & 0o7777 == 0o2750


def test_what_was_inferred_is_kept_by_later_generations(tmp_path: Path) -> None:
    schema = frozenset(["schema"])
    first = owner(tmp_path).settle(wanted(PARTS, known=False, open_keys=schema, now="1"))
    assert first.inferred == {"schema": "inferred from {'now': '1'}"}
    second = owner(tmp_path).settle(wanted(PARTS[:1], PARTS[1:], open_keys=schema, now="2"))
    assert (second.generation.number, second.inferred) == (2, first.inferred)
    # What the config names itself is not kept, and is inferred again once the config leaves it out.
    third = owner(tmp_path).settle(wanted(PARTS, now="3"))
    assert (third.generation.number, third.inferred) == (3, {})
    fourth = owner(tmp_path).settle(wanted(PARTS, open_keys=schema, now="4"))
    assert (fourth.generation.number, fourth.inferred) == (4, {"schema": "inferred from {'now': '4'}"})
    # Only what is not known is asked for.
    fifth = owner(tmp_path).settle(wanted(PARTS, open_keys=schema | {"key.schema"}, now="5"))
    assert fifth.inferred == {**fourth.inferred, "key.schema": "inferred from {'now': '5'}"}


@pytest.mark.parametrize("changed", [wanted(PARTS, transforms="u"), wanted(PARTS, sink__option__compression="none")])
def test_what_keeps_the_checkpoints_makes_no_generation(tmp_path: Path, changed: Wanted) -> None:
    first = owner(tmp_path).settle(wanted(PARTS, known=False))
    assert owner(tmp_path).settle(changed) == first
    assert not is_closed(tmp_path / "gen-1")


@pytest.mark.parametrize(
    "changed", [wanted(PARTS, sink__path="/other"), wanted(PARTS[:1], PARTS[1:]), wanted(PARTS[:2])]
)
def test_another_sink_another_split_and_other_parts_make_one(tmp_path: Path, changed: Wanted) -> None:
    owner(tmp_path).settle(wanted(PARTS, known=False))
    second = owner(tmp_path).settle(changed)
    assert second.generation.number == 2
    assert (second.split, second.config) == (changed.split, changed.config)
    assert {**second.positions, **second.parked} == dict.fromkeys(PARTS, 3)


def test_only_of_new_parts_the_source_is_asked_where_they_begin(tmp_path: Path) -> None:
    asked: list[str] = []
    for parts in (PARTS[:1], PARTS[:2], PARTS[1:2], PARTS):
        owner(tmp_path).settle(wanted(parts, known=bool(asked), asked=asked))
    assert asked == list(PARTS)


def test_no_connector_that_has_run_begins_again_where_its_checkpoints_are_not_found(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match=r"share checkpoint\.location"):
        owner(tmp_path / "elsewhere").settle(wanted(PARTS))
    assert not (tmp_path / "elsewhere").exists()


def test_a_re_split_that_another_worker_has_begun_is_finished_before_ours(tmp_path: Path) -> None:
    owner(tmp_path).settle(wanted(PARTS, known=False))
    theirs = Split(function=SplitFunction.PARTS_V1, tasks=(PARTS[:1], PARTS[1:]))
    generation = GenerationId(number=2, id="theirs")
    close(tmp_path, plan(generation, theirs))
    with pytest.raises(OvertakenError, match="has created checkpoint generation 2-theirs"):
        owner(tmp_path).settle(wanted(PARTS))
    assert not is_closed(tmp_path / "gen-2")
    assert owner(tmp_path).settle(wanted(PARTS)).generation.number == 3
    close(tmp_path, plan(GenerationId(number=4, id="theirs"), theirs))
    assert owner(tmp_path).settle(wanted(PARTS[:1], PARTS[1:])).generation == GenerationId(number=4, id="theirs")


def test_an_owner_that_stood_still_closes_no_generation_that_was_made_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former owner waits for its tasks to stop; the next one finishes, and makes a generation of a newer config."""
    owner(tmp_path).settle(wanted(PARTS, known=False))
    newer = wanted(PARTS[:2], sink__path="/newer")

    def overtaken(generation: Path, manifest: Manifest) -> frozenset[int]:
        monkeypatch.undo()
        with pytest.raises(OvertakenError):
            owner(tmp_path).settle(newer)
        assert owner(tmp_path).settle(newer).generation.number == 3
        return frozenset()

    monkeypatch.setattr(owner_module, "unreleased", overtaken)
    with pytest.raises(OvertakenError, match="Another worker has created checkpoint generation 3-"):
        owner(tmp_path).settle(wanted(PARTS[:1], PARTS[1:]))
    assert not is_closed(tmp_path / "gen-3")


def test_two_workers_that_make_the_first_generation_agree_on_one(tmp_path: Path) -> None:
    def starts(parts: Sequence[str], *, is_first: bool) -> dict[str, int]:
        owner(tmp_path).settle(wanted(PARTS[:1], PARTS[1:], known=False))
        return dict.fromkeys(parts, 3)

    with pytest.raises(OvertakenError, match="Another worker has created checkpoint generation 1-"):
        owner(tmp_path).settle(replace(wanted(PARTS, known=False), starts=starts))
    assert not is_closed(tmp_path / "gen-1")


def test_a_worker_that_may_act_no_longer_closes_nothing(tmp_path: Path) -> None:
    owner(tmp_path).settle(wanted(PARTS, known=False))
    fence = Fence()
    fence.close()
    with pytest.raises(FencedError):
        Owner(finisher(tmp_path, fence), grace_ms=0).settle(wanted(PARTS[:1], PARTS[1:]))
    assert not is_closed(tmp_path / "gen-1")


def test_while_a_task_is_failed_no_generation_is_closed_for_parts_or_a_number_of_tasks(tmp_path: Path) -> None:
    def held(*tasks: Sequence[str], **config: str) -> Wanted:
        return replace(
            wanted(*tasks),
            config=CONFIG | {key.replace("__", "."): value for key, value in config.items()},
            keeps_split=True,
        )

    schema = frozenset(["schema"])
    first = owner(tmp_path).settle(wanted(PARTS[:2], known=False))
    assert owner(tmp_path).settle(held(PARTS)) == first
    assert owner(tmp_path).settle(held(PARTS[:1], PARTS[1:2])) == first
    assert not is_closed(tmp_path / "gen-1")
    # What stands elsewhere by now, or is gone, may be what the task fails of.
    assert owner(tmp_path).settle(held(PARTS[:2], sink__path="/mended")).generation.number == 2
    assert owner(tmp_path).settle(held(PARTS[1:2], sink__path="/mended")).generation.number == 3
    # Tasks of this generation would have no columns at all.
    columns = owner(tmp_path).settle(replace(held(PARTS[1:2], sink__path="/mended"), open_keys=schema, infer=inferred))
    assert (columns.generation.number, columns.inferred) == (4, {"schema": "row BIGINT"})


def inferred(known: Mapping[str, str]) -> Mapping[str, str]:
    return {"schema": "row BIGINT"}


def test_a_generation_whose_positions_cannot_be_read_is_not_closed_for_another_sink(tmp_path: Path) -> None:
    """Also where nobody knows of its tasks: their configs were never published, say."""
    split = Split(function=SplitFunction.PARTS_V1, tasks=(("stream",),))
    now = Wanted(
        config=CONFIG,
        split=split,
        sink=lambda config: {"path": config["sink.path"]},
        starts=lambda parts, *, is_first: {},
        open_keys=frozenset(),
        infer=dict,
        is_fixed=True,
        is_known=False,
        flat=None,
    )
    streams = replace(finisher(tmp_path), store=NoPositions())
    first = Owner(streams, grace_ms=0).settle(now)
    with pytest.raises(WorldError, match="configure the former sink again"):
        Owner(streams, grace_ms=0).settle(replace(now, config=CONFIG | {"sink.path": "/other"}))
    assert Owner(streams, grace_ms=0).settle(now) == first


def plan(generation: GenerationId, split: Split) -> Plan:
    return Plan(generation=generation, split=split, config=CONFIG, inferred={}, starts={})


def test_tasks_have_the_grace_to_stop_and_no_longer_than_they_need(tmp_path: Path) -> None:
    first = owner(tmp_path).settle(wanted(PARTS, known=False))
    held = take_open(tmp_path / "gen-1", first.generation, 0)

    def stop_when_closed() -> None:
        while not is_closed(tmp_path / "gen-1"):
            threading.Event().wait(0.01)
        assert held.path.is_dir(), "not taken before it was released"
        release(tmp_path / "gen-1", 0)

    runtime = threading.Thread(target=stop_when_closed)
    runtime.start()
    assert owner(tmp_path, grace_ms=60_000).settle(wanted(PARTS[:1], PARTS[1:])).generation.number == 2
    runtime.join()
    # The second task never says that it stopped.
    release(tmp_path / "gen-2", 0)
    assert owner(tmp_path, grace_ms=100).settle(wanted(PARTS)).generation.number == 3


def test_after_silence_an_overtaken_finisher_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner(tmp_path).settle(wanted(PARTS, known=False))
    commit: Callable[..., None] = Finisher.commit
    commits: list[int] = []

    def commit_late(self: Finisher, number: int, held: Any) -> None:
        commits.append(number)
        if len(commits) == 1:
            finisher(tmp_path).take(number)
        commit(self, number, held)

    monkeypatch.setattr(Finisher, "commit", commit_late)
    assert owner(tmp_path).settle(wanted(PARTS[:1], PARTS[1:])).generation.number == 2
    assert commits == [1, 1]


def test_a_worker_that_may_act_no_longer_stops_waiting(tmp_path: Path) -> None:
    owner(tmp_path).settle(wanted(PARTS, known=False))
    close(tmp_path, plan(GenerationId(number=2, id="b"), wanted(PARTS[:1], PARTS[1:]).split))
    fence = Fence()
    fence.close()
    with pytest.raises(FencedError):
        Owner(finisher(tmp_path, fence), grace_ms=60_000).settle(wanted(PARTS[:1], PARTS[1:]))


def test_checkpoints_from_before_generations_become_the_first_one_at_once(tmp_path: Path) -> None:
    make_first(tmp_path / "0")
    split = Split(function=SplitFunction.PATH_HASH_V0, tasks=(("/in",), ("/in",)))
    flat = Manifest(
        generation=GenerationId(number=0, id="flat"), split=split, config=CONFIG, inferred={}, positions={}, parked={}
    )
    now = Wanted(
        config=CONFIG,
        split=Split(function=SplitFunction.PATH_HASH_V1, tasks=split.tasks),
        sink=lambda config: config,
        starts=lambda parts, *, is_first: {},
        open_keys=frozenset(),
        infer=dict,
        is_fixed=False,
        is_known=True,
        flat=flat,
    )
    files = Finisher(connector=tmp_path, store=FilePositions(), run_batch=finisher(tmp_path).run_batch, fence=Fence())
    assert Owner(files, grace_ms=60_000).settle(now).generation.number == 1


def test_a_worker_that_waits_finishes_a_closed_generation_only_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = owner(tmp_path).settle(wanted(PARTS, known=False))
    assert owner(tmp_path).finish_after_silence() == first
    split = Split(function=SplitFunction.PARTS_V1, tasks=(PARTS[:1], PARTS[1:]))
    close(tmp_path, plan(GenerationId(number=2, id="b"), split))
    assert newest_stated(tmp_path) == read_plan(tmp_path / "gen-1")
    with monkeypatch.context() as patch:
        signs = iter(range(100))
        patch.setattr(owner_module, "sign_of_life", lambda generation: next(signs))
        assert owner(tmp_path).finish_after_silence() is None
    made = owner(tmp_path).finish_after_silence()
    assert made is not None
    assert made.generation == GenerationId(number=2, id="b")


def test_of_checkpoints_from_before_generations_only_the_owner_knows_the_split(tmp_path: Path) -> None:
    assert newest_stated(tmp_path / "nothing") is None
    make_first(tmp_path / "0")
    assert newest_stated(tmp_path) is None
    with pytest.raises(WorldError, match="contains no configs of their tasks"):
        owner(tmp_path).settle(wanted(PARTS, known=False))


def test_a_split_that_is_fixed_is_never_changed(tmp_path: Path) -> None:
    owner(tmp_path).settle(wanted(PARTS, known=False))
    with pytest.raises(WorldError, match="checkpoints of 1 task"):
        owner(tmp_path).settle(wanted(PARTS[:1], PARTS[1:], fixed=True))
    assert owner(tmp_path).settle(wanted(PARTS, fixed=True, sink__path="/other")).generation.number == 2
