"""ARTICLE's designs, K987's steps and test plan, K415's way up and down, and a drain, played by the real machines.

K415's six scenarios are in `test_scenarios`.

``SCENARIOS=rewrite`` writes the answers anew; the difference is then reviewed like any other. It touches neither what
is quoted from a document nor the list of deviations.
"""

import os
import re
from math import ceil
from pathlib import Path

import pytest

from coterie.lab.scenario.transcript import parse, play, render

FOLDER = Path(__file__).parent.parent / "scenarios" / "workers"
NAMES = sorted(path.stem for path in FOLDER.glob("*.txt"))
COUNTS = re.compile(r"^  moves: (\d+), optimum: (\d+), M\*: (\d+)(, the others .*)?$", re.MULTILINE)


def read(name: str) -> str:
    return (FOLDER / name).read_text()


def counts(name: str) -> list[tuple[int, int, int]]:
    """Of each round: the moves made, the optimum and M*."""
    return [(int(made), int(optimum), int(bound)) for made, optimum, bound, _ in COUNTS.findall(read(f"{name}.txt"))]


def told(name: str, who: str) -> list[str]:
    """What each round revokes from ``who``."""
    return re.findall(
        rf"^  {who}\(delay: \d+, assigned: \[.*\], revoked: \[(.*)\]\)", read(f"{name}.txt"), re.MULTILINE
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_transcript_is_what_the_machines_say(name: str) -> None:
    text = read(f"{name}.txt")
    assert render(parse(text)) == text, "the script is written as it is read"
    played = render(play(parse(text), read))
    if os.environ.get("SCENARIOS") == "rewrite":
        (FOLDER / f"{name}.txt").write_text(played)
    else:
        assert played == text


def test_what_a_transcript_quotes_is_all_that_the_document_says() -> None:
    parts = re.findall(r"^## (\w+): .*?```\n(.*?)\n```", read("documents.md"), flags=re.MULTILINE | re.DOTALL)
    assert len(parts) == 5
    for name, text in parts:
        quoted = re.findall(r"^# (?:ARTICLE|K987|K415) (.*)$", read(f"{name}.txt"), flags=re.MULTILINE)
        assert quoted == text.splitlines()


def test_every_deviation_is_of_a_line_that_is_quoted_and_one_that_is_said() -> None:
    for section in read("deviations.md").split("\n## ")[1:]:
        name, _, text = section.partition("\n")
        entries = re.findall(r"^- theirs: (.+)\n- ours: (.+)\n- ruling: (.+)$", text, flags=re.MULTILINE)
        assert entries
        assert len(entries) == text.count("- theirs:")
        for theirs, ours, _ in entries:
            assert re.search(rf"^# (ARTICLE|K987|K415) {re.escape(theirs)}$", read(f"{name}.txt"), re.MULTILINE)
            assert re.search(rf"^ *{re.escape(ours)}$", read(f"{name}.txt"), re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_every_round_moves_the_optimum_or_says_why_it_waits(name: str) -> None:
    for made, optimum, bound, later in COUNTS.findall(read(f"{name}.txt")):
        assert int(bound) <= int(optimum)
        assert (int(made) < int(optimum)) == bool(later)


def test_design_i_deals_out_at_once_and_pays_with_a_move_when_the_worker_is_back() -> None:
    assert "delay: 300000" not in read("design_i.txt")
    assert sum(made for made, _, _ in counts("design_i")) == 1


def test_in_design_ii_w1_and_w3_never_stop_anything() -> None:
    assert sum(made for made, _, _ in counts("design_ii")) == 0
    assert not any(told("design_ii", "W1") + told("design_ii", "W3"))


def test_in_design_iii_the_rounds_add_up_to_the_bound_and_are_as_few_as_can_be() -> None:
    moving = [one for one in counts("design_iii") if one[0]]
    whole = moving[0][2]
    assert sum(made for made, _, _ in moving) == whole == 6
    assert len(moving) == ceil(whole / 2)


def test_a_drain_stops_what_drains_and_nothing_else() -> None:
    assert not any(told("drain", "W1") + told("drain", "W3"))
    assert sum(made for made, _, _ in counts("drain")) == 2
    assert not re.search(r"delay: [^0]", read("drain.txt"))


def test_what_was_given_back_before_all_drain_comes_back_unless_who_leads_is_another() -> None:
    same, another = read("drain_of_all.txt").split("# The same with another leader")
    before, after = re.findall(r"^Initial group and assignment: (.*)$", same, re.MULTILINE)
    assert before == after
    assert "is unassigned" not in same
    assert another.count(" is unassigned: every worker is draining") == 5


def test_a_rolling_update_to_static_workers_never_stops_what_stays() -> None:
    """What is stopped is what those who come claim, and those who go give up."""
    assert all(made == bound for made, _, bound in counts("k987_rolling_update"))


def test_an_upgrade_from_eager_waits_for_nobody_and_stops_nothing_that_does_not_move_from_then_on() -> None:
    before, after = read("k415_upgrade.txt").split("The group speaks compatible\n")
    assert "delay: 300000" not in before
    the_vote, *later = COUNTS.findall(after)
    assert after.startswith("W1 computes")
    assert "delay: 300000" not in after.partition("moves:")[0], (
        "what all have stopped is dealt out in the round of the vote"
    )
    assert the_vote[0] == "4", "all that W1 and W2 had"
    assert all(made == optimum == bound for made, optimum, bound, _ in later)
    assert re.findall(r"^The group speaks (\w+)$", after, re.MULTILINE) == ["sessioned", "static"]


def test_a_downgrade_to_eager_is_one_double_rebalance_and_the_first_half_of_it_deals_nothing_out() -> None:
    _, after = read("k415_downgrade.txt").split("The group speaks eager\n")
    dealt = [
        sorted(job for jobs in re.findall(r"assigned: \[(.*?)\]", part) for job in jobs.split(", ") if job)
        for part in after.split("sends assignments:\n")[1:]
    ]
    everything = ["AC0", "AT1", "AT2", "BC0", "BT1"]
    assert dealt == [[], everything, everything], "the double one, then the one for who joins"
    assert not re.search(r"delay: [^0]", after)
