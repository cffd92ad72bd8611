"""Builders of requests to the coordinator of a connect group."""

from dataclasses import replace
from typing import Any

from coterie.groups.connect.machine import step
from coterie.groups.connect.messages import Heartbeat, InstallAssignment, PrepareAssignment, Request, Response
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.nouns.connect_groups import ConfiguredJobs, HeartbeatResponse, PrepareAssignmentResponse, SupportedAssignor
from coterie.nouns.ids import ConfigOffset, MemberEpoch, MemberId, ReplyTo, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.target_assignments import ComputedTarget, GroupSnapshot
from tests.groups.connect.simple_assignor import compute
from tests.groups.connect.world import ASSIGNOR, Coordinator, StepGroup, jobs_of

SETTINGS = ConnectGroupSettings(
    assignment_interval_ms=0, initial_rebalance_delay_ms=0, server_assignors=("cooperative", "eager")
)
JOBS = jobs_of(2, 2)


class Conversation:
    """A coordinator, and its responses to single requests."""

    def __init__(self, settings: ConnectGroupSettings = SETTINGS, *, step_group: StepGroup = step) -> None:
        self.coordinator = Coordinator(settings, step_group=step_group)
        self.now_ms = 1_000
        self._asked = 0

    def ask(self, request: Request) -> Response | None:
        """The response to ``request``, None while it is held."""
        self._asked += 1
        reply_to = ReplyTo(self._asked)
        self.coordinator.handle(replace(request, reply_to=reply_to), self.now_ms)
        return self.coordinator.replies.pop(reply_to, None)

    def beat(self, member: str, epoch: int = 0, **fields: Any) -> HeartbeatResponse:
        """The response to a heartbeat, which must not be held."""
        response = self.ask(heartbeat(member, epoch, **fields))
        assert isinstance(response, HeartbeatResponse)
        return response

    def compute(self, member: str, target: ComputedTarget | None = None) -> Response | None:
        """Let the member compute and install; returns the response to the installation."""
        epoch = self.coordinator.group.currents[MemberId(member)].member_epoch
        snapshot = self.prepare(member, epoch)
        return self.ask(install(member, epoch, snapshot, target or compute(snapshot)))

    def prepare(self, member: str, epoch: int) -> GroupSnapshot:
        response = self.ask(
            PrepareAssignment(reply_to=ReplyTo(0), member_id=MemberId(member), member_epoch=MemberEpoch(epoch))
        )
        assert isinstance(response, PrepareAssignmentResponse)
        assert response.snapshot is not None, response
        return response.snapshot

    def settle(self, *members: str) -> None:
        """Let all members join, and the first one compute; each gets its jobs."""
        for member in members:
            self.beat(member)
        self.compute(members[0])
        for member in members:
            epoch = self.coordinator.group.currents[MemberId(member)].member_epoch
            got = self.beat(member, epoch)
            assert got.assignment is not None
            self.beat(member, got.member_epoch, owned=got.assignment.jobs)


def heartbeat(member: str, epoch: int = 0, *, owned: Jobs | None = NO_JOBS, **fields: Any) -> Heartbeat:
    """A heartbeat with all fields that a first request needs."""
    request = Heartbeat(
        reply_to=ReplyTo(0),
        connection_number=1,
        client_id=member,
        client_host="/127.0.0.1",
        member_id=MemberId(member),
        member_epoch=MemberEpoch(epoch),
        rebalance_timeout_ms=60_000,
        client_assignors=(ASSIGNOR,),
        owned=owned,
        url=WorkerUrl(f"http://{member}"),
        configured=ConfiguredJobs(config_offset=ConfigOffset(1), jobs=JOBS),
    )
    return replace(request, **fields) if fields else request


def short_heartbeat(member: str, epoch: int, **fields: Any) -> Heartbeat:
    """A heartbeat in which nothing has changed."""
    nothing: dict[str, object] = {
        "rebalance_timeout_ms": None, "client_assignors": None, "owned": None, "url": None, "configured": None,
    }  # fmt: skip
    return replace(heartbeat(member, epoch), **(nothing | fields))  # type: ignore[arg-type]


def install(member: str, epoch: int, snapshot: GroupSnapshot, target: ComputedTarget) -> InstallAssignment:
    return InstallAssignment(
        reply_to=ReplyTo(0),
        member_id=MemberId(member),
        member_epoch=MemberEpoch(epoch),
        group_epoch=snapshot.group_epoch,
        target=target,
    )


def assignor(name: str = "cooperative", oldest: int = 0, newest: int = 3, **fields: Any) -> SupportedAssignor:
    made = SupportedAssignor(name=name, minimum_version=oldest, maximum_version=newest, version=newest)
    return replace(made, **fields) if fields else made
