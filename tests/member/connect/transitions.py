"""Which transitions the members of connect groups take in a play, as docs/states.md names them."""

from enum import StrEnum

from coterie.engine.output import Output
from coterie.member.connect.machine import step
from coterie.member.connect.messages import (
    Effect,
    Event,
)
from coterie.member.connect.state import (
    HeartbeatSent,
    InstallSent,
    Leaving,
    Member,
    PrepareSent,
    Suspending,
)
from coterie.member.events import RequestFailed, RequestId, ResponseReceived, TimerFired
from tests.lab.transitions import Transition


class Machine(StrEnum):
    """The heading of the machine's table."""

    PLACE = "The place of a connect group's member"
    HEARTBEAT = "The heartbeats of a connect group's member"
    COMPUTATION = "The computation of a connect group's member"
    ENDING = "The ending of a connect group's member"


class ObservedSteps:
    """The step function of members; it keeps each transition that a member takes."""

    def __init__(self) -> None:
        self.taken: set[Transition] = set()

    def __call__(self, member: Member, event: Event, *, now_ms: int) -> Output[None, Effect]:
        name, before = name_of(member, event), states_of(member)
        output = step(member, event, now_ms=now_ms)
        after = states_of(member)
        self.taken |= {Transition(machine, before[machine], name, after[machine]) for machine in Machine}
        return output


def states_of(member: Member) -> dict[Machine, str]:
    parts = (member.place, member.heartbeat, member.computation, member.ending)
    return {
        machine: "None" if part is None else type(part).__name__ for machine, part in zip(Machine, parts, strict=True)
    }


def name_of(member: Member, event: Event) -> str:
    """The event as the tables name it; a response or failure for which the member no longer waits is *late*."""
    match event:
        case ResponseReceived(id=id_, response=response):
            kind = api_of(member, id_)
            return f"{kind} answered {response.error.name}" if kind else "ResponseReceived late"
        case RequestFailed(id=id_):
            kind = api_of(member, id_)
            return f"{kind} failed" if kind else "RequestFailed late"
        case TimerFired(timer=timer):
            return f"timer {timer}"
        case _:
            return type(event).__name__


def api_of(member: Member, id_: RequestId) -> str:
    """The request that waits for the response ``id_``; empty if none does."""
    match member.heartbeat, member.computation, member.ending:
        case HeartbeatSent(in_flight=asked), _, _ if asked.id == id_:
            return "Heartbeat"
        case _, _, (Leaving(in_flight=asked) | Suspending(in_flight=asked)) if asked.id == id_:
            return "Heartbeat"
        case _, PrepareSent(in_flight=asked), _ if asked.id == id_:
            return "Prepare"
        case _, InstallSent(in_flight=asked), _ if asked.id == id_:
            return "Install"
        case _:
            return "older Heartbeat" if id_ in member.older_heartbeats else ""
