"""The invariants that `docs/protocol/invariants.md` names exist, and the sources of the play `connect` use them. The
one without a planted bug can be broken."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.engine.output import Output
from coterie.lab.simulator.connect.run import simulate_connect_group
from coterie.lab.simulator.invariants import Invariant
from coterie.lab.steps import MachineSteps
from coterie.member.connect import messages as connect_member_messages
from coterie.member.connect.state import Member
from coterie.nouns.connect_groups import JOIN_EPOCH
from coterie.nouns.membership import Assigned

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


class RepeatsFirstAssignment(MachineSteps):
    """Steps in which one member emits an earlier assignment after a newer one, as if two responses had arrived in the
    wrong order. (The connection keeps them in order, so no fault of the simulator does this.)"""

    def __init__(self) -> None:
        self.first: Assigned | None = None

    def step_connect_member(
        self, member: Member, event: connect_member_messages.Event, *, now_ms: int
    ) -> Output[None, connect_member_messages.Effect]:
        output = super().step_connect_member(member, event, now_ms=now_ms)
        for effect in output.effects:
            match effect:
                case Assigned(epoch=epoch) if self.first is None and epoch > JOIN_EPOCH:
                    self.first = effect
                case Assigned(epoch=epoch, member_id=member_id) if self.first is not None and (
                    member_id == self.first.member_id and epoch > self.first.epoch
                ):
                    return replace(output, effects=(*output.effects, self.first))
                case _:
                    pass
        return output


def test_a_lower_member_epoch_at_a_worker_breaks_client_epoch_rises() -> None:
    outcome = simulate_connect_group(1, steps=RepeatsFirstAssignment())
    assert outcome.violation is not None
    assert outcome.violation.invariant is Invariant.CLIENT_EPOCH_RISES
