"""The checks of the invariants in the clients' simulation, at every step and response of the coordinator."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coterie.groups.classic.messages import (
    ExpiryTimer,
    GenerationWritten,
    Heartbeat,
    JoinGroup,
    JoinGroupResponse,
    Record,
    ReplyTo,
    Request,
    Response,
    SessionTimer,
    SyncGroup,
    SyncGroupResponse,
)
from coterie.groups.classic.offset_messages import (
    DeleteGroup,
    GroupRemoved,
    OffsetCommit,
    OffsetCommitResponse,
    OffsetDelete,
    OffsetFetchResponse,
    OffsetRemoved,
    OffsetWritten,
    TopicDeleted,
    TopicPartition,
)
from coterie.groups.classic.state import Group, Phase
from coterie.groups.classic.subscriptions import CONSUMER
from coterie.groups.effects import Reply, TimerFired
from coterie.lab.simulator.clients.play import OFFSETS_RETENTION_MS, READ_TOPIC, SESSION_TIMEOUT_MS
from coterie.lab.simulator.coordinator import CoordinatorStep
from coterie.lab.simulator.identities import MemberIdentity
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.lab.simulator.world import World
from coterie.nouns.ids import Generation, InstanceId, MemberId
from coterie.wire.errors import ErrorCode


@dataclass(slots=True)
class _Received:
    """What clients have received from the group, between its first generation and its deletion."""

    generations: dict[Generation, frozenset[MemberIdentity]] = field(default_factory=dict)
    """The members of each generation, as the generation's leader received them."""
    highest: Generation = Generation(0)
    """The highest generation that a client has received."""
    led: dict[Generation, Mapping[MemberIdentity, bytes]] = field(default_factory=dict)
    """For each generation, the assignments that its leader has sent, by member."""


class ClientsChecker:
    """Checks one group of clients; implements `coordinator.CoordinatorChecker`. A method raises a `Violation` when an
    invariant is broken."""

    def __init__(self, world: World, *, group_size_max: int) -> None:
        self._world = world
        self._group_size_max = group_size_max
        self._received = _Received()
        self._identities: dict[MemberId, MemberIdentity] = {}
        self._current: dict[InstanceId, MemberId] = {}
        """The member id of each static member that received a JoinGroup response last."""
        self._retired: set[MemberId] = set()
        """The member ids that a newer member with the same instance id has replaced, from the time at which the newer
        member's JoinGroup response was sent."""
        self._offers: dict[InstanceId, tuple[str, ...]] = {}
        """The protocols that each static member offered in its last successful JoinGroup, until it joins again."""
        self._received_when_decided: dict[ReplyTo, _Received] = {}
        """The value of ``_received`` in the step that computed the response to each request: the group may be deleted
        before the response is sent."""
        self._commits: dict[TopicPartition, list[int]] = {}
        """For each partition, the offsets that were written since its offset was last removed, in the order of writing.
        A lower offset may follow a higher one, if its connection broke and its request arrived late."""
        self._acknowledged: dict[TopicPartition, int] = {}
        """For each partition, the index in ``_commits`` of the last commit that was acknowledged to a client."""
        self._heard_at_ms: dict[MemberId, int] = {}
        """When the coordinator last responded to each member without an error, or loaded the group."""
        self._emptied_at_ms: int | None = None
        """When the group became empty; None while it has members, or was never empty."""
        self._committed_at_ms: dict[TopicPartition, int] = {}
        self._own_retention_ms: dict[TopicPartition, int] = {}
        """The retention time of each offset whose commit requested one."""

    # -- a step -----------------------------------------------------------------------------------------------------

    def on_step(self, step: CoordinatorStep) -> None:
        """Check the records and responses of one step."""
        if isinstance(step.event, SyncGroup) and step.event.assignments and step.output.records:
            self._received.led[step.event.generation] = {
                self._identities[member_id]: assignment for member_id, assignment in step.event.assignments
            }
        for record in step.output.records:
            self._on_record(step, record)
        if isinstance(step.event, TimerFired) and isinstance(step.event.key, SessionTimer):
            self._patient(step, step.event.key.member_id)
        for effect in step.output.effects:
            if isinstance(effect, Reply):
                self._on_decided(step, effect)

    def _on_record(self, step: CoordinatorStep, record: Record) -> None:
        """Take note of a record that the step writes.

        :raises Violation: ROOM, OFFSETS_KEPT.
        """
        match record:
            case GenerationWritten(members=members):
                self._emptied_at_ms = None if members else self._world.now_ms
                if len(members) > self._group_size_max:
                    raise Violation(
                        Invariant.ROOM, f"a generation of {len(members)} members, the maximum is {self._group_size_max}"
                    )
            case GroupRemoved():
                if step.before.phase is not Phase.EMPTY:
                    raise Violation(Invariant.OFFSETS_KEPT, f"the group is removed in {step.before.phase}")
                self._received = _Received()
                self._emptied_at_ms = None
            case OffsetWritten(partition=partition, committed=committed):
                self._commits.setdefault(partition, []).append(committed.offset)
                self._committed_at_ms[partition] = self._world.now_ms
                self._own_retention_ms.pop(partition, None)
                if isinstance(step.event, OffsetCommit) and step.event.retention_ms is not None:
                    self._own_retention_ms[partition] = step.event.retention_ms
            case OffsetRemoved(partition=partition):
                if (why_not := self._why_kept(step, partition)) is not None:
                    raise Violation(Invariant.OFFSETS_KEPT, f"the offset of {partition} is removed: {why_not}")
                self._commits.pop(partition, None)
                self._acknowledged.pop(partition, None)

    def _why_kept(self, step: CoordinatorStep, partition: TopicPartition) -> str | None:
        """The reason why the step must not remove the offset of ``partition``; None if it may."""
        event, phase = step.event, step.before.phase
        is_read = partition.topic == READ_TOPIC and phase is not Phase.EMPTY
        match event:
            case TopicDeleted(topic=topic):
                return None if topic == partition.topic else f"topic {topic} was deleted"
            case DeleteGroup():
                return None if phase is Phase.EMPTY else f"the group is {phase}"
            case OffsetDelete(partitions=partitions):
                return None if partition in partitions and not is_read else "it may not be deleted"
            case TimerFired(key=ExpiryTimer()):
                since_ms = self._committed_at_ms[partition]
                own_ms = self._own_retention_ms.get(partition)
                if phase is Phase.EMPTY and self._emptied_at_ms is not None and own_ms is None:
                    since_ms = max(since_ms, self._emptied_at_ms)
                if is_read or (phase is not Phase.EMPTY and step.group.protocol_type != CONSUMER):
                    return f"the group is {phase}"
                age_ms = self._world.now_ms - since_ms
                retention_ms = OFFSETS_RETENTION_MS if own_ms is None else own_ms
                return None if age_ms >= retention_ms else f"it is {age_ms} ms old"
            case _:
                return f"by {type(event).__name__}"

    def _patient(self, step: CoordinatorStep, member_id: MemberId) -> None:
        """Check a member that the step may have removed because its session timer fired.

        :raises Violation: PATIENT.
        """
        if member_id in step.group.members or member_id not in step.before.members:
            return
        silent_ms = self._world.now_ms - self._heard_at_ms.get(member_id, 0)
        if silent_ms < SESSION_TIMEOUT_MS:
            raise Violation(Invariant.PATIENT, f"{member_id} is removed after {silent_ms} ms of silence")

    # -- a response, at the step that produces it -------------------------------------------------------------------

    def _on_decided(self, step: CoordinatorStep, reply: Reply[Response]) -> None:
        """Check a response in the step that computes it.

        :raises Violation: ONE_PER_INSTANCE, AS_LED, CURRENT_COMMITS, GONE, STATIC_STAYS_QUIET, NOTHING_LOST.
        """
        request, response = step.asked[reply.to], reply.response
        self._received_when_decided[reply.to] = self._received
        if response.error is not ErrorCode.none:
            return
        if isinstance(request, Heartbeat | SyncGroup | JoinGroup) or (
            isinstance(request, OffsetCommit) and request.generation >= 0
        ):
            self._on_member_answered(request, response)
        match request, response:
            case SyncGroup(), SyncGroupResponse():
                self._as_led(request, response)
            case OffsetCommit(), OffsetCommitResponse() if request.generation >= 0:
                self._current_commit(request)
            case DeleteGroup(), _:
                if step.group.generation_record is not None or step.group.offsets:
                    raise Violation(Invariant.GONE, f"the group is deleted and in generation {step.group.generation}")
            case JoinGroup(instance_id=instance_id), _ if instance_id is not None:
                self._static_stays_quiet(step, request)
            case _, OffsetFetchResponse(offsets=offsets):
                for partition, known in offsets.items():
                    if known.offset != self._commits[partition][-1]:
                        raise Violation(
                            Invariant.NOTHING_LOST, f"{partition} is fetched at {known.offset}, not at its last commit"
                        )
            case _:
                pass

    def _on_member_answered(self, request: Request, response: Response) -> None:
        """Take note that a member receives a response without error; it must not be one that was replaced."""
        if isinstance(response, JoinGroupResponse):
            member_id = response.member_id
        else:
            assert isinstance(request, Heartbeat | SyncGroup | OffsetCommit)
            member_id = request.member_id
        self._heard_at_ms[member_id] = self._world.now_ms
        if member_id in self._retired:
            raise Violation(
                Invariant.ONE_PER_INSTANCE,
                f"{member_id} receives a response, but {self._identities[member_id]} has a newer member id",
            )

    def _static_stays_quiet(self, step: CoordinatorStep, request: JoinGroup) -> None:
        """Check that a static member that rejoins a STABLE group, with the protocols of its last join, gets its
        response without a rebalance."""
        before = step.before
        is_back = not request.member_id and request.instance_id in before.static_members
        assert request.instance_id is not None
        offered = self._offers.pop(request.instance_id, None)
        if not is_back or before.phase is not Phase.STABLE or offered != _names(request):
            return
        others = [
            effect for effect in step.output.effects if isinstance(effect, Reply) and effect.to != request.reply_to
        ]
        if others or step.group.generation != before.generation or step.group.phase is not Phase.STABLE:
            raise Violation(
                Invariant.STATIC_STAYS_QUIET,
                f"{request.instance_id} rejoins, and the group is disturbed: it is {step.group.phase}",
            )

    def _as_led(self, request: SyncGroup, response: SyncGroupResponse) -> None:
        """Check that the member receives the assignment that its leader has sent for it."""
        led = self._received.led.get(request.generation)
        place = self._identities[request.member_id]
        if led is not None and led.get(place, b"") != response.assignment:
            raise Violation(
                Invariant.AS_LED, f"{place} receives {response.assignment!r}, its leader sent {led.get(place)!r}"
            )

    def _current_commit(self, request: OffsetCommit) -> None:
        """Check that no client has received a later generation than that of the accepted commit."""
        if request.generation < self._received.highest:
            raise Violation(
                Invariant.CURRENT_COMMITS,
                f"{request.member_id} commits in generation {request.generation}, {self._received.highest} was sent",
            )

    # -- a response, when it leaves ---------------------------------------------------------------------------------

    def on_reply(self, request: Request, response: Response) -> None:
        """Check a response that is being sent, and take note of what clients receive."""
        if response.error is not ErrorCode.none:
            return
        match request, response:
            case JoinGroup(), JoinGroupResponse():
                self._on_joined(request, response)
            case OffsetCommit(), OffsetCommitResponse():
                for new, error in zip(request.offsets, response.errors, strict=True):
                    commits = self._commits.get(new.partition, [])
                    if error is ErrorCode.none and new.offset in commits:
                        at = commits.index(new.offset)
                        self._acknowledged[new.partition] = max(self._acknowledged.get(new.partition, 0), at)
            case _:
                pass

    def _on_joined(self, request: JoinGroup, response: JoinGroupResponse) -> None:
        """Check the generation, its members and the member id that a client receives.

        :raises Violation: GENERATION_RISES.
        """
        told, member_id = self._received_when_decided.pop(request.reply_to, self._received), response.member_id
        place = self._identities[member_id] = request.instance_id or member_id
        if response.generation < told.highest:
            raise Violation(
                Invariant.GENERATION_RISES, f"{place} receives {response.generation}, {told.highest} was sent before"
            )
        told.highest = response.generation
        if response.members:
            places = frozenset(one.instance_id or one.member_id for one in response.members)
            if told.generations.setdefault(response.generation, places) != places:
                raise Violation(Invariant.GENERATION_RISES, f"generation {response.generation} has two memberships")
            for one in response.members:
                self._identities[one.member_id] = one.instance_id or one.member_id
        if request.instance_id is not None:
            self._offers[request.instance_id] = _names(request)
        if request.instance_id is not None and not request.member_id:
            former_id = self._current.get(request.instance_id)
            if former_id is not None and former_id != member_id:
                self._retired.add(former_id)
            self._current[request.instance_id] = member_id

    # -- starts of the coordinator ----------------------------------------------------------------------------------

    def on_loaded(self, group: Group) -> None:
        """Check the group that the coordinator has loaded after a crash.

        :raises Violation: NOTHING_LOST.
        """
        if group.generation_record is not None and group.generation < self._received.highest:
            raise Violation(Invariant.NOTHING_LOST, f"after a crash the group is at generation {group.generation}")
        for partition in self._commits.keys() | group.offsets.keys():
            self._on_offset_loaded(partition, group)
        for member_id in group.generation_record.members if group.generation_record is not None else ():
            # The member's session begins again at the load.
            self._heard_at_ms[member_id] = self._world.now_ms
        # The crash may have undone the removal of an offset: until it is removed again, its older commit counts.
        self._emptied_at_ms = (
            group.generation_record.written_at_ms
            if group.generation_record is not None and not group.generation_record.members
            else None
        )
        self._committed_at_ms = {partition: known.committed_at_ms for partition, known in group.offsets.items()}
        self._own_retention_ms = {
            partition: known.expires_at_ms - known.committed_at_ms
            for partition, known in group.offsets.items()
            if known.expires_at_ms is not None
        }

    def _on_offset_loaded(self, partition: TopicPartition, group: Group) -> None:
        """Check the offset of ``partition`` after a load: the crash may have lost its last commits, but none that was
        acknowledged."""
        known, commits = group.offsets.get(partition), self._commits.pop(partition, [])
        acknowledged = self._acknowledged.pop(partition, None)
        if known is None:
            kept = None
        elif known.offset in commits:
            kept = commits.index(known.offset)
            self._commits[partition] = commits[: kept + 1]
        else:
            # The crash has lost the record that removed the offset.
            kept, acknowledged = 0, None
            self._commits[partition] = [known.offset]
        if acknowledged is not None:
            if kept is None or kept < acknowledged:
                raise Violation(
                    Invariant.NOTHING_LOST, f"{partition} was acknowledged at {commits[acknowledged]}, now is {known}"
                )
            self._acknowledged[partition] = acknowledged


def _names(request: JoinGroup) -> tuple[str, ...]:
    """The names of the protocols that the request offers, in order."""
    return tuple(protocol.name for protocol in request.protocols)
