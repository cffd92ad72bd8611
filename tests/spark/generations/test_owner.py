"""The worker that owns a connector: when it creates a generation, and when it keeps the newest one."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.nouns.errors import WorldError
from coterie.spark.checkpoint import create_first_checkpoint_if_absent
from coterie.spark.fence import Fence, FencedError
from coterie.spark.generations import updater as owner_module
from coterie.spark.generations.checkpoint_take_over import is_generation_closed_or_removed, take_over_in_open_generation
from coterie.spark.generations.layout import GenerationId
from coterie.spark.generations.manifest import GenerationPlan, Manifest, read_plan_of_next_generation
from coterie.spark.generations.resplit import (
    ResplitFinisher,
    SupersededError,
    close_generation_and_return_stored_plan,
    record_task_stopped,
)
from coterie.spark.generations.split import Split, SplitFunction
from coterie.spark.generations.stores import FileSourcePositionStore, UnmovablePositionStore
from coterie.spark.generations.updater import GenerationRequest, GenerationUpdater, read_newest_plan_or_manifest
from tests.spark.generations.owners import CONFIG, PARTS, finisher, owner, request_of


def test_the_first_generation_is_created_once(tmp_path: Path) -> None:
    first = owner(tmp_path / "c").update(request_of(PARTS, known=False))
    assert first.positions == dict.fromkeys(PARTS, 3)
    assert owner(tmp_path / "c").update(request_of(PARTS)) == first


def test_the_next_start_makes_an_older_folder_inaccessible_to_other_users(tmp_path: Path) -> None:
    owner(tmp_path / "c").update(request_of(PARTS, known=False))
    (tmp_path / "c").chmod(0o2755)
    owner(tmp_path / "c").update(request_of(PARTS))
    assert (tmp_path / "c").stat().st_mode & 0o7777 == 0o2750


def test_inferred_columns_are_kept_by_later_generations(tmp_path: Path) -> None:
    schema = frozenset(["schema"])
    first = owner(tmp_path).update(request_of(PARTS, known=False, keys_to_infer=schema, now="1"))
    assert first.inferred_values == {"schema": "inferred from {'now': '1'}"}
    second = owner(tmp_path).update(request_of(PARTS[:1], PARTS[1:], keys_to_infer=schema, now="2"))
    assert (second.generation.number, second.inferred_values) == (2, first.inferred_values)
    # A value in the config is not kept, and is inferred again when the config omits it.
    third = owner(tmp_path).update(request_of(PARTS, now="3"))
    assert (third.generation.number, third.inferred_values) == (3, {})
    fourth = owner(tmp_path).update(request_of(PARTS, keys_to_infer=schema, now="4"))
    assert (fourth.generation.number, fourth.inferred_values) == (4, {"schema": "inferred from {'now': '4'}"})
    # Only missing values are inferred.
    fifth = owner(tmp_path).update(request_of(PARTS, keys_to_infer=schema | {"key.schema"}, now="5"))
    assert fifth.inferred_values == {**fourth.inferred_values, "key.schema": "inferred from {'now': '5'}"}


@pytest.mark.parametrize(
    "changed", [request_of(PARTS, transforms="u"), request_of(PARTS, sink__option__compression="none")]
)
def test_a_change_that_keeps_the_checkpoints_creates_no_generation(tmp_path: Path, changed: GenerationRequest) -> None:
    first = owner(tmp_path).update(request_of(PARTS, known=False))
    assert owner(tmp_path).update(changed) == first
    assert not is_generation_closed_or_removed(tmp_path / "gen-1")


@pytest.mark.parametrize(
    "changed", [request_of(PARTS, sink__path="/other"), request_of(PARTS[:1], PARTS[1:]), request_of(PARTS[:2])]
)
def test_another_sink_another_split_or_other_parts_create_a_generation(
    tmp_path: Path, changed: GenerationRequest
) -> None:
    owner(tmp_path).update(request_of(PARTS, known=False))
    second = owner(tmp_path).update(changed)
    assert second.generation.number == 2
    assert (second.split, second.config) == (changed.split, changed.config)
    assert {**second.positions, **second.absent_partition_positions} == dict.fromkeys(PARTS, 3)


@pytest.mark.parametrize("is_name_stored_first", [True, False])
def test_a_folder_and_its_digest_belong_to_the_same_generation(tmp_path: Path, is_name_stored_first: bool) -> None:
    files = GenerationUpdater(
        replace(finisher(tmp_path), find_position_store=lambda config: FileSourcePositionStore()),
        tasks_stop_timeout_ms=0,
    )

    def updated(folder: str, *, has_digest: bool, known: bool = True) -> Manifest:
        split = Split(function=SplitFunction.PATH_HASH_V1, partitions_by_task=((folder,),))
        request = replace(
            request_of(known=known, keys_to_infer=frozenset(["schema"])),
            split=split.with_digests_if_hash_split() if has_digest else split,
            find_initial_positions=lambda *_, **__: {},
        )
        return files.update(request)

    first = updated("/in", has_digest=not is_name_stored_first, known=False)
    assert updated("/in", has_digest=is_name_stored_first) == first
    assert updated("/other", has_digest=is_name_stored_first).generation.number == 2


def test_initial_positions_are_requested_only_for_new_parts(tmp_path: Path) -> None:
    requested: list[str] = []
    for parts in (PARTS[:1], PARTS[:2], PARTS[1:2], PARTS):
        owner(tmp_path).update(request_of(parts, known=bool(requested), requested=requested))
    assert requested == list(PARTS)


def test_a_connector_that_has_run_does_not_restart_from_the_beginning_without_its_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match=r"share checkpoint\.location"):
        owner(tmp_path / "elsewhere").update(request_of(PARTS))
    assert not (tmp_path / "elsewhere").exists()


def test_an_unfinished_re_split_of_another_worker_is_finished_first(tmp_path: Path) -> None:
    owner(tmp_path).update(request_of(PARTS, known=False))
    theirs = Split(function=SplitFunction.PARTS_V1, partitions_by_task=(PARTS[:1], PARTS[1:]))
    generation = GenerationId(number=2, id="theirs")
    close_generation_and_return_stored_plan(tmp_path, plan(generation, theirs))
    with pytest.raises(SupersededError, match="has created checkpoint generation 2-theirs"):
        owner(tmp_path).update(request_of(PARTS))
    assert not is_generation_closed_or_removed(tmp_path / "gen-2")
    assert owner(tmp_path).update(request_of(PARTS)).generation.number == 3
    close_generation_and_return_stored_plan(tmp_path, plan(GenerationId(number=4, id="theirs"), theirs))
    assert owner(tmp_path).update(request_of(PARTS[:1], PARTS[1:])).generation == GenerationId(number=4, id="theirs")


def test_an_owner_that_was_frozen_closes_no_generation_that_was_created_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former owner waits for its tasks to stop; the next one finishes, and creates a generation of a new config."""
    owner(tmp_path).update(request_of(PARTS, known=False))
    newer = request_of(PARTS[:2], sink__path="/newer")

    def overtaken(generation: Path, manifest: Manifest) -> frozenset[int]:
        monkeypatch.undo()
        with pytest.raises(SupersededError):
            owner(tmp_path).update(newer)
        assert owner(tmp_path).update(newer).generation.number == 3
        return frozenset()

    monkeypatch.setattr(owner_module, "started_tasks_without_recorded_stop", overtaken)
    with pytest.raises(SupersededError, match="Another worker has created checkpoint generation 3-"):
        owner(tmp_path).update(request_of(PARTS[:1], PARTS[1:]))
    assert not is_generation_closed_or_removed(tmp_path / "gen-3")


def test_two_workers_that_create_the_first_generation_agree_on_one(tmp_path: Path) -> None:
    def initial_positions(source_partitions: Sequence[str], *, is_new_connector: bool) -> dict[str, int]:
        owner(tmp_path).update(request_of(PARTS[:1], PARTS[1:], known=False))
        return dict.fromkeys(source_partitions, 3)

    with pytest.raises(SupersededError, match="Another worker has created checkpoint generation 1-"):
        owner(tmp_path).update(replace(request_of(PARTS, known=False), find_initial_positions=initial_positions))
    assert not is_generation_closed_or_removed(tmp_path / "gen-1")


def test_a_worker_whose_fence_is_closed_closes_no_generation(tmp_path: Path) -> None:
    owner(tmp_path).update(request_of(PARTS, known=False))
    fence = Fence()
    fence.close_and_wait()
    with pytest.raises(FencedError):
        GenerationUpdater(finisher(tmp_path, fence), tasks_stop_timeout_ms=0).update(request_of(PARTS[:1], PARTS[1:]))
    assert not is_generation_closed_or_removed(tmp_path / "gen-1")


def test_while_a_task_is_failed_new_parts_or_another_number_of_tasks_close_no_generation(tmp_path: Path) -> None:
    def held(*tasks: Sequence[str], **config: str) -> GenerationRequest:
        return replace(
            request_of(*tasks),
            config=CONFIG | {key.replace("__", "."): value for key, value in config.items()},
            keeps_source_parts=True,
        )

    schema = frozenset(["schema"])
    first = owner(tmp_path).update(request_of(PARTS[:2], known=False))
    assert owner(tmp_path).update(held(PARTS)) == first
    assert owner(tmp_path).update(held(PARTS[:1], PARTS[1:2])) == first
    assert not is_generation_closed_or_removed(tmp_path / "gen-1")
    # A changed sink or a removed part may be the cause of the failure.
    assert owner(tmp_path).update(held(PARTS[:2], sink__path="/mended")).generation.number == 2
    assert owner(tmp_path).update(held(PARTS[1:2], sink__path="/mended")).generation.number == 3
    # Tasks of this generation would have no columns at all.
    columns = owner(tmp_path).update(
        replace(held(PARTS[1:2], sink__path="/mended"), keys_to_infer=schema, infer_values=inferred)
    )
    assert (columns.generation.number, columns.inferred_values) == (4, {"schema": "row BIGINT"})


def inferred(known: Mapping[str, str]) -> Mapping[str, str]:
    return {"schema": "row BIGINT"}


def test_another_sink_closes_no_generation_whose_positions_cannot_be_read(tmp_path: Path) -> None:
    """Also if its tasks are unknown, for example because their configs were never published."""
    split = Split(function=SplitFunction.PARTS_V1, partitions_by_task=(("stream",),))
    now = GenerationRequest(
        config=CONFIG,
        split=split,
        identify_sink=lambda config: {"path": config["sink.path"]},
        find_initial_positions=lambda parts, *, is_new_connector: {},
        keys_to_infer=frozenset(),
        infer_values=dict,
        is_split_fixed=True,
        has_task_configs_with_generation=False,
        make_legacy_layout_manifest=None,
    )
    streams = replace(finisher(tmp_path), find_position_store=lambda config: UnmovablePositionStore())
    first = GenerationUpdater(streams, tasks_stop_timeout_ms=0).update(now)
    with pytest.raises(WorldError, match="configure the former sink again"):
        GenerationUpdater(streams, tasks_stop_timeout_ms=0).update(
            replace(now, config=CONFIG | {"sink.path": "/other"})
        )
    assert GenerationUpdater(streams, tasks_stop_timeout_ms=0).update(now) == first


def plan(generation: GenerationId, split: Split) -> GenerationPlan:
    return GenerationPlan(generation=generation, split=split, config=CONFIG, inferred_values={}, initial_positions={})


def test_a_re_split_waits_for_tasks_to_stop_up_to_the_grace_period(tmp_path: Path) -> None:
    first = owner(tmp_path).update(request_of(PARTS, known=False))
    held = take_over_in_open_generation(tmp_path / "gen-1", first.generation, 0)

    def stop_when_closed() -> None:
        while not is_generation_closed_or_removed(tmp_path / "gen-1"):
            threading.Event().wait(0.01)
        assert held.path.is_dir(), "the checkpoint was taken before it was released"
        record_task_stopped(tmp_path / "gen-1", 0)

    runtime = threading.Thread(target=stop_when_closed)
    runtime.start()
    assert owner(tmp_path, tasks_stop_timeout_ms=60_000).update(request_of(PARTS[:1], PARTS[1:])).generation.number == 2
    runtime.join()
    # The second task never reports that it has stopped.
    record_task_stopped(tmp_path / "gen-2", 0)
    assert owner(tmp_path, tasks_stop_timeout_ms=100).update(request_of(PARTS)).generation.number == 3


def test_an_overtaken_finisher_continues_if_the_other_one_makes_no_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner(tmp_path).update(request_of(PARTS, known=False))
    commit: Callable[..., None] = ResplitFinisher.publish_next_generation
    commits: list[int] = []

    def commit_late(self: ResplitFinisher, number: int, held: Any) -> None:
        commits.append(number)
        if len(commits) == 1:
            finisher(tmp_path).take_over_checkpoints(number)
        commit(self, number, held)

    monkeypatch.setattr(ResplitFinisher, "publish_next_generation", commit_late)
    assert owner(tmp_path).update(request_of(PARTS[:1], PARTS[1:])).generation.number == 2
    assert commits == [1, 1]


def test_a_worker_whose_fence_is_closed_stops_waiting(tmp_path: Path) -> None:
    owner(tmp_path).update(request_of(PARTS, known=False))
    close_generation_and_return_stored_plan(
        tmp_path, plan(GenerationId(number=2, id="b"), request_of(PARTS[:1], PARTS[1:]).split)
    )
    fence = Fence()
    fence.close_and_wait()
    with pytest.raises(FencedError):
        GenerationUpdater(finisher(tmp_path, fence), tasks_stop_timeout_ms=60_000).update(
            request_of(PARTS[:1], PARTS[1:])
        )


def test_checkpoints_without_generations_become_the_first_generation_at_once(tmp_path: Path) -> None:
    create_first_checkpoint_if_absent(tmp_path / "0")
    split = Split(function=SplitFunction.PATH_HASH_V0, partitions_by_task=(("/in",), ("/in",)))
    flat = Manifest(
        generation=GenerationId(number=0, id="flat"),
        split=split,
        config=CONFIG,
        inferred_values={},
        positions={},
        absent_partition_positions={},
    )
    now = GenerationRequest(
        config=CONFIG,
        split=Split(function=SplitFunction.PATH_HASH_V1, partitions_by_task=split.partitions_by_task),
        identify_sink=lambda config: config,
        find_initial_positions=lambda parts, *, is_new_connector: {},
        keys_to_infer=frozenset(),
        infer_values=dict,
        is_split_fixed=False,
        has_task_configs_with_generation=True,
        make_legacy_layout_manifest=lambda: flat,
    )
    files = ResplitFinisher(
        connector_path=tmp_path,
        find_position_store=lambda config: FileSourcePositionStore(),
        run_batch_in_flight=finisher(tmp_path).run_batch_in_flight,
        fence=Fence(),
    )
    assert GenerationUpdater(files, tasks_stop_timeout_ms=60_000).update(now).generation.number == 1


def test_a_waiting_worker_finishes_a_closed_generation_only_if_its_owner_makes_no_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = owner(tmp_path).update(request_of(PARTS, known=False))
    assert owner(tmp_path).finish_abandoned_resplit_and_read_newest() == first
    split = Split(function=SplitFunction.PARTS_V1, partitions_by_task=(PARTS[:1], PARTS[1:]))
    close_generation_and_return_stored_plan(tmp_path, plan(GenerationId(number=2, id="b"), split))
    assert read_newest_plan_or_manifest(tmp_path) == read_plan_of_next_generation(tmp_path / "gen-1")
    with monkeypatch.context() as patch:
        signs = iter(range(100))
        patch.setattr(owner_module, "resplit_liveness_mtime_ns", lambda generation: next(signs))
        assert owner(tmp_path).finish_abandoned_resplit_and_read_newest() is None
    made = owner(tmp_path).finish_abandoned_resplit_and_read_newest()
    assert made is not None
    assert made.generation == GenerationId(number=2, id="b")


def test_only_the_owner_can_split_checkpoints_without_generations(tmp_path: Path) -> None:
    assert read_newest_plan_or_manifest(tmp_path / "nothing") is None
    create_first_checkpoint_if_absent(tmp_path / "0")
    assert read_newest_plan_or_manifest(tmp_path) is None
    with pytest.raises(WorldError, match="contains no configs of their tasks"):
        owner(tmp_path).update(request_of(PARTS, known=False))


def test_a_fixed_split_is_never_changed(tmp_path: Path) -> None:
    owner(tmp_path).update(request_of(PARTS, known=False))
    with pytest.raises(WorldError, match="checkpoints of 1 task"):
        owner(tmp_path).update(request_of(PARTS[:1], PARTS[1:], fixed=True))
    assert owner(tmp_path).update(request_of(PARTS, fixed=True, sink__path="/other")).generation.number == 2
