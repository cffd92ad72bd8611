"""A change of positions creates a generation: which positions it has, and what the next split makes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.nouns.errors import WorldError
from coterie.spark.checkpoint import HeldCheckpoint
from coterie.spark.fence import Fence, FencedError
from coterie.spark.generations.layout import generation_folder, newest_generation_number
from coterie.spark.generations.manifest import Manifest, PositionChange, read_manifest
from coterie.spark.generations.reached import read_reached_positions
from coterie.spark.generations.resplit import ResplitFinisher
from coterie.spark.generations.split import SplitFunction
from coterie.spark.generations.updater import FindInitialPositions, GenerationUpdater, PositionChangeRequest
from coterie.spark.sources.kafka_positions import KafkaPositionStore
from tests.spark.generations.owners import CONFIG, PARTS, owner, request_of

BEGIN = dict.fromkeys(PARTS, 3)


def change(
    connector: Path, positions: Mapping[str, int | None], *, removes_others: bool = False, was_started: bool = True
) -> None:
    owner(connector).change_positions(
        PositionChangeRequest(
            change=PositionChange(positions=positions, removes_others=removes_others),
            config=CONFIG,
            split_function=SplitFunction.PARTS_V1,
            has_task_configs_with_generation=was_started,
        )
    )


def newest(connector: Path) -> Manifest:
    number = newest_generation_number(connector)
    assert number is not None
    return read_manifest(generation_folder(connector, number))


def reached(connector: Path) -> Mapping[str, int]:
    return read_reached_positions(connector, KafkaPositionStore(), lambda config: True)


class EndedFinisher(ResplitFinisher):
    """Is ended after the generation was closed."""

    def take_over_checkpoints(self, closed_generation_number: int) -> list[HeldCheckpoint]:
        self.fence.close_nowait()
        return super().take_over_checkpoints(closed_generation_number)


def run_nothing(manifest: Manifest, task: int, held: HeldCheckpoint) -> None:
    raise AssertionError("no batch is in flight")


def recorded_in(requested: dict[bool, list[str]]) -> FindInitialPositions:
    """Returns the position 4 for each partition, and adds the partition to those of ``requested``, by whether it begins
    as one of a new connector."""

    def initial_positions(source_partitions: Sequence[str], *, is_new_connector: bool) -> dict[str, int]:
        requested[is_new_connector] += source_partitions
        return dict.fromkeys(source_partitions, 4)

    return initial_positions


def test_a_change_keeps_the_split_and_the_other_positions(tmp_path: Path) -> None:
    first = owner(tmp_path).update(request_of(PARTS[:2], PARTS[2:], known=False))
    change(tmp_path, {PARTS[1]: 8})
    second = newest(tmp_path)
    assert second.generation.number == 2
    assert (second.split, second.config, second.reset_partitions_without_position) == (first.split, first.config, ())
    assert reached(tmp_path) == {**BEGIN, PARTS[1]: 8}
    # The next start keeps this generation.
    assert owner(tmp_path).update(request_of(PARTS[:2], PARTS[2:])) == second


def test_a_removed_position_is_the_one_of_a_new_connector_at_the_next_split(tmp_path: Path) -> None:
    owner(tmp_path).update(request_of(PARTS[:2], known=False))
    change(tmp_path, {PARTS[0]: 7, PARTS[1]: None})
    assert reached(tmp_path) == {PARTS[0]: 7}
    assert newest(tmp_path).reset_partitions_without_position == (PARTS[1],)
    assert owner(tmp_path).finish_abandoned_resplit_and_read_newest() is None
    # A part that is new in the same split is one that was found later.
    requested: dict[bool, list[str]] = {True: [], False: []}
    manifest = owner(tmp_path).update(replace(request_of(PARTS), find_initial_positions=recorded_in(requested)))
    assert requested == {True: [PARTS[1]], False: [PARTS[2]]}
    assert manifest.positions == {PARTS[0]: 7, PARTS[1]: 4, PARTS[2]: 4}
    assert manifest.reset_partitions_without_position == ()
    assert owner(tmp_path).update(request_of(PARTS)) == manifest


def test_all_positions_are_removed_and_removing_them_again_changes_nothing(tmp_path: Path) -> None:
    owner(tmp_path).update(request_of(PARTS, known=False))
    owner(tmp_path).update(request_of(PARTS[:2]))  # PARTS[2] is absent now, with a position.
    for _ in range(2):
        change(tmp_path, {}, removes_others=True)
        assert reached(tmp_path) == {}
        assert newest(tmp_path).reset_partitions_without_position == PARTS[:2]
    assert owner(tmp_path).update(request_of(PARTS)).positions == BEGIN


def test_after_all_positions_were_removed_an_added_partition_begins_as_one_of_a_new_connector(tmp_path: Path) -> None:
    owner(tmp_path).update(request_of(PARTS[:2], known=False))
    change(tmp_path, {}, removes_others=True)
    requested: dict[bool, list[str]] = {True: [], False: []}
    owner(tmp_path).update(replace(request_of(PARTS), find_initial_positions=recorded_in(requested)))
    assert requested == {True: list(PARTS), False: []}


def test_a_removed_position_of_a_partition_that_was_added_since_is_the_one_of_a_new_connector(tmp_path: Path) -> None:
    owner(tmp_path).update(request_of(PARTS[:2], known=False))
    change(tmp_path, {PARTS[2]: None})
    requested: dict[bool, list[str]] = {True: [], False: []}
    owner(tmp_path).update(replace(request_of(PARTS), find_initial_positions=recorded_in(requested)))
    assert requested == {True: [PARTS[2]], False: []}


def test_a_connector_with_a_set_position_in_a_new_partition_is_no_new_connector(tmp_path: Path) -> None:
    """As after a change of an offset in a topic that was created again: its former partitions are reset."""
    owner(tmp_path).update(request_of(PARTS[:1], known=False))
    change(tmp_path, {PARTS[0]: None, PARTS[1]: 7})
    requested: dict[bool, list[str]] = {True: [], False: []}
    manifest = owner(tmp_path).update(replace(request_of(PARTS[1:]), find_initial_positions=recorded_in(requested)))
    assert requested == {True: [], False: [PARTS[2]]}
    assert manifest.positions == {PARTS[1]: 7, PARTS[2]: 4}


def test_positions_of_absent_partitions_do_not_make_a_connector_whose_input_is_reset_one_that_has_read(
    tmp_path: Path,
) -> None:
    """For example the partitions of a deleted topic, or of a topic that the config no longer names."""
    owner(tmp_path).update(request_of(PARTS[:2], known=False))
    owner(tmp_path).update(request_of(PARTS[1:2]))
    change(tmp_path, {PARTS[1]: None})
    requested: dict[bool, list[str]] = {True: [], False: []}
    manifest = owner(tmp_path).update(replace(request_of(PARTS[1:]), find_initial_positions=recorded_in(requested)))
    assert requested == {True: list(PARTS[1:]), False: []}
    assert manifest.absent_partition_positions == {PARTS[0]: 3}


def test_the_last_of_two_changes_of_a_position_applies(tmp_path: Path) -> None:
    owner(tmp_path).update(request_of(PARTS, known=False))
    change(tmp_path, {PARTS[0]: None, PARTS[1]: None})
    change(tmp_path, {PARTS[0]: 5})
    assert reached(tmp_path) == {PARTS[0]: 5, PARTS[2]: 3}
    assert newest(tmp_path).reset_partitions_without_position == (PARTS[1],)


@pytest.mark.parametrize("fixed", [False, True])
def test_positions_that_are_set_before_the_first_split_are_used_by_it(tmp_path: Path, fixed: bool) -> None:
    change(tmp_path / "c", {PARTS[0]: 9, PARTS[1]: None}, was_started=False)
    assert newest(tmp_path / "c").split.partitions_by_task == ()
    assert reached(tmp_path / "c") == {PARTS[0]: 9}
    requested: list[str] = []
    manifest = owner(tmp_path / "c").update(request_of(PARTS, known=False, fixed=fixed, requested=requested))
    assert requested == list(PARTS[1:])
    assert manifest.positions == {**BEGIN, PARTS[0]: 9}
    assert manifest.generation.number == 2


def test_a_change_without_the_checkpoints_of_a_started_connector_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match=r"share checkpoint\.location"):
        change(tmp_path, {PARTS[0]: 9})


def test_a_stored_change_is_shown_before_it_is_finished_and_is_finished_by_the_next_split(tmp_path: Path) -> None:
    """As after a kill of the worker that made the change."""
    owner(tmp_path).update(request_of(PARTS, known=False))
    killed = EndedFinisher(
        connector_path=tmp_path,
        find_position_store=lambda config: KafkaPositionStore(),
        run_batch_in_flight=run_nothing,
        fence=Fence(),
    )
    updater = GenerationUpdater(killed, tasks_stop_timeout_ms=0, liveness_timeout_ms=200)
    request = PositionChangeRequest(
        change=PositionChange(positions={PARTS[0]: 9}),
        config=CONFIG,
        split_function=SplitFunction.PARTS_V1,
        has_task_configs_with_generation=True,
    )
    with pytest.raises(FencedError):
        updater.change_positions(request)
    assert newest_generation_number(tmp_path) == 1
    assert reached(tmp_path) == {**BEGIN, PARTS[0]: 9}
    assert owner(tmp_path).update(request_of(PARTS)).positions == {**BEGIN, PARTS[0]: 9}
