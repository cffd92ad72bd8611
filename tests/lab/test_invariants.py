"""The invariants that `docs/protocol/invariants.md` names exist, and the sources of the play `connect` use them."""

import re
from pathlib import Path

import pytest

from coterie.lab.simulator.invariants import Invariant

ROOT = Path(__file__).parents[2]
MODEL_ROW = re.compile(r"^\| ([A-Z][0-9]) \| [^|]+ \| `([a-z-]+)` \|", re.MULTILINE)
OTHER_ROW = re.compile(r"^\| `([a-z-]+)` \|", re.MULTILINE)
PAGE = (ROOT / "docs/protocol/invariants.md").read_text()
INVARIANT_BY_MODEL_NAME = dict(MODEL_ROW.findall(PAGE))
SIMULATOR = ROOT / "src/coterie/lab/simulator"
CHECKS = "\n".join(
    file.read_text()
    for folder in (SIMULATOR, SIMULATOR / "connect", SIMULATOR / "workers")
    for file in sorted(folder.glob("*.py"))
    if file.name != "invariants.py"
)
"""The sources of the play `connect`, except the list of all invariants."""


def test_the_page_has_an_invariant_for_each_name_of_the_models() -> None:
    assert list(INVARIANT_BY_MODEL_NAME) == ["I1", "I2", "I3", "I4", "I5", "I6", "A1", "A2", "L1"]
    assert len(set(INVARIANT_BY_MODEL_NAME.values())) == len(INVARIANT_BY_MODEL_NAME)


@pytest.mark.parametrize("name", [*INVARIANT_BY_MODEL_NAME.values(), *OTHER_ROW.findall(PAGE)])
def test_the_sources_of_the_play_connect_use_the_invariant(name: str) -> None:
    assert f"Invariant.{Invariant(name).name}" in CHECKS
