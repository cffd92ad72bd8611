"""The real machines keep their invariants under random faults, and the simulator is deterministic."""

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from coterie.lab.simulator.__main__ import SIMULATE_FUNCTION_BY_PLAY, main, parse_seeds, read_digests, summary_line
from coterie.lab.simulator.clients.run import simulate_clients
from coterie.lab.simulator.coordinator import CoordinatorDisk
from coterie.lab.simulator.fleet.run import simulate_fleet
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.lab.simulator.outcome import SimulationOutcome
from coterie.lab.simulator.producers.run import simulate_producers
from coterie.lab.simulator.records import RECORDED_NAME_BY_CLASS, RecordKind
from coterie.lab.simulator.sim_process import SimProcess, newest_process, sorted_by_name
from coterie.lab.simulator.world import SimTimers, World
from tests.lab import plays
from tests.lab.plays import in_one_process

KEPT_DIGESTS = {
    play: read_digests(Path(__file__).parent / "digests" / f"{play}.txt") for play in SIMULATE_FUNCTION_BY_PLAY
}
COMPARED_MAX = 10
"""The last seed whose digest the tests compare; `make digests` compares the other seeds, too."""


def assert_digest(play: str, outcome: SimulationOutcome) -> None:
    """After an intended change of records or effects, rewrite the digests: see `make help`."""
    assert outcome.seed > COMPARED_MAX or outcome.digest == KEPT_DIGESTS[play][outcome.seed], (
        "the digest of the play differs from the kept one"
    )


def assert_holds(outcome: SimulationOutcome) -> None:
    last_lines = "\n".join(outcome.trace_text.splitlines()[-15:])
    assert outcome.violation is None, f"{outcome.violation}\n{last_lines}"


def seed_params(seeds: range, shared: range) -> list[object]:
    """``seeds`` as parameters; one process runs those that are ``shared`` with other tests."""
    return [pytest.param(seed, marks=in_one_process) if seed in shared else seed for seed in seeds]


@in_one_process
@pytest.mark.parametrize("seed", plays.SEEDS)
def test_all_invariants_hold_for_workers(seed: int) -> None:
    outcome = plays.fleet(seed)
    assert_holds(outcome)
    assert outcome.generation_or_transaction_count > 1, "a seed without rebalances tests nothing"
    assert_digest("fleet", outcome)


@in_one_process
@pytest.mark.timeout(600)  # All plays, if no test before has played them.
def test_the_plays_of_workers_cover_all_listed_events() -> None:
    """An event that occurs in no seed is not tested, even if all invariants hold."""
    stories = "\n".join(plays.fleet(seed).trace_text for seed in (1, 5, 7, 8, 10, 17, 24, 26))
    for pattern in (
        " claims ",
        " drain True",
        " restart True",
        " leader killed ",
        " reads late ",
        " protocol set ",
        " replaced ",
        " narrow ",
        r" query dies \S+ \S+ True",
        r" query dies \S+ \S+ False",
        " task restarts ",
    ):
        assert re.search(pattern, stories), pattern


@in_one_process
@pytest.mark.parametrize("seed", plays.SEEDS)
def test_all_invariants_hold_for_a_connect_group(seed: int) -> None:
    outcome = plays.connect(seed)
    assert_holds(outcome)
    assert outcome.generation_or_transaction_count > 1, "a seed without rebalances tests nothing"
    assert_digest("connect", outcome)


@in_one_process
@pytest.mark.timeout(600)  # All plays, if no test before has played them.
def test_the_plays_of_connect_groups_cover_all_listed_events() -> None:
    """An event that occurs in no seed is not tested, even if all invariants hold."""
    stories = "\n".join(plays.connect(seed).trace_text for seed in plays.SEEDS)
    for pattern in (
        " claims ",
        " drain True",
        " restart True",
        " leader killed ",
        " reads late ",
        " narrow ",
        " task restarts ",
        r" connection ends \S+ worker RST",
        r" connection ends \S+ broker RST",
        r" connection ends \S+ broker FIN",
        " timer fired connection ",
        " timer fired connect session ",
        " timer fired release ",
        " timer fired delay ",
        " timer fired revocation ",
        " timer fired computation ",
        " group configured connect.session.timeout.ms",
        " member removed ",
        " repeated ",
        " suspended ",
        " computes coordinator ",
        r" computes w\d",
        "ConnectHeartbeat STALE_REQUEST",
        "ConnectHeartbeat UNKNOWN_MEMBER_ID",
        "ConnectHeartbeat UNRELEASED_INSTANCE_ID",
        "Install INVALID_ASSIGNMENT",
    ):
        assert re.search(pattern, stories), pattern


@pytest.mark.parametrize("seed", seed_params(range(1, 201), shared=plays.CLIENTS_SEEDS))
def test_all_invariants_hold_for_ordinary_clients(seed: int) -> None:
    outcome = plays.clients(seed) if seed in plays.CLIENTS_SEEDS else simulate_clients(seed)
    assert_holds(outcome)
    assert_digest("clients", outcome)


@in_one_process
@pytest.mark.timeout(600)  # All plays, if no test before has played them.
def test_the_plays_of_clients_cover_all_listed_events() -> None:
    """An event that occurs in no seed is not tested, even if all invariants hold."""
    stories = "\n".join(plays.clients(seed).trace_text for seed in plays.CLIENTS_SEEDS)
    for pattern in (
        " fenced c",
        "group_max_size_reached",
        "DeleteGroup none",
        "OffsetDelete none",
        "member_id_required",
    ):
        assert pattern in stories, pattern


@pytest.mark.parametrize("seed", seed_params(range(1, 101), shared=plays.PRODUCERS_SEEDS))
def test_all_invariants_hold_for_producers_and_their_transactions(seed: int) -> None:
    outcome = plays.producers(seed) if seed in plays.PRODUCERS_SEEDS else simulate_producers(seed)
    assert_holds(outcome)
    assert outcome.generation_or_transaction_count, "a seed without a transaction tests nothing"
    assert_digest("producers", outcome)


@in_one_process
@pytest.mark.timeout(600)  # All plays, if no test before has played them.
def test_the_plays_of_producers_cover_all_listed_events() -> None:
    stories = "\n".join(plays.producers(seed).trace_text for seed in plays.PRODUCERS_SEEDS)
    for pattern in (
        " committed ",
        " aborted ",
        " transaction ended TimeoutPassed ",
        " transaction ended InitProducerId ",
        r" (refused|produced) .* producer_fenced",
        r" (refused|produced) .* invalid_txn_state",
        r" (refused|produced) .* invalid_producer_epoch",
        " batch given up ",
        " disk fails",
        " broker crashes",
        r" becomes \S+ \d+ 32766",
    ):
        assert re.search(pattern, stories), pattern


@in_one_process
@pytest.mark.parametrize("play", sorted(SIMULATE_FUNCTION_BY_PLAY))
def test_a_seed_gives_the_same_trace_with_any_string_hashes(play: str) -> None:
    """The tests' own process has other string hashes, and so had the process that wrote the kept digests."""
    ended = subprocess.run(
        [sys.executable, "-m", "coterie.lab.simulator", "--play", play, "--seeds", "5-7"],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    outcomes = [plays.BY_NAME[play](seed) for seed in range(5, 8)]
    assert ended.stdout.splitlines() == [summary_line(outcome) for outcome in outcomes]
    assert [outcome.digest for outcome in outcomes] == [KEPT_DIGESTS[play][seed] for seed in range(5, 8)]


def test_different_seeds_give_different_traces() -> None:
    assert simulate_fleet(1, faults_ms=60_000).digest != simulate_fleet(2, faults_ms=60_000).digest


def test_seeds_are_given_as_numbers_and_ranges() -> None:
    assert parse_seeds("3 1-2,9") == [3, 1, 2, 9]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "x"], "'x' is neither a seed"),
        (["--seeds", "1-"], "'1-' is neither a seed"),
        (["--seeds", "5-3"], "the range 5-3 is empty"),
        (["--seeds", ""], "no seed is given"),
        (["--jobs", "0"], "'0' is not a number of processes"),
    ],
)
def test_a_command_that_would_check_no_seed_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert message in capsys.readouterr().err


def test_the_command_prints_one_digest_per_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "1"]) == 0
    assert KEPT_DIGESTS["fleet"][1] in capsys.readouterr().out


def test_the_command_writes_digests_and_reports_different_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, play = tmp_path / "digests.txt", ["--play", "producers", "--quiet"]
    assert main([*play, "--seeds", "3,1", "--write", str(kept)]) == 0
    assert list(read_digests(kept)) == [3, 1]
    assert main([*play, "--compare", str(kept)]) == 0
    assert main([*play, "--compare", str(kept), "--seeds", "1-3"]) == 1, "no digest of seed 2 is kept"
    kept.write_text(kept.read_text().replace("1 ", "1 0"))
    capsys.readouterr()
    assert main([*play, "--compare", str(kept)]) == 1
    assert capsys.readouterr().out == f"1 of 2 digests are missing in {kept} or differ from it: seeds [1]\n"


def test_two_processes_print_the_seeds_in_the_order_of_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "12 3,7"]) == 0
    alone = capsys.readouterr().out
    assert main(["--seeds", "12 3,7", "--jobs", "2"]) == 0
    assert capsys.readouterr().out == alone


def test_a_violation_is_pickled_completely() -> None:
    violation = pickle.loads(pickle.dumps(Violation(Invariant.QUIET, "then came 7")))
    assert (violation.invariant, str(violation)) == (Invariant.QUIET, "quiet: then came 7")


# -- the digest -----------------------------------------------------------------------------------------------------


def test_a_record_changes_the_digest_and_a_log_line_does_not() -> None:
    worlds = [World(0) for _ in range(4)]
    worlds[1].add_to_trace("a line that is not recorded")
    worlds[2].add_record(RecordKind.PAUSED, "w1")
    worlds[3].add_record(RecordKind.PAUSED, "w2")
    assert len({world.digest for world in worlds}) == 3
    assert worlds[0].digest == worlds[1].digest


@contextmanager
def renamed(classes: Iterable[type]) -> Iterator[None]:
    names = {class_: (class_.__name__, class_.__qualname__) for class_ in classes}
    try:
        for class_ in names:
            class_.__name__ = class_.__qualname__ = "Renamed"
        yield
    finally:
        for class_, (name, qualified) in names.items():
            class_.__name__, class_.__qualname__ = name, qualified


def test_reworded_log_lines_and_renamed_classes_do_not_change_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    before = simulate_fleet(1, faults_ms=60_000)
    add_to_trace = World.add_to_trace
    monkeypatch.setattr(World, "add_to_trace", lambda world, text: add_to_trace(world, f"reworded: {text}"))
    with renamed(RECORDED_NAME_BY_CLASS):
        after = simulate_fleet(1, faults_ms=60_000)
    assert "reworded: " in after.trace_text
    assert after.digest == before.digest


# -- the simulated world --------------------------------------------------------------------------------------------


def test_callbacks_for_the_same_time_run_in_the_order_of_scheduling() -> None:
    world, happened = World(0), list[int]()
    for number in range(5):
        world.call_after(10, partial(happened.append, number))
    world.run_until(9)
    assert happened == []
    world.run_until(10)
    assert happened == [0, 1, 2, 3, 4]


def test_a_moved_timer_fires_once_and_a_closed_one_never() -> None:
    world, fired = World(0), list[tuple[int, str]]()
    alarms = SimTimers[str](world, lambda key: fired.append((world.now_ms, key)))
    alarms.set("a", 10)
    alarms.set("a", 20)
    alarms.set("b", 15)
    alarms.set("c", 30)
    alarms.cancel("b")
    world.run_until(25)
    assert fired == [(20, "a")]
    alarms.close()
    world.run_until(100)
    assert fired == [(20, "a")]


def test_a_paused_process_runs_missed_callbacks_on_resume_and_a_killed_one_never() -> None:
    world, running, happened = World(0), dict[str, SimProcess](), list[str]()
    paused, killed = (SimProcess(world, name, name, running) for name in ("paused", "killed"))
    for process in (paused, killed):
        process.call_after(10, partial(happened.append, process.name))
    paused.pause()
    killed.kill(RecordKind.KILLED)
    world.run_until(20)
    assert happened == []
    paused.resume()
    assert happened == ["paused"]


def test_the_newest_running_process_of_a_name_is_found() -> None:
    world, running = World(0), dict[str, SimProcess]()
    for name, home in (("b", "1"), ("a", "1"), ("c", "2")):
        SimProcess(world, name, home, running)
    assert [process.name for process in sorted_by_name(running)] == ["a", "b", "c"]
    for expected in ("a", "b"):
        process = newest_process(running, "1")
        assert process is not None
        assert process.name == expected
        process.kill(RecordKind.KILLED)
    assert newest_process(running, "1") is None


@pytest.mark.parametrize("seed", range(20))
def test_after_a_crash_a_disk_has_all_acknowledged_records_and_only_appended_ones(seed: int) -> None:
    world = World(seed)
    disk, acknowledged = CoordinatorDisk(world), list[int]()
    for number in range(20):
        world.call_after(number, partial(disk.append, [(bytes([number]), None)], acknowledged.append))
    world.run_until(world.rng.randint(0, 40))
    disk.crash()
    assert sum(acknowledged) <= len(disk.durable_lines) <= 20
    assert disk.durable_lines == [(bytes([number]), None) for number in range(len(disk.durable_lines))]
