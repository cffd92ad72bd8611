"""The statistics of connect groups, counted from the steps of their machines."""

from typing import Any

from coterie.broker.groups.connect_stats import ConnectGroupStats
from coterie.groups.connect.machine import step
from coterie.groups.connect.messages import (
    ComputationTimeoutTimer,
    ConnectionClosed,
    ConnectionGraceTimer,
    Event,
    NextComputationTimer,
    PrepareAssignment,
    RemoveMember,
    RevocationTimer,
    SessionTimer,
)
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.groups.connect.state import Group
from coterie.groups.effects import Reply, TimerFired
from coterie.nouns.connect_groups import PrepareAssignmentResponse
from coterie.nouns.ids import GroupId, InstanceId, MemberEpoch, MemberId, ReplyTo
from coterie.nouns.target_assignments import ComputedTarget, GroupSnapshot
from tests.groups.connect.builders import JOBS, assignor, heartbeat, install
from tests.groups.connect.simple_assignor import compute

W0, W1 = MemberId("w0"), MemberId("w1")


class Counted:
    """A group whose steps are counted."""

    def __init__(self) -> None:
        settings = ConnectGroupSettings(assignment_interval_ms=0, initial_rebalance_delay_ms=0)
        self.group = Group(GroupId("workers"), settings)
        self.counts = ConnectGroupStats()
        self.now_ms = 1_000

    def handle(self, event: Event) -> Any:
        """The response to ``event``, or None."""
        before = self.group.metadata
        output = step(self.group, event, now_ms=self.now_ms)
        self.counts.observe_step(self.group.group_id, event, output.records, before, self.now_ms)
        replies = [effect.response for effect in output.effects if isinstance(effect, Reply)]
        for response in replies:
            self.counts.observe_response(response)
        return replies[0] if replies else None

    def beat(self, member: str, **fields: Any) -> Any:
        current = self.group.currents.get(MemberId(member))
        return self.handle(heartbeat(member, 0 if current is None else current.member_epoch, **fields))

    def prepare(self, member: MemberId) -> GroupSnapshot:
        epoch = self.group.currents[member].member_epoch
        request = PrepareAssignment(reply_to=ReplyTo(0), member_id=member, member_epoch=epoch)
        response = self.handle(request)
        assert isinstance(response, PrepareAssignmentResponse)
        assert response.snapshot is not None
        return response.snapshot

    def install(self, member: MemberId, snapshot: GroupSnapshot, target: ComputedTarget) -> None:
        epoch = self.group.currents[member].member_epoch
        self.handle(install(member, epoch, snapshot, target))

    def compute(self, member: MemberId) -> None:
        snapshot = self.prepare(member)
        self.install(member, snapshot, compute(snapshot))

    def fire(self, key: Any) -> None:
        """Let the time of the timer come."""
        self.now_ms = self.group.deadlines[key]
        self.handle(TimerFired(key=key))

    def end_session(self, member: MemberId) -> None:
        """Let the session of a silent member end. Its timer is set again if the session was renewed meanwhile."""
        while member in self.group.members:
            self.fire(SessionTimer(member_id=member))

    def stats(self) -> Any:
        return self.counts.stats({"Stable": 1})


def test_computations_refusals_and_revocations_are_counted() -> None:
    counted = Counted()
    counted.beat("w0")
    counted.install(W0, counted.prepare(W0), ComputedTarget(members={}))
    counted.fire(NextComputationTimer())
    counted.compute(W0)
    counted.beat("w0")
    counted.beat("w1")
    counted.compute(W0)
    response = counted.beat("w0", owned=JOBS)
    counted.now_ms += 30
    counted.beat("w0", owned=response.assignment.jobs)
    counted.handle(heartbeat("w9", 7))
    counted.handle(heartbeat("w0", 9))
    assert counted.stats() == {
        "groups": {"Stable": 1},
        "computations": 2,
        "computation_errors": 1,
        "refusals": {"FENCED_MEMBER_EPOCH": 1, "INVALID_ASSIGNMENT": 1, "UNKNOWN_MEMBER_ID": 1},
        "removals": {},
        "revocations": {"count": 1, "total_ms": 30, "longest_ms": 30},
    }


def test_a_group_without_a_member_that_reads_all_versions_counts_as_one_error() -> None:
    counted = Counted()
    old, new = (assignor(newest=1),), (assignor(oldest=2),)
    counted.beat("w0")
    counted.beat("w1", client_assignors=old)
    counted.beat("w2", client_assignors=new)
    counted.beat("w0", member_epoch=MemberEpoch(-1))
    assert counted.stats()["computation_errors"] == 1
    for _ in range(3):
        counted.fire(NextComputationTimer())
    assert counted.stats()["computation_errors"] == 1


def test_removals_are_counted_by_their_reason() -> None:
    counted = Counted()
    for member in ("w0", "w1", "w2", "w3"):
        counted.beat(member)
    counted.fire(ComputationTimeoutTimer())
    counted.compute(W1)
    counted.handle(RemoveMember(reply_to=ReplyTo(0), member_id=MemberId("w2")))
    counted.beat("w3", member_epoch=MemberEpoch(-1))
    counted.compute(W1)
    counted.beat("w0")
    counted.beat("w1")
    counted.beat("w4")
    counted.compute(W1)
    counted.beat("w0", owned=counted.group.currents[W0].assigned)
    counted.fire(RevocationTimer(member_id=W0))
    counted.end_session(W1)
    assert counted.stats()["computation_errors"] == 1
    expected = {"operator": 1, "left": 1, "rebalance timeout": 1, "session timeout": 1}
    assert counted.stats()["removals"] == expected


def test_a_closed_connection_and_a_returned_static_member_are_reasons_of_their_own() -> None:
    counted = Counted()
    counted.beat("w0")
    counted.beat("w1", connection_number=5, connection_grace_ms=2_000)
    counted.beat("w2", instance_id=InstanceId("one"))
    counted.handle(ConnectionClosed(connection_number=5, member_ids=(W1,)))
    assert counted.stats()["removals"] == {}
    counted.fire(ConnectionGraceTimer(member_id=W1))
    assert counted.stats()["removals"] == {"closed connection": 1}
    counted.beat("w2", member_epoch=MemberEpoch(-2))
    counted.beat("w3", instance_id=InstanceId("one"))
    assert counted.group.members.keys() == {"w0", "w3"}
    assert counted.stats()["removals"] == {"closed connection": 1, "replaced": 1}


def test_the_duration_of_a_revocation_ends_when_the_jobs_are_released_and_not_when_their_next_owner_has_them() -> None:
    counted = Counted()
    counted.beat("w0")
    counted.compute(W0)
    counted.beat("w0")
    counted.beat("w1")
    counted.compute(W0)
    revoked = counted.beat("w0", owned=JOBS)
    counted.now_ms += 30
    counted.beat("w0", owned=revoked.assignment.jobs)
    counted.now_ms += 1_000
    assert counted.beat("w1").assignment.jobs
    assert counted.stats()["revocations"] == {"count": 1, "total_ms": 30, "longest_ms": 30}
