"""What a classic group's coordinator knows: hard state and soft state; `apply` and `check`.

Hard is only what was written: the last generation, with its members and what each was assigned, and the offset of each
partition that was committed. Who has joined so far, who waits for an answer and which deadlines run is soft: after a
crash the members say it again.
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
    """Not a setting in Kafka either: how long a new member may wait for its first join phase to end."""
    group_size_max: int = defaults.GROUP_SIZE_MAX
    generation_size_max: int = 64 * 1024 * 1024
    """Bytes: of all that the members of a group offer, and again of all that they are assigned. Kafka has no limit for
    the first, and for both together that of a record, 1 MB by default."""
    groups_max: int = defaults.GROUPS_MAX
    """In one broker; each costs some memory, and anybody may begin one. Kafka has no such limit."""
    pending_members_max: int = 20_000
    """Member ids that are handed out and not joined with, in one group; each lasts a session timeout at most."""
    offset_metadata_size_max: int = 4_096
    """In UTF-16 units, as Kafka counts."""
    offsets_retention_ms: int = 604_800_000
    offsets_retention_check_ms: int = 600_000


@dataclass(slots=True, kw_only=True)
class Member:
    """One member as the coordinator knows it now."""

    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    """What it offers. After a load only the group's protocol is known, and none where no assignment was written."""
    session_timer: SessionTimer
    """Its timer's key, made once: every heartbeat needs it."""
    instance_id: InstanceId | None = None
    """A static member's (KIP-345)."""
    is_new: bool = True
    """Its first join has not been answered: it cannot send heartbeats, so a longer timer watches it."""

    @property
    def stays_when_absent(self) -> bool:
        """A join phase that it misses does not remove it. Where a load has left nothing of what it offers, it does:
        no leader can assign to a member of which it cannot read anything."""
        return self.instance_id is not None and bool(self.protocols)

    def metadata(self, protocol: str) -> bytes:
        """What it says of itself in ``protocol``."""
        return next((offered.metadata for offered in self.protocols if offered.name == protocol), b"")


@dataclass(slots=True, kw_only=True)
class JoinPhase:
    """An open join phase. The first of an empty group lasts a while on purpose, so that members come in together."""

    initial: bool = False
    delay_ms: int = 0
    """The part of the initial delay that runs now."""
    remaining_ms: int = 0
    """By how much the initial delay may still be extended."""
    member_added: bool = False
    """A member has come since the running part of the delay began."""


class Group:
    """One classic group. Only `apply` writes ``written`` and ``offsets``; all else is soft."""

    def __init__(self, group_id: GroupId, limits: Limits) -> None:
        self.group_id = group_id
        self.limits = limits
        # hard: what was written last
        self.written: GenerationWritten | None = None
        self.offsets: dict[TopicPartition, CommittedOffset] = {}
        # soft: gone after a restart, then made anew from what was written
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        """What the vote chose for the last generation."""
        self.leader: MemberId | None = None
        self.members: dict[MemberId, Member] = {}
        """Changed by `add`, `remove` and `change_offer` only, so that the next two go with it."""
        self.offers = Offers()
        self.is_as_loaded = False
        """No join phase has ended since the load: its members may offer more than is known of them."""
        self.static_members: dict[InstanceId, MemberId] = {}
        """Under which member id each static member is known now."""
        self.pending: set[MemberId] = set()
        """Ids that were handed out and that nobody has joined with yet."""
        self.join_phase: JoinPhase | None = None
        self.joins: dict[MemberId, ReplyTo] = {}
        """Parked JoinGroups, in the order in which the members (re)joined."""
        self.syncs: dict[MemberId, ReplyTo] = {}
        """Parked SyncGroups: followers that wait for the leader's."""
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
        """Nobody was ever in it: Kafka would say that there is no such group, and a shell need not keep it."""
        return not (self.written or self.offsets or self.members or self.pending or self.join_phase)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that any member may take."""
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
    """What is always true, at a cost that does not grow with the group."""
    assert len(group.joins) <= len(group.members), "a parked join belongs to a member"
    assert group.join_phase is not None or not group.joins, "a join waits only while a join phase is open"
    assert group.join_phase is None or not group.syncs, "nobody waits for the leader's sync while the group joins"
    assert group.join_phase is None or JoinPhaseTimer() in group.deadlines, "a join phase ends some day"
    assert not group.unsynced or SyncTimer() in group.deadlines, "who has not synced is waited for, not for ever"


def check_whole(group: Group) -> None:
    """`check`, and what needs a walk over the members: for tests, the simulator and after a load."""
    check(group)
    phase = group.phase
    assert group.joins.keys() <= group.members.keys()
    assert group.syncs.keys() <= group.members.keys()
    assert group.unsynced <= group.members.keys()
    assert not group.syncs.keys() & group.unsynced, "who waits in sync has sent its sync"
    assert not group.pending & group.members.keys(), "a pending id is nobody's yet"
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
        assert watched, f"nothing would notice that {member_id} is gone"
    if phase in (Phase.STABLE, Phase.COMPLETING_REBALANCE):
        assert group.written is not None
        assert group.members.keys() == group.written.members.keys(), "a generation has the members that were written"
        assert group.leader in group.members
    if phase is Phase.COMPLETING_REBALANCE:
        for member_id in group.members.keys() - group.unsynced - group.syncs.keys():
            assert group.members[member_id].instance_id is not None, "only static members may miss a join phase"
    offers = Offers()
    for member in group.members.values():
        offers.add(member.protocols)
    assert group.offers == offers, "what is offered is counted as the members come and go"
    named = {member.instance_id: member_id for member_id, member in group.members.items()}
    named.pop(None, None)
    assert named == group.static_members, "one member for each instance id"
