"""A connect group without a network: the snapshots that a coordinator builds, and the steps of its members.

Small enough to be read beside the rulings; `tests.groups.connect.world` has the real coordinator.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from coterie.assignors.connect.cooperative import CooperativeAssignor
from coterie.assignors.members import RebalancePolicy
from coterie.groups.connect.target_check import target_error
from coterie.nouns.ids import ConfigOffset, GroupEpoch, InstanceId, MemberEpoch, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.target_assignments import (
    ComputedTarget,
    GroupSnapshot,
    SnapshotDeparted,
    SnapshotMember,
)

DELAY_MS = 300


def member(name: str, owned: Jobs = NO_JOBS, *, target: Jobs | None = None, epoch: int = 5) -> SnapshotMember:
    """A member that runs ``owned``, which are also its target unless another one is given."""
    return SnapshotMember(
        member_id=MemberId(name),
        member_epoch=MemberEpoch(epoch),
        url=WorkerUrl(f"http://{name}"),
        config_offset=ConfigOffset(1),
        current=owned,
        target=owned if target is None else target,
    )


@dataclass(slots=True)
class Departure:
    """A departed member, as the coordinator keeps it."""

    member: SnapshotMember
    jobs: Jobs
    deadline_ms: int | None = None


class Fleet:
    """The members of a group, in the order in which they joined, and its time."""

    def __init__(self, configured: Jobs, policy: RebalancePolicy | None = None) -> None:
        self.configured = configured
        self.assignor = CooperativeAssignor(policy or RebalancePolicy(max_delay_ms=DELAY_MS))
        self.members: dict[MemberId, SnapshotMember] = {}
        self.departed: dict[MemberId, Departure] = {}
        self.now_ms = 0
        self.last: ComputedTarget | None = None
        self.stopped = 0
        """The number of jobs that members have been told to stop."""

    # -- members ------------------------------------------------------------------------------------------------------

    def join(
        self, name: str, *, claims: Jobs | None = None, instance_id: str | None = None, url: str | None = None
    ) -> None:
        """A member joins; it may be one that has departed, by its member id, instance id or URL."""
        joined = replace(
            member(name, epoch=0), claims=claims, instance_id=None if instance_id is None else InstanceId(instance_id)
        )
        if url is not None:
            joined = replace(joined, url=WorkerUrl(url))
        for gone, departure in sorted(self.departed.items()):
            same = (
                departure.member.instance_id == joined.instance_id
                if departure.member.instance_id is not None
                else departure.member.url == joined.url
            )
            if gone == joined.member_id or same:
                joined = replace(joined, former_jobs=departure.jobs)
                del self.departed[gone]
                break
        self.members[joined.member_id] = joined

    def change(self, name: str, **fields: object) -> None:
        self.members[MemberId(name)] = replace(self.members[MemberId(name)], **fields)  # type: ignore[arg-type]

    def lose(self, name: str) -> None:
        """A member dies: its jobs wait."""
        gone = self.members.pop(MemberId(name))
        waits = gone.target if gone.member_epoch < 0 else gone.current
        if waits:
            self.departed[gone.member_id] = Departure(gone, waits)

    def leave(self, name: str) -> None:
        """A member leaves permanently."""
        del self.members[MemberId(name)]

    def leave_briefly(self, name: str) -> None:
        """A static member stops its jobs and will be back."""
        self.change(name, member_epoch=MemberEpoch(-2), current=NO_JOBS, pending=NO_JOBS)

    def rejoin(self, name: str) -> None:
        """A member has stopped its jobs and joins again with its member id."""
        self.change(name, member_epoch=MemberEpoch(0), current=NO_JOBS, pending=NO_JOBS)

    # -- targets ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> GroupSnapshot:
        return GroupSnapshot(
            group_epoch=GroupEpoch(9),
            assignor="cooperative",
            members=tuple(self.members.values()),
            departed=tuple(
                SnapshotDeparted(
                    member_id=gone,
                    instance_id=one.member.instance_id,
                    url=one.member.url,
                    jobs=one.jobs,
                    delay_left_ms=None if one.deadline_ms is None else max(0, one.deadline_ms - self.now_ms),
                )
                for gone, one in sorted(self.departed.items())
            ),
            config_offset=ConfigOffset(1),
            configured=self.configured,
        )

    def compute(self) -> ComputedTarget:
        """Compute a valid target and install it."""
        snapshot = self.snapshot()
        target = self.assignor.assign(snapshot)
        assert target_error(target, snapshot, frozenset(), NO_JOBS) is None
        self.install(target)
        return target

    def install(self, target: ComputedTarget) -> None:
        self.last = target
        for name, one in target.members.items():
            self.members[name] = replace(self.members[name], target=one.jobs, former_jobs=NO_JOBS)
        for gone in list(self.departed):
            if gone not in target.deferred:
                del self.departed[gone]
            else:
                deferred, departure = target.deferred[gone], self.departed[gone]
                deadline_ms = self.now_ms + deferred.delay_ms
                departure.jobs = deferred.jobs
                departure.deadline_ms = min(deadline_ms, departure.deadline_ms or deadline_ms)

    # -- steps to the target ------------------------------------------------------------------------------------------

    def beat(self, name: str) -> None:
        """One heartbeat: the member acknowledges what it was told to stop; then it is told what to stop, or else
        receives the jobs that are free."""
        one = self.members[MemberId(name)]
        if one.member_epoch < 0:
            return
        revoked = one.current - one.target
        self.stopped += len(revoked)
        if revoked:
            self.members[one.member_id] = replace(one, current=one.current & one.target, pending=revoked)
            return
        self.members[one.member_id] = replace(one, pending=NO_JOBS)
        held = Jobs.of(job for other in self.members.values() for job in other.current | other.pending)
        self.members[one.member_id] = replace(
            one, pending=NO_JOBS, member_epoch=MemberEpoch(9), current=one.current | (one.target - held)
        )

    def reconcile(self) -> None:
        """All members reach the target."""
        for _ in range(3):
            for name in list(self.members):
                self.beat(name)
        assert all(one.current == one.target or one.member_epoch < 0 for one in self.members.values())

    def settle(self, after_ms: int = 0) -> Mapping[str, Jobs]:
        """Compute and reconcile; the jobs of each member."""
        self.now_ms += after_ms
        self.compute()
        self.reconcile()
        return self.owned()

    def owned(self) -> Mapping[str, Jobs]:
        return {str(name): one.current for name, one in self.members.items()}
