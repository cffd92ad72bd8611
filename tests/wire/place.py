"""Membership handovers from a process to its successor, with a value in every field."""

from coterie.nouns.ids import ConfigOffset, GenerationId, GroupEpoch, LeaderEpoch, MemberEpoch, MemberId, WorkerUrl
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.membership import ClassicMembershipHandover, ConnectMembershipHandover

ODD = ConnectorName('or-der\\"s é')
PLACE = ClassicMembershipHandover(
    member_id=MemberId("worker-1-uuid"),
    generation=GenerationId(7),
    protocol="sessioned",
    leader=MemberId("worker-0-uuid"),
    leader_url=WorkerUrl("http://there:8083/"),
    config_offset=ConfigOffset(42),
    jobs=Jobs(frozenset({ODD}), frozenset(ConnectorTaskId(ODD, number) for number in range(1_000))),
    rebalance_delay_ends_ms=12_345,
    may_have_missed_protocol_change=True,
    must_start_rebalance=True,
)
CONNECT_PLACE = ConnectMembershipHandover(
    member_id=MemberId("worker-1-uuid"),
    member_epoch=MemberEpoch(7),
    request_number=2**40,
    session_timeout_ms=18_000,
    leader=MemberId("worker-0-uuid"),
    leader_url=WorkerUrl("http://there:8083/"),
    leader_epoch=LeaderEpoch(3),
    assignment_epoch=GroupEpoch(6),
    config_offset=ConfigOffset(42),
    jobs=PLACE.jobs,
    jobs_by_assignment_epoch={
        GroupEpoch(2): Jobs(frozenset({ODD}), frozenset()),
        GroupEpoch(6): Jobs(frozenset(), frozenset(ConnectorTaskId(ODD, number) for number in range(1_000))),
    },
    version=3,
    metadata=b"\x00\xff",
)
