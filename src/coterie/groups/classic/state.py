"""The state of a classic group's coordinator, hard and soft; `apply` writes the hard state, `check_invariants` asserts
invariants.

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
from coterie.groups.classic.messages import GroupPhase as GroupPhase
from coterie.groups.classic.offset_messages import (
    CommittedOffset,
    GroupRemoved,
    OffsetRemoved,
    OffsetWritten,
    PendingOffsetWritten,
    TopicPartition,
    TransactionEnded,
)
from coterie.groups.classic.protocols import ProtocolSupportCounts
from coterie.groups.pending_writes import OpenTransactionWrites
from coterie.nouns.ids import GenerationId, GroupId, InstanceId, MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicGroupSettings:
    """The limits, delays and retention times of the coordinator; the defaults are Kafka's
    (``group.min.session.timeout.ms`` and so on) unless a field says otherwise."""

    session_timeout_min_ms: int = 6_000
    """The least session timeout that a client may request."""
    session_timeout_max_ms: int = 1_800_000
    """The greatest session timeout that a client may request."""
    initial_rebalance_delay_ms: int = defaults.INITIAL_REBALANCE_DELAY_MS
    """How long the first join phase of an empty group stays open for further members; while members join, it is
    extended by this time (KIP-134)."""
    first_join_response_timeout_ms: int = 300_000
    """How long a new member may wait for the response to its first JoinGroup. A constant in Kafka, too."""
    group_size_max: int = defaults.CLASSIC_GROUP_SIZE_MAX
    """The greatest number of members of one group."""
    protocols_or_assignments_size_max_bytes: int = 64 * 1024 * 1024
    """The greatest size in bytes of all protocols (names and metadata) that a group's members offer; also the greatest
    size in bytes of all their assignments. Kafka has no limit for the protocols offered; there the maximum size of a
    record, 1 MB by default, limits the selected metadata and the assignments together."""
    groups_max: int = defaults.GROUPS_MAX
    """The greatest number of groups on one broker: each group takes memory, and any client may create one. Kafka has no
    such limit."""
    pending_members_max: int = 20_000
    """The greatest number of issued member ids of one group that no client has joined with. Each id expires after the
    session timeout of its client. Kafka has no such limit."""
    offset_metadata_utf16_length_max: int = 4_096
    """The greatest length, in UTF-16 units as in Kafka, of the metadata of a committed offset."""
    offsets_retention_ms: int = 604_800_000
    """How long an offset is kept after its commit or, if later, after the group became empty; see `offsets`."""
    offsets_retention_check_interval_ms: int = 600_000
    """The time between two removals of expired offsets."""


@dataclass(slots=True, kw_only=True)
class Member:
    """One member of the group, with the values that its JoinGroups contained. After a load, until it joins again, at
    most the group's selected protocol is known of its protocols."""

    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    """The protocols that the member offers, in its order of preference. After a load only the group's selected protocol
    is known, and none if no member of the stored generation has an assignment."""
    session_timer_key: SessionTimer
    """The key of the member's session timer. It is created once, because every heartbeat needs it."""
    instance_id: InstanceId | None = None
    """The instance id of a static member (KIP-345)."""
    awaits_first_join_response: bool = True
    """True until the response to the member's first JoinGroup. The member cannot send heartbeats before, so
    `NewMemberTimer` takes the place of the session timer."""

    @property
    def stays_when_join_phase_missed(self) -> bool:
        """Whether the member stays in the group when it misses a join phase. A static member stays, unless its
        protocols are unknown after a load: without its metadata no leader can compute an assignment for it."""
        return self.instance_id is not None and bool(self.protocols)

    def metadata(self, protocol: str) -> bytes:
        """The member's metadata in ``protocol``; empty if the member does not offer it."""
        return next((offered.metadata for offered in self.protocols if offered.name == protocol), b"")


@dataclass(slots=True, kw_only=True)
class JoinPhase:
    """A join phase that has not ended. If it began with the first member of an empty group (``is_initial``), it stays
    open for the initial delay, which is extended while members join, so that many members can join in it. The other
    fields serve only the initial delay."""

    is_initial: bool = False
    """Whether this is the first join phase of an empty group."""
    current_initial_delay_part_ms: int = 0
    """The length of the current part of the initial delay: the first part, or the last extension."""
    initial_delay_extensions_left_ms: int = 0
    """The total time of the extensions that may still follow."""
    has_new_member_in_delay_part: bool = False
    """Whether a member has joined since the current part of the initial delay began."""


class Group:
    """One classic group. Only `apply` writes the hard state: ``generation_record``, ``offsets`` and
    ``pending_offsets``; all other fields are soft state."""

    def __init__(self, group_id: GroupId, limits: ClassicGroupSettings) -> None:
        self.group_id = group_id
        self.limits = limits
        # hard state: written to the log
        self.generation_record: GenerationWritten | None = None
        self.offsets: dict[TopicPartition, CommittedOffset] = {}
        self.pending_offsets: OpenTransactionWrites[TopicPartition, CommittedOffset] = OpenTransactionWrites()
        """The offsets in transactions that are open."""
        # soft state: lost in a restart, then rebuilt from the hard state
        self.protocol_type: str | None = None
        """The protocol type of the members, for example `consumer` or `connect`; None before the first member has
        joined."""
        self.protocol: str | None = None
        """The selected protocol of the last generation; None before the first one, and if no member was left in it."""
        self.leader: MemberId | None = None
        """The member id of the leader; None after the leader was removed, until the join phase ends."""
        self.members: dict[MemberId, Member] = {}
        """The members by member id. Changed only by `add_member`, `remove_from_members` and `change_protocols`, which
        also update ``protocol_support`` and ``static_members``."""
        self.protocol_support = ProtocolSupportCounts()
        self.is_unrebalanced_since_load = False
        """Whether the members were loaded from the log and no join phase has ended since then: the members may offer
        more protocols than the one that the log contains."""
        self.static_members: dict[InstanceId, MemberId] = {}
        """The current member id of each static member."""
        self.pending_join_members: set[MemberId] = set()
        """Issued member ids that no client has joined with yet."""
        self.join_phase: JoinPhase | None = None
        """None while no join phase is open."""
        self.parked_joins: dict[MemberId, ReplyTo] = {}
        """Parked JoinGroups by member id, in the order in which the members (re)joined."""
        self.parked_syncs: dict[MemberId, ReplyTo] = {}
        """Parked SyncGroups by member id; they wait for the leader's SyncGroup."""
        self.pending_sync_members: set[MemberId] = set()
        """Members of this generation that have not sent their SyncGroup; they are removed when `SyncTimer` fires.
        Without the static members that missed the join phase."""
        self.deadlines: dict[TimerKey, int] = {}
        """For each timer that is set, the point of time in ms at which it fires."""

    def add_member(self, member_id: MemberId, member: Member) -> Member:
        """Add ``member`` with the id ``member_id``, and return it."""
        self.members[member_id] = member
        self.protocol_support.add_member_protocols(member.protocols)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member_id
        return member

    def remove_from_members(self, member_id: MemberId) -> Member:
        """Remove the member ``member_id``, and return it. Its timers and parked requests stay."""
        member = self.members.pop(member_id)
        self.protocol_support.remove_member_protocols(member.protocols)
        if member.instance_id is not None:
            del self.static_members[member.instance_id]
        return member

    def change_protocols(self, member: Member, protocols: tuple[MemberProtocol, ...]) -> None:
        """Replace the protocols that ``member`` offers."""
        self.protocol_support.remove_member_protocols(member.protocols)
        member.protocols = protocols
        self.protocol_support.add_member_protocols(protocols)

    @property
    def generation(self) -> GenerationId:
        """The number of the last generation; 0 before the first one."""
        return self.generation_record.generation if self.generation_record is not None else GenerationId(0)

    @property
    def phase(self) -> GroupPhase:
        """The group's state, derived from its members, its last generation and the join phase. Never DEAD: a group that
        does not exist is EMPTY here."""
        if self.join_phase is not None:
            return GroupPhase.PREPARING_REBALANCE
        if not self.members:
            return GroupPhase.EMPTY
        if self.generation_record is None or self.generation_record.protocol is None:
            return GroupPhase.COMPLETING_REBALANCE
        return GroupPhase.STABLE

    @property
    def is_nonexistent(self) -> bool:
        """Whether the group does not exist: it has no members, no offsets, no pending offsets, no issued member ids, no
        records and no join phase. A shell need not keep the state of such a group."""
        return not (
            self.generation_record
            or self.offsets
            or self.members
            or self.pending_join_members
            or self.join_phase
            or self.pending_offsets
        )

    @property
    def has_only_offsets(self) -> bool:
        """Whether the group has committed or pending offsets, but no generation in its log, no members, no issued
        member ids and no join phase."""
        has_more = self.generation_record or self.members or self.pending_join_members or self.join_phase
        return bool(self.offsets or self.pending_offsets) and not has_more

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of all members; 0 without members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def has_all_members_and_pending_joined(self) -> bool:
        """Whether every member has a parked JoinGroup, and every issued member id was used or has expired."""
        return len(self.parked_joins) == len(self.members) and not self.pending_join_members


def apply(group: Group, record: Record | TransactionEnded) -> None:
    """Change the hard state according to ``record``. No other function changes hard state, neither live nor at
    replay."""
    match record:
        case GenerationWritten():
            group.generation_record = record
        case GroupRemoved():
            group.generation_record = None
        case OffsetWritten(partition=partition, committed_offset=committed):
            group.offsets[partition] = committed
            group.pending_offsets.drop_values_of_key(partition)
        case PendingOffsetWritten(producer=producer, partition=partition, committed_offset=committed):
            group.pending_offsets.write(producer.producer_id, partition, committed)
        case OffsetRemoved(partition=partition):
            group.offsets.pop(partition, None)
            group.pending_offsets.drop_values_of_key(partition)
        case TransactionEnded(producer_id=producer_id, is_commit=is_commit):
            group.offsets.update(group.pending_offsets.end_transaction(producer_id, is_commit=is_commit))


def check_invariants(group: Group) -> None:
    """Assert those invariants whose check costs the same for every size of the group. Called after each step."""
    assert len(group.parked_joins) <= len(group.members), "a parked join belongs to a member"
    assert group.join_phase is not None or not group.parked_joins, "a join waits only while a join phase is open"
    assert group.join_phase is None or not group.parked_syncs, "no sync is parked while a join phase is open"
    assert group.join_phase is None or JoinPhaseTimer() in group.deadlines, "a join phase has a timer that ends it"
    assert not group.pending_sync_members or SyncTimer() in group.deadlines, (
        "a sync timer runs while a SyncGroup is missing"
    )


def check_all_invariants(group: Group) -> None:
    """Assert all invariants, with a walk over the members. Called by tests, by the simulator and by the scenarios."""
    check_invariants(group)
    phase = group.phase
    assert group.parked_joins.keys() <= group.members.keys()
    assert group.parked_syncs.keys() <= group.members.keys()
    assert group.pending_sync_members <= group.members.keys()
    assert not group.parked_syncs.keys() & group.pending_sync_members, (
        "a member with a parked sync has sent its SyncGroup"
    )
    assert not group.pending_join_members & group.members.keys(), "a pending member id belongs to no member"
    for member_id in group.pending_join_members:
        assert PendingMemberTimer(member_id=member_id) in group.deadlines
    for member_id, member in group.members.items():
        assert member.session_timer_key.member_id == member_id
        is_absence_noticed = (
            (member.awaits_first_join_response and NewMemberTimer(member_id=member_id) in group.deadlines)
            or member.session_timer_key in group.deadlines
            or member_id in group.parked_joins
            or member_id in group.parked_syncs
        )
        assert is_absence_noticed, f"member {member_id} has a timer or a parked request, so that its absence is noticed"
    if phase in (GroupPhase.STABLE, GroupPhase.COMPLETING_REBALANCE):
        assert group.generation_record is not None
        assert group.members.keys() == group.generation_record.members.keys(), (
            "the members are those of the stored generation"
        )
        assert group.leader in group.members
    if phase is GroupPhase.COMPLETING_REBALANCE:
        for member_id in group.members.keys() - group.pending_sync_members - group.parked_syncs.keys():
            assert group.members[member_id].instance_id is not None, "only static members may miss a join phase"
    protocol_support = ProtocolSupportCounts()
    for member in group.members.values():
        protocol_support.add_member_protocols(member.protocols)
    assert group.protocol_support == protocol_support, "the counts of offered protocols match the members"
    static_members = {member.instance_id: member_id for member_id, member in group.members.items()}
    static_members.pop(None, None)
    assert static_members == group.static_members, "one member for each instance id"
