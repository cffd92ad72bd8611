"""Drives one herder of a connect group by hand, and describes small groups."""

from coterie.herder.messages import NotifyRebalanceListeners
from coterie.herder.seams import RebalanceNews
from coterie.nouns.group_description import GroupDescription, MemberDescription
from coterie.nouns.ids import ConfigOffset, GroupEpoch, LeaderEpoch, MemberEpoch, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.member_state import MemberState
from coterie.nouns.membership import Assigned, ConnectAssignmentDetails, ConnectMembershipHandover, GroupProtocolName
from tests.herder.builders import BOTH_TASKS, CONNECTOR_LINE, TASK_CONFIG_LINES
from tests.herder.herder_driver import ME, OTHER, HerderDriver

HERE_URL = WorkerUrl("http://here:8083/")
OTHER_URL = WorkerUrl("http://there:8083/")
HANDOVER = ConnectMembershipHandover(
    member_id=ME,
    member_epoch=MemberEpoch(4),
    request_number=17,
    session_timeout_ms=10_000,
    leader=ME,
    leader_url=HERE_URL,
    leader_epoch=LeaderEpoch(2),
    assignment_epoch=GroupEpoch(4),
    config_offset=ConfigOffset(3),
    jobs=BOTH_TASKS,
    jobs_by_assignment_epoch={GroupEpoch(4): BOTH_TASKS},
    version=1,
    metadata=b"hello",
)
"""The membership that the next process of a leader with both tasks continues."""


class ConnectHerderDriver(HerderDriver):
    """A herder whose worker is a member of a connect group."""

    def __init__(self, place: ConnectMembershipHandover | None = None) -> None:
        super().__init__(place, group_protocol=GroupProtocolName.CONNECT)
        self.epoch = 0

    def receive(
        self,
        jobs: Jobs = NO_JOBS,
        *,
        revoked: Jobs = NO_JOBS,
        leader: MemberId = OTHER,
        leader_epoch: int = 1,
        metadata: bytes = b"",
    ) -> None:
        """The coordinator sends an assignment: ``jobs`` are all jobs of this worker."""
        self.epoch += 1
        self.feed(
            Assigned(
                member_id=ME,
                epoch=self.epoch,
                jobs=jobs,
                revoked=revoked,
                replaces_all=True,
                leader=leader,
                leader_url=HERE_URL if leader == ME else OTHER_URL,
                config_offset=ConfigOffset(len(self.config) or -1),
                protocol_details=ConnectAssignmentDetails(
                    leader_epoch=LeaderEpoch(leader_epoch),
                    assignment_epoch=GroupEpoch(self.epoch),
                    jobs_by_assignment_epoch={GroupEpoch(self.epoch): jobs},
                    metadata_version=1 if metadata else 0,
                    metadata=metadata,
                ),
            )
        )

    def news(self) -> list[RebalanceNews]:
        """Remove and return what the listeners of rebalances were told."""
        return [effect.news for effect in self.pop_effects(NotifyRebalanceListeners)]


def configured_driver() -> ConnectHerderDriver:
    """A worker that has read a connector and its two tasks from the config log."""
    driver = ConnectHerderDriver()
    driver.open_runtime()
    driver.write(CONNECTOR_LINE, *TASK_CONFIG_LINES)
    return driver


def described_member(
    member_id: MemberId,
    *,
    assigned: Jobs = NO_JOBS,
    pending: Jobs = NO_JOBS,
    target: Jobs | None = None,
    claims: Jobs | None = None,
    draining: bool = False,
) -> MemberDescription:
    """A member; its target is what is assigned to it, unless it is given."""
    return MemberDescription(
        member_id=member_id,
        member_epoch=MemberEpoch(5),
        state=MemberState.STABLE,
        url=HERE_URL if member_id == ME else OTHER_URL,
        name="here" if member_id == ME else "there",
        config_offset=ConfigOffset(3),
        claims=claims,
        draining=draining,
        assigned=assigned,
        pending=pending,
        target=assigned if target is None else target,
        awaited_jobs_by_holder={},
    )


def described_group(*members: MemberDescription) -> GroupDescription:
    """A group of ``members`` whose leader is this worker; nothing is deferred or unplaceable."""
    return GroupDescription(
        state="Stable",
        group_epoch=GroupEpoch(5),
        assignment_epoch=GroupEpoch(5),
        assignor="cooperative",
        computing_member=MemberId(""),
        assignment_error="",
        leader=ME,
        leader_epoch=LeaderEpoch(1),
        config_offset=ConfigOffset(3),
        members=members,
        departed=(),
        unplaceable=(),
    )
