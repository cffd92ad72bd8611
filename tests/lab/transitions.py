"""Which transitions the machines take in a play, and which ones the tables of docs/states.md have."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import NamedTuple, Self

from coterie.engine.output import Output
from coterie.groups.classic import messages as group_messages
from coterie.groups.classic.state import Group
from coterie.groups.effects import TimerFired as GroupTimerFired
from coterie.herder import messages as herder_messages
from coterie.herder.seams import TaskDied
from coterie.herder.state import Herder, HerderOutput
from coterie.lab.steps import MachineSteps
from coterie.member import events
from coterie.member.classic import messages as member_messages
from coterie.member.classic.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeaveResponse,
    Request,
    SyncRequest,
    SyncResponse,
)
from coterie.member.classic.state import (
    CheckingPriorMember,
    HasLeft,
    InGroup,
    JoinSent,
    Leaving,
    Member,
    SyncSent,
)
from coterie.member.in_flight import InFlight
from coterie.nouns.jobs import ConnectorTaskId
from coterie.nouns.membership import Assigned, LeaseRenewed, MemberStateChanged
from coterie.wire.connect import AssignmentErrorCode, ClassicAssignmentDetails

UNCHANGED = "unchanged"
OTHER = "any other"
API_NAMES = {
    HeartbeatRequest: "Heartbeat",
    HeartbeatResponse: "Heartbeat",
    JoinRequest: "JoinGroup",
    JoinResponse: "JoinGroup",
    LeaveRequest: "LeaveGroup",
    LeaveResponse: "LeaveGroup",
    SyncRequest: "SyncGroup",
    SyncResponse: "SyncGroup",
}


class Machine(StrEnum):
    """The heading of the machine's table."""

    GROUP = "A group"
    MEMBER_PLACE = "A member's place"
    MEMBER_ROUND = "A member's round"
    MEMBER_ENDING = "A member's ending"
    HERDER_PLACE = "A herder's place"
    HERDER_COURSE = "A herder's course"
    RUN = "A task run"


class Transition(NamedTuple):
    machine: str
    """The heading of the machine's table."""
    state: str
    event: str
    next_state: str

    def __str__(self) -> str:
        return f"{self.machine}: {self.state} | {self.event} | {self.next_state}"


# -- the tables -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Table:
    """All allowed transitions of one machine."""

    rows: frozenset[Transition]
    """A line with several states, events or next states has one row for each combination."""
    other_events: frozenset[tuple[str, str]]
    """Of the lines `OTHER`, the states and next states: what an event may do that no row of the state has."""

    @classmethod
    def read(cls, machine: str, text: str) -> Self:
        rows, other_events = set[Transition](), set[tuple[str, str]]()
        for line in re.findall(r"^\| `.*", text, flags=re.MULTILINE):
            states, event_cell, next_states, _ = (cell.strip() for cell in line.strip("|").split("|"))
            if event_cell == OTHER:
                assert UNCHANGED in next_states, f"{machine}: {OTHER!r} may leave {states} unchanged"
                other_events |= {(state, one) for state in _names(states) for one in (state, *_names(next_states))}
                continue
            for state, event in product(_names(states), _names(event_cell)):
                nexts = {*_names(next_states), *([state] if UNCHANGED in next_states else [])}
                found = {Transition(machine, state, event, next_state) for next_state in nexts}
                assert found, f"{machine}: no next state in {line}"
                assert not found & rows, f"two lines have {sorted(map(str, found & rows))}"
                rows |= found
        return cls(frozenset(rows), frozenset(other_events))

    def allows(self, taken: Transition) -> bool:
        if taken in self.rows:
            return True
        is_listed = any(row.state == taken.state and row.event == taken.event for row in self.rows)
        return (taken.state, taken.next_state) in self.other_events and not is_listed


def _names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def read_tables(text: str) -> dict[str, Table]:
    sections = read_sections(text)
    return {machine: Table.read(machine, sections[machine]) for machine in Machine}


def read_sections(text: str) -> dict[str, str]:
    """The sections of the page, by heading."""
    parts = re.split(r"^##+ ", text, flags=re.MULTILINE)[1:]
    return {heading: body for heading, _, body in (part.partition("\n") for part in parts)}


# -- the observed transitions -----------------------------------------------------------------------------------------


class Observed(MachineSteps):
    """Keeps each transition that a machine takes, with the play in which it was first taken."""

    def __init__(self) -> None:
        self.play = ""
        self.first_play: dict[Transition, str] = {}

    def step_classic_group(
        self, group: Group, event: group_messages.Event, *, now_ms: int
    ) -> Output[group_messages.Record, group_messages.Effect]:
        before = group.phase
        output = super().step_classic_group(group, event, now_ms=now_ms)
        name = _name(event.key) if isinstance(event, GroupTimerFired) else _name(event)
        self._take(Machine.GROUP, before.name, name, group.phase.name)
        return output

    def step_classic_member(
        self, member: Member, event: member_messages.Event, *, now_ms: int
    ) -> Output[None, member_messages.Effect]:
        name = _name_for_member(member, event)
        place, round_, ending = _name(member.place), _name(member.round), _name(member.ending)
        has_ended = isinstance(member.ending, Leaving | HasLeft)
        before = member.place, member.round
        output = super().step_classic_member(member, event, now_ms=now_ms)
        self._take(Machine.MEMBER_ENDING, ending, name, _name(member.ending))
        if has_ended:
            assert (member.place, member.round) == before, "a member that leaves changes nothing else"
            return output
        self._take(Machine.MEMBER_PLACE, place, name, _name(member.place))
        self._take(Machine.MEMBER_ROUND, round_, name, _name(member.round))
        return output

    def step_herder(self, herder: Herder, event: herder_messages.Event, *, now_ms: int) -> HerderOutput:
        place_phase, lifecycle_phase = _name(herder.place.phase), _name(herder.lifecycle.phase)
        runs = {task: _name(run.state) for task, run in herder.work.local_tasks.items()}
        output = super().step_herder(herder, event, now_ms=now_ms)
        name = _name_for_herder(event)
        self._take(Machine.HERDER_PLACE, place_phase, name, _name(herder.place.phase))
        self._take(Machine.HERDER_COURSE, lifecycle_phase, name, _name(herder.lifecycle.phase))
        runs_now = {task: _name(run.state) for task, run in herder.work.local_tasks.items()}
        for task in sorted(runs.keys() | runs_now.keys()):
            self._take(Machine.RUN, runs.get(task, "None"), _name_for_run(task, event), runs_now.get(task, "None"))
        return output

    def _take(self, machine: Machine, state: str, event: str, next_state: str) -> None:
        self.first_play.setdefault(Transition(machine, state, event, next_state), self.play)


def _name(value: object) -> str:
    return "None" if value is None else type(value).__name__


def _name_for_member(member: Member, event: member_messages.Event) -> str:
    match event:
        case events.ResponseReceived(id=id_, response=response):
            if id_ not in {in_flight.id for in_flight in _in_flight(member)}:
                return "ResponseReceived late"
            return f"{API_NAMES[type(response)]} answered {response.error.name.upper()}"
        case events.RequestFailed(id=id_):
            in_flight = next((in_flight for in_flight in _in_flight(member) if in_flight.id == id_), None)
            return "RequestFailed late" if in_flight is None else f"{API_NAMES[type(in_flight.request)]} failed"
        case events.TimerFired(timer=timer):
            return f"timer {timer}"
        case _:
            return _name(event)


def _in_flight(member: Member) -> Iterator[InFlight[Request]]:
    if isinstance(member.round, CheckingPriorMember | JoinSent | SyncSent):
        yield member.round.in_flight
    if isinstance(member.place, InGroup) and member.place.unanswered_heartbeat is not None:
        yield member.place.unanswered_heartbeat
    if isinstance(member.ending, Leaving):
        yield member.ending.in_flight


def _name_for_herder(event: herder_messages.Event) -> str:
    match event:
        case MemberStateChanged(state=state):
            return f"MemberStateChanged {state}"
        case Assigned(protocol_details=token) if (
            ClassicAssignmentDetails.checked_instance(token).error is not AssignmentErrorCode.NO_ERROR
        ):
            return f"Assigned {ClassicAssignmentDetails.checked_instance(token).error.name}"
        case herder_messages.TimerFired(timer=timer):
            return f"timer {timer}" if isinstance(timer, str) else _name(timer)
        case herder_messages.RequestArrived(request=request):
            return _name(request)
        case _:
            return _name(event)


def _name_for_run(task: ConnectorTaskId, event: herder_messages.Event) -> str:
    """Any event that is not about this task: after most of them the herder compares what runs with what should run."""
    match event:
        case TaskDied(holds_checkpoint=False) if event.task == task:
            return "TaskDied not held"
        case LeaseRenewed():
            return _name(event)
        case _:
            return _name(event) if getattr(event, "task", None) == task else "comparison"
