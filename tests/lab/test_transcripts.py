"""The article's designs, KIP-987's steps and test plan, KIP-415's upgrade and downgrade, and a drain, played by the
real machines.

KIP-415's six scenarios are in `test_scenarios`.

``SCENARIOS=rewrite`` rewrites the answers; the difference is then reviewed like any other. It changes neither the
quotes from documents nor the list of deviations.
"""

import re
from math import ceil
from pathlib import Path

import pytest

from tests.lab.recorded_transcript import check_recorded

FOLDER = Path(__file__).parent.parent / "scenarios" / "workers"
NAMES = sorted(path.stem for path in FOLDER.glob("*.txt"))
COUNTS = re.compile(r"^  moves: (\d+), optimum: (\d+), M\*: (\d+)(, the others .*)?$", re.MULTILINE)


def read(name: str) -> str:
    return (FOLDER / name).read_text()


def counts(name: str) -> list[tuple[int, int, int]]:
    """The moves made, the optimum and M* of each rebalance."""
    return [(int(made), int(optimum), int(bound)) for made, optimum, bound, _ in COUNTS.findall(read(f"{name}.txt"))]


def revoked_jobs(name: str, worker: str) -> list[str]:
    """The jobs that each rebalance revokes from ``worker``."""
    return re.findall(
        rf"^  {worker}\(delay: \d+, assigned: \[.*\], revoked: \[(.*)\]\)", read(f"{name}.txt"), re.MULTILINE
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_recorded_transcript_equals_the_played_one(name: str) -> None:
    check_recorded(FOLDER / f"{name}.txt")


def test_a_transcript_quotes_every_line_of_its_document() -> None:
    parts = re.findall(r"^## (\w+): .*?```\n(.*?)\n```", read("documents.md"), flags=re.MULTILINE | re.DOTALL)
    assert len(parts) == 5
    for name, text in parts:
        quoted = re.findall(r"^# (?:ARTICLE|K987|K415) (.*)$", read(f"{name}.txt"), flags=re.MULTILINE)
        assert quoted == text.splitlines()


def test_every_deviation_names_a_quoted_line_and_a_line_of_the_transcript() -> None:
    for section in read("deviations.md").split("\n## ")[1:]:
        name, _, text = section.partition("\n")
        entries = re.findall(r"^- theirs: (.+)\n- ours: (.+)\n- ruling: (.+)$", text, flags=re.MULTILINE)
        assert entries
        assert len(entries) == text.count("- theirs:")
        for theirs, ours, _ in entries:
            assert re.search(rf"^# (ARTICLE|K987|K415) {re.escape(theirs)}$", read(f"{name}.txt"), re.MULTILINE)
            assert re.search(rf"^ *{re.escape(ours)}$", read(f"{name}.txt"), re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_every_rebalance_makes_the_optimal_moves_or_names_the_reason_for_fewer(name: str) -> None:
    for made, optimum, bound, later in COUNTS.findall(read(f"{name}.txt")):
        assert int(bound) <= int(optimum)
        assert (int(made) < int(optimum)) == bool(later)


def test_design_i_assigns_at_once_and_needs_a_move_when_the_worker_returns() -> None:
    assert "delay: 300000" not in read("design_i.txt")
    assert sum(made for made, _, _ in counts("design_i")) == 1


def test_in_design_ii_w1_and_w3_never_stop_a_job() -> None:
    assert sum(made for made, _, _ in counts("design_ii")) == 0
    assert not any(revoked_jobs("design_ii", "W1") + revoked_jobs("design_ii", "W3"))


def test_in_design_iii_the_moves_add_up_to_the_bound_in_the_fewest_rebalances() -> None:
    moving = [count for count in counts("design_iii") if count[0]]
    bound_at_start = moving[0][2]
    assert sum(made for made, _, _ in moving) == bound_at_start == 6
    assert len(moving) == ceil(bound_at_start / 2)


def test_a_drain_stops_only_the_jobs_of_the_draining_worker() -> None:
    assert not any(revoked_jobs("drain", "W1") + revoked_jobs("drain", "W3"))
    assert sum(made for made, _, _ in counts("drain")) == 2
    assert not re.search(r"delay: [^0]", read("drain.txt"))


def test_jobs_released_before_all_workers_drain_return_unless_the_leader_changes() -> None:
    same, another = read("drain_of_all.txt").split("# The same with another leader")
    before, after = re.findall(r"^Initial group and assignment: (.*)$", same, re.MULTILINE)
    assert before == after
    assert "is unassigned" not in same
    assert another.count(" is unassigned: every worker is draining") == 5


def test_a_rolling_update_to_static_workers_stops_only_jobs_that_move() -> None:
    """Only jobs that joining workers claim, or that leaving workers release, are stopped."""
    assert all(made == bound for made, _, bound in counts("k987_rolling_update"))


def test_an_upgrade_from_eager_defers_no_job_and_afterwards_stops_only_jobs_that_move() -> None:
    before, after = read("k415_upgrade.txt").split("The group speaks compatible\n")
    assert "delay: 300000" not in before
    first_rebalance, *later = COUNTS.findall(after)
    assert after.startswith("W1 computes")
    assert "delay: 300000" not in after.partition("moves:")[0], (
        "the jobs that all workers have stopped are assigned in the rebalance that selects the protocol"
    )
    assert first_rebalance[0] == "4", "all jobs of W1 and W2"
    assert all(made == optimum == bound for made, optimum, bound, _ in later)
    assert re.findall(r"^The group speaks (\w+)$", after, re.MULTILINE) == ["sessioned", "static"]


def test_a_downgrade_to_eager_is_one_double_rebalance_whose_first_half_assigns_nothing() -> None:
    _, after = read("k415_downgrade.txt").split("The group speaks eager\n")
    assigned = [
        sorted(job for jobs in re.findall(r"assigned: \[(.*?)\]", part) for job in jobs.split(", ") if job)
        for part in after.split("sends assignments:\n")[1:]
    ]
    everything = ["AC0", "AT1", "AT2", "BC0", "BT1"]
    assert assigned == [[], everything, everything], "the double rebalance, then the one for the joining worker"
    assert not re.search(r"delay: [^0]", after)
