"""The article's statements about rolling upgrades, played by the real coordinator.

``SCENARIOS=rewrite`` rewrites the answers; the difference is then reviewed like any other.
"""

import os
from pathlib import Path

import pytest

from coterie.lab.scenario.consumers import ConsumersScenario
from coterie.lab.scenario.transcript import TranscriptBlock, parse_transcript, render_transcript

FOLDER = Path(__file__).parent.parent / "scenarios" / "article"
NAMES = sorted(path.stem for path in FOLDER.glob("*.txt"))


def read(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text()


def counts(name: str) -> list[str]:
    return [block.output_lines[-1] for block in parse_transcript(read(name)) if block.command == "count"]


def workers_in_answers(block: TranscriptBlock) -> list[str]:
    return [line.partition(" ")[0] for line in block.output_lines]


@pytest.mark.parametrize("name", NAMES)
def test_the_recorded_transcript_equals_the_played_one(name: str) -> None:
    text = read(name)
    played = render_transcript(ConsumersScenario().run_transcript_blocks(parse_transcript(text)))
    if os.environ.get("SCENARIOS") == "rewrite":
        (FOLDER / f"{name}.txt").write_text(played)
    else:
        assert played == text


def test_a_rolling_upgrade_of_three_eager_members_is_six_rebalances() -> None:
    assert counts("rolling_upgrade") == ["rebalances: 6, partitions stopped: 36"]


def test_a_rolling_upgrade_of_three_static_members_causes_no_rebalance() -> None:
    upgrade, _ = counts("rolling_upgrade_static")
    assert upgrade == "rebalances: 0, partitions stopped: 6"


def test_during_the_upgrade_of_static_members_only_the_restarted_one_has_output() -> None:
    blocks = parse_transcript(read("rolling_upgrade_static"))
    first, last = (at for at, block in enumerate(blocks) if block.command == "count from here")
    for block in blocks[first + 1 : last]:
        if block.command is not None and block.command.startswith("C"):
            assert set(workers_in_answers(block)) == {block.command.partition(" ")[0]}
        elif block.command is not None and block.command.startswith("wait"):
            assert not block.output_lines


def test_a_consumer_that_runs_cannot_be_started_again() -> None:
    with pytest.raises(ValueError, match="cannot start the consumer C1, because it runs already"):
        ConsumersScenario().run_transcript_blocks(parse_transcript("> C1 joins\n> C1 joins\n"))


def test_an_unknown_command_in_a_script_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown command: C1 dances"):
        ConsumersScenario().run_transcript_blocks(parse_transcript("> C1 dances\n"))
