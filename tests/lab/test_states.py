"""docs/states.md contains every transition that the machines take."""

from pathlib import Path

import pytest

from coterie.lab.scenario.consumers import ConsumersScenario
from coterie.lab.scenario.transcript import parse_transcript, run_transcript
from tests.lab import plays
from tests.lab.plays import OBSERVED, in_one_process
from tests.lab.transitions import Machine, Observed, Table, Transition, read_tables

SCENARIOS = Path(__file__).parent.parent / "scenarios"
PAGE = Path(__file__).parents[2] / "docs" / "states.md"
NEVER_TAKEN = Path(__file__).parent / "rows_never_taken.txt"
"""The rows of the page that no play takes, one per line. Remove a row from the file when a play takes it."""


def play_transcripts(observed: Observed) -> None:
    for folder in (SCENARIOS, SCENARIOS / "workers"):
        for path in sorted(folder.glob("*.txt")):
            observed.play = path.name
            blocks = parse_transcript(path.read_text())
            run_transcript(blocks, lambda name: path.with_name(name).read_text(), steps=observed)  # noqa: B023
    for path in sorted((SCENARIOS / "article").glob("*.txt")):
        observed.play = path.name
        ConsumersScenario(steps=observed).run_transcript_blocks(parse_transcript(path.read_text()))


@in_one_process
@pytest.mark.timeout(600)  # 80 seeds, if no test before has played them
def test_the_tables_contain_every_transition_of_the_machines() -> None:
    """The producers' play runs none of these machines."""
    play_transcripts(OBSERVED)
    for seed in plays.SEEDS:
        plays.fleet(seed)
        plays.clients(seed)
    tables, taken = read_tables(PAGE.read_text()), OBSERVED.first_play
    assert {transition.machine for transition in taken} == set(Machine)
    missing = [
        f"{transition}, first in {taken[transition]}"
        for transition in sorted(taken)
        if not tables[transition.machine].allows(transition)
    ]
    assert not missing, "docs/states.md lacks:\n" + "\n".join(missing)
    never_taken = {str(row) for table in tables.values() for row in table.rows - taken.keys()}
    listed = set(NEVER_TAKEN.read_text().splitlines())
    assert sorted(never_taken - listed) == [], "no play takes these rows, and rows_never_taken.txt lacks them"
    assert sorted(listed - never_taken) == [], "rows_never_taken.txt has these rows, and a play takes them"


def test_a_table_allows_its_rows_and_other_events_without_a_change() -> None:
    table = Table.read(Machine.RUN, "| `A`, `B` | `x` | `B`, `C` | why |\n| `A` | any other | unchanged | |\n")
    allowed = {
        (state, event, next_state)
        for state in "ABC"
        for event in "xy"
        for next_state in "ABC"
        if table.allows(Transition(Machine.RUN, state, event, next_state))
    }
    assert allowed == {("A", "x", "B"), ("A", "x", "C"), ("B", "x", "B"), ("B", "x", "C"), ("A", "y", "A")}


def test_a_transition_may_be_in_only_one_line_of_a_table() -> None:
    with pytest.raises(AssertionError, match="two lines have"):
        Table.read(Machine.RUN, "| `A`, `B` | `x` | `B` | |\n| `B` | `x` | unchanged | |\n")
