"""What the article says of rolling upgrades, played by the real coordinator.

``SCENARIOS=rewrite`` writes the answers anew; the difference is then reviewed like any other.
"""

import os
from pathlib import Path

import pytest

from coterie.lab.scenario.consumers import Consumers
from coterie.lab.scenario.transcript import Block, parse, render

FOLDER = Path(__file__).parent.parent / "scenarios" / "article"
NAMES = sorted(path.stem for path in FOLDER.glob("*.txt"))


def read(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text()


def counts(name: str) -> list[str]:
    return [block.answers[-1] for block in parse(read(name)) if block.command == "count"]


def said(block: Block) -> list[str]:
    return [line.partition(" ")[0] for line in block.answers]


@pytest.mark.parametrize("name", NAMES)
def test_a_transcript_is_what_the_machines_say(name: str) -> None:
    text = read(name)
    played = render(Consumers().play(parse(text)))
    if os.environ.get("SCENARIOS") == "rewrite":
        (FOLDER / f"{name}.txt").write_text(played)
    else:
        assert played == text


def test_a_rolling_upgrade_of_three_eager_members_is_six_rebalances() -> None:
    assert counts("rolling_upgrade") == ["rebalances: 6, partitions stopped: 36"]


def test_a_rolling_upgrade_of_three_static_members_is_none() -> None:
    upgrade, _ = counts("rolling_upgrade_static")
    assert upgrade == "rebalances: 0, partitions stopped: 6"


def test_during_the_upgrade_of_static_members_nobody_says_anything_but_the_one_that_starts_again() -> None:
    blocks = parse(read("rolling_upgrade_static"))
    first, last = (at for at, block in enumerate(blocks) if block.command == "count from here")
    for block in blocks[first + 1 : last]:
        if block.command is not None and block.command.startswith("C"):
            assert set(said(block)) == {block.command.partition(" ")[0]}
        elif block.command is not None and block.command.startswith("wait"):
            assert not block.answers


def test_a_script_that_means_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown command: C1 dances"):
        Consumers().play(parse("> C1 dances\n"))
