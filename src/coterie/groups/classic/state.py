"""The state of a classic group's coordinator, hard and soft; `apply` and `check`.

Hard state is what was written to the log: the last generation, with its members and their assignments, and the
committed offset of each partition. Soft state is which members have joined so far, which requests are parked and which
deadlines run: after a crash the members' next requests restore it.
"""

from dataclasses import dataclass

from coterie.config import defaults
from coterie.groups.classic.messages import (
    GenerationWritten,
    JoinPhaseTimer,
    MemberProtocol,
    NewMemberTimer,
    PendingMemberTimer,
    Record,
    ReplyTo,
    SessionTimer,
    SyncTimer,
    TimerKey,
)
from coterie.groups.classic.messages import Phase as Phase
from coterie.groups.classic.offset_messages import (
    CommittedOffset,
    GroupRemoved,
    OffsetRemoved,
    OffsetWritten,
    TopicPartition,
)
from coterie.groups.classic.protocols import Offers
from coterie.nouns.ids import Generation, GroupId, InstanceId, MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The coordinator's settings; defaults are Kafka's (``group.min.session.timeout.ms`` and so on)."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = defaults.INITIAL_REBALANCE_DELAY_MS
    new_member_join_timeout_ms: int = 300_000
    """How long a new member may wait for the end of its first join phase. A constant in Kafka, too."""
    group_size_max: int = defaults.GROUP_SIZE_MAX
    generation_size_max: int = 64 * 1024 * 1024
    """The size limit in bytes for all protocols that a group's members offer, and the same limit for all their
    assignments. Kafka has no limit for the first; the maximum size of a record, 1 MB by default, limits both
    together."""
    groups_max: int = defaults.GROUPS_MAX
    """The limit for one broker; each group takes memory, and any client may create one. Kafka has no such limit."""
    pending_members_max: int = 20_000
    """The limit for issued member ids of one group that no client has joined with; each expires after a session
    timeout."""
    offset_metadata_size_max: int = 4_096
    """In UTF-16 units, as in Kafka."""
    offsets_retention_ms: int = 604_800_000
    offsets_retention_check_ms: int = 600_000


@dataclass(slots=True, kw_only=True)
class Member:
    """One member and its current settings."""

    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    """The protocols that the member offers. After a load only the group's protocol is known, and no protocol if the
    generation had no assignments yet."""
    session_timer: SessionTimer
    """The key of the member's session timer. Created once, because every heartbeat needs it."""
    instance_id: InstanceId | None = None
    """The instance id of a static member (KIP-345)."""
    is_new: bool = True
    """The member has not received the response to its first join, so it cannot send heartbeats: `NewMemberTimer` is
    used instead of the shorter session timer."""

    @property
    def stays_when_absent(self) -> bool:
        """Whether the member stays in the group when it misses a join phase. A static member stays, unless its
        protocols are unknown after a load: no leader can compute an assignment for a member without metadata."""
        return self.instance_id is not None and bool(self.protocols)

    def metadata(self, protocol: str) -> bytes:
        """The member's metadata in ``protocol``; empty if the member does not offer it."""
        return next((offered.metadata for offered in self.protocols if offered.name == protocol), b"")


@dataclass(slots=True, kw_only=True)
class JoinPhase:
    """An open join phase. The first one of an empty group is delayed, so that many members can join in it."""

    initial: bool = False
    delay_ms: int = 0
    """The length of the current part of the initial delay."""
    remaining_ms: int = 0
    """By how much the initial delay may still be extended."""
    member_added: bool = False
    """A member has joined since the current part of the delay began."""


class Group:
    """One classic group. Only `apply` writes ``written`` and ``offsets``; all else is soft."""

    def __init__(self, group_id: GroupId, limits: Limits) -> None:
        self.group_id = group_id
        self.limits = limits
        # hard state: written to the log
        self.written: GenerationWritten | None = None
        self.offsets: dict[TopicPartition, CommittedOffset] = {}
        # soft state: lost in a restart, then rebuilt from the hard state
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        """The selected protocol of the last generation."""
        self.leader: MemberId | None = None
        self.members: dict[MemberId, Member] = {}
        """Changed only by `add`, `remove` and `change_offer`, which also update ``offers`` and ``static_members``."""
        self.offers = Offers()
        self.is_as_loaded = False
        """No join phase has ended since the load: the members may offer more protocols than the known one."""
        self.static_members: dict[InstanceId, MemberId] = {}
        """The current member id of each static member."""
        self.pending: set[MemberId] = set()
        """Issued member ids that no client has joined with yet."""
        self.join_phase: JoinPhase | None = None
        self.joins: dict[MemberId, ReplyTo] = {}
        """Parked JoinGroups, in the order in which the members (re)joined."""
        self.syncs: dict[MemberId, ReplyTo] = {}
        """Parked SyncGroups of members that wait for the leader's SyncGroup."""
        self.unsynced: set[MemberId] = set()
        """Members of this generation that have not sent their SyncGroup."""
        self.deadlines: dict[TimerKey, int] = {}

    def add(self, member_id: MemberId, member: Member) -> Member:
        self.members[member_id] = member
        self.offers.add(member.protocols)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member_id
        return member

    def remove(self, member_id: MemberId) -> Member:
        member = self.members.pop(member_id)
        self.offers.remove(member.protocols)
        if member.instance_id is not None:
            del self.static_members[member.instance_id]
        return member

    def change_offer(self, member: Member, protocols: tuple[MemberProtocol, ...]) -> None:
        self.offers.remove(member.protocols)
        member.protocols = protocols
        self.offers.add(protocols)

    @property
    def generation(self) -> Generation:
        return self.written.generation if self.written is not None else Generation(0)

    @property
    def phase(self) -> Phase:
        if self.join_phase is not None:
            return Phase.PREPARING_REBALANCE
        if not self.members:
            return Phase.EMPTY
        if self.written is None or self.written.protocol is None:
            return Phase.COMPLETING_REBALANCE
        return Phase.STABLE

    @property
    def is_unheard_of(self) -> bool:
        """The group does not exist: it has no members, offsets, member ids or records. A shell need not keep it."""
        return not (self.written or self.offsets or self.members or self.pending or self.join_phase)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of all members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def has_everybody_joined(self) -> bool:
        return len(self.joins) == len(self.members) and not self.pending


def apply(group: Group, record: Record) -> None:
    """The only writer of hard state, live and at replay."""
    match record:
        case GenerationWritten():
            group.written = record
        case GroupRemoved():
            group.written = None
        case OffsetWritten(partition=partition, committed=committed):
            group.offsets[partition] = committed
        case OffsetRemoved(partition=partition):
            group.offsets.pop(partition, None)


def check(group: Group) -> None:
    """Assert the invariants whose cost does not depend on the size of the group."""
    assert len(group.joins) <= len(group.members), "a parked join belongs to a member"
    assert group.join_phase is not None or not group.joins, "a join waits only while a join phase is open"
    assert group.join_phase is None or not group.syncs, "no sync is parked while a join phase is open"
    assert group.join_phase is None or JoinPhaseTimer() in group.deadlines, "a join phase has a timer that ends it"
    assert not group.unsynced or SyncTimer() in group.deadlines, "a sync timer runs while a SyncGroup is missing"


def check_whole(group: Group) -> None:
    """Assert all invariants, with a walk over the members: for tests, the simulator and after a load."""
    check(group)
    phase = group.phase
    assert group.joins.keys() <= group.members.keys()
    assert group.syncs.keys() <= group.members.keys()
    assert group.unsynced <= group.members.keys()
    assert not group.syncs.keys() & group.unsynced, "a member with a parked sync has sent its SyncGroup"
    assert not group.pending & group.members.keys(), "a pending member id belongs to no member"
    for member_id in group.pending:
        assert PendingMemberTimer(member_id=member_id) in group.deadlines
    for member_id, member in group.members.items():
        assert member.session_timer.member_id == member_id
        watched = (
            (member.is_new and NewMemberTimer(member_id=member_id) in group.deadlines)
            or member.session_timer in group.deadlines
            or member_id in group.joins
            or member_id in group.syncs
        )
        assert watched, f"member {member_id} has a timer or a parked request, so that its absence is noticed"
    if phase in (Phase.STABLE, Phase.COMPLETING_REBALANCE):
        assert group.written is not None
        assert group.members.keys() == group.written.members.keys(), "the members are those of the stored generation"
        assert group.leader in group.members
    if phase is Phase.COMPLETING_REBALANCE:
        for member_id in group.members.keys() - group.unsynced - group.syncs.keys():
            assert group.members[member_id].instance_id is not None, "only static members may miss a join phase"
    offers = Offers()
    for member in group.members.values():
        offers.add(member.protocols)
    assert group.offers == offers, "the counts of offered protocols match the members"
    named = {member.instance_id: member_id for member_id, member in group.members.items()}
    named.pop(None, None)
    assert named == group.static_members, "one member for each instance id"
