"""The checks of the invariants in the clients' simulation, at every step and response of the coordinator."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coterie.groups.classic.messages import (
    GenerationWritten,
    Heartbeat,
    JoinGroup,
    JoinGroupResponse,
    OffsetExpiryTimer,
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
    PendingOffsetWritten,
    TopicDeleted,
    TopicPartition,
)
from coterie.groups.classic.state import Group, GroupPhase
from coterie.groups.classic.subscriptions import CONSUMER_PROTOCOL_TYPE
from coterie.groups.effects import Reply, TimerFired
from coterie.lab.simulator.clients.play import OFFSETS_RETENTION_MS, SESSION_TIMEOUT_MS, SUBSCRIBED_TOPIC
from coterie.lab.simulator.coordinator import CoordinatorStep
from coterie.lab.simulator.identities import MemberIdentity
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.lab.simulator.world import World
from coterie.nouns.ids import GenerationId, InstanceId, MemberId
from coterie.wire.errors import ErrorCode


@dataclass(slots=True)
class _ReceivedGenerations:
    """What clients have received from the group, from its first generation to its deletion; after a deletion there is a
    new object."""

    members_by_generation: dict[GenerationId, frozenset[MemberIdentity]] = field(default_factory=dict)
    """For each generation, its members as its leader received them."""
    highest_generation: GenerationId = GenerationId(0)
    """The highest generation that a client has received."""
    leader_assignments_by_generation: dict[GenerationId, Mapping[MemberIdentity, bytes]] = field(default_factory=dict)
    """For each generation, the encoded assignments that its leader has sent, by member."""


class ClientsChecker:
    """Checks the coordinator of a group of clients; implements `coordinator.CoordinatorChecker`. A method raises a
    `Violation` when an invariant is broken."""

    def __init__(self, world: World, *, group_size_max: int) -> None:
        self._world = world
        self._group_size_max = group_size_max
        self._received = _ReceivedGenerations()
        self._identities: dict[MemberId, MemberIdentity] = {}
        """For each member id that was sent: the instance id of a static member, else the member id."""
        self._member_id_by_instance: dict[InstanceId, MemberId] = {}
        """By instance id, the member id that was last sent to a static member in a JoinGroup response."""
        self._replaced_member_ids: set[MemberId] = set()
        """The member ids that a newer member with the same instance id has replaced. A member id is added when the
        JoinGroup response of the newer member is sent."""
        self._offered_protocols: dict[InstanceId, tuple[str, ...]] = {}
        """By instance id, the protocols that a static member offered in its last successful JoinGroup; removed when its
        next successful JoinGroup is computed."""
        self._received_when_computed: dict[ReplyTo, _ReceivedGenerations] = {}
        """For each request, the value of ``_received`` in the step that computed the response: the group may be deleted
        before the response is sent."""
        self._commits: dict[TopicPartition, list[int]] = {}
        """For each partition, the offsets that were written since its offset was last removed, in the order of writing.
        A lower offset may follow a higher one, because a request whose connection broke may arrive late."""
        self._acknowledged_commit_index: dict[TopicPartition, int] = {}
        """For each partition, the index in ``_commits`` of the last commit that was acknowledged to a client."""
        self._last_success_at_ms: dict[MemberId, int] = {}
        """For each member, when the coordinator last computed a response without an error to it, or loaded the
        group."""
        self._emptied_at_ms: int | None = None
        """When the group became empty; None while it has members, or was never empty."""
        self._committed_at_ms: dict[TopicPartition, int] = {}
        """When the present offset of each partition was written."""
        self._own_retention_ms: dict[TopicPartition, int] = {}
        """By partition, the retention time in ms of an offset whose commit requested one."""

    # -- a step -----------------------------------------------------------------------------------------------------

    def check_step(self, step: CoordinatorStep) -> None:
        """Check the records and responses of one step, and store what they change."""
        if isinstance(step.event, SyncGroup) and step.event.assignments and step.output.records:
            self._received.leader_assignments_by_generation[step.event.generation] = {
                self._identities[member_id]: assignment for member_id, assignment in step.event.assignments
            }
        for record in step.output.records:
            self._check_and_store_record(step, record)
        if isinstance(step.event, TimerFired) and isinstance(step.event.key, SessionTimer):
            self._check_session_removal(step, step.event.key.member_id)
        for effect in step.output.effects:
            if isinstance(effect, Reply):
                self._check_response_when_computed(step, effect)

    def _check_and_store_record(self, step: CoordinatorStep, record: Record) -> None:
        """Store what a record of the step changes, and check it.

        :raises Violation: ROOM, OFFSETS_KEPT.
        """
        match record:
            case GenerationWritten(members=members):
                self._emptied_at_ms = None if members else self._world.now_ms
                if len(members) > self._group_size_max:
                    raise Violation(
                        Invariant.ROOM,
                        f"a generation has {len(members)} members, the maximum is {self._group_size_max}",
                    )
            case GroupRemoved():
                if step.group_before.phase is not GroupPhase.EMPTY:
                    raise Violation(
                        Invariant.OFFSETS_KEPT,
                        f"the group is removed in the phase {step.group_before.phase}, but only an EMPTY group may be",
                    )
                self._received = _ReceivedGenerations()
                self._emptied_at_ms = None
            case OffsetWritten(partition=partition, committed_offset=committed):
                self._commits.setdefault(partition, []).append(committed.offset)
                self._committed_at_ms[partition] = self._world.now_ms
                self._own_retention_ms.pop(partition, None)
                if isinstance(step.event, OffsetCommit) and step.event.retention_ms is not None:
                    self._own_retention_ms[partition] = step.event.retention_ms
            case PendingOffsetWritten():
                raise AssertionError(
                    "bug in the coordinator or the simulator: the group writes a pending offset, but no simulated "
                    "client commits offsets in a transaction"
                )
            case OffsetRemoved(partition=partition):
                if (reason_to_keep := self._reason_to_keep_offset(step, partition)) is not None:
                    raise Violation(
                        Invariant.OFFSETS_KEPT, f"the offset of {partition} is removed, but {reason_to_keep}"
                    )
                self._commits.pop(partition, None)
                self._acknowledged_commit_index.pop(partition, None)

    def _reason_to_keep_offset(self, step: CoordinatorStep, partition: TopicPartition) -> str | None:
        """The reason why the step must not remove the offset of ``partition``; None if the step may remove it."""
        event, phase = step.event, step.group_before.phase
        is_read = partition.topic == SUBSCRIBED_TOPIC and phase is not GroupPhase.EMPTY
        match event:
            case TopicDeleted(topic=topic):
                return None if topic == partition.topic else f"only the topic {topic} was deleted"
            case DeleteGroup():
                return None if phase is GroupPhase.EMPTY else f"the group, which was to be deleted, is {phase}"
            case OffsetDelete(partitions=partitions):
                return (
                    None
                    if partition in partitions and not is_read
                    else "its deletion was not requested, or members read its topic"
                )
            case TimerFired(key=OffsetExpiryTimer()):
                since_ms = self._committed_at_ms[partition]
                own_retention_ms = self._own_retention_ms.get(partition)
                if phase is GroupPhase.EMPTY and self._emptied_at_ms is not None and own_retention_ms is None:
                    since_ms = max(since_ms, self._emptied_at_ms)
                if is_read or (phase is not GroupPhase.EMPTY and step.group.protocol_type != CONSUMER_PROTOCOL_TYPE):
                    return f"its members may still read it: the group is {phase}"
                age_ms = self._world.now_ms - since_ms
                retention_ms = OFFSETS_RETENTION_MS if own_retention_ms is None else own_retention_ms
                return None if age_ms >= retention_ms else f"it is {age_ms} ms old, less than {retention_ms} ms"
            case _:
                return f"the event is {type(event).__name__}, which removes no offsets"

    def _check_session_removal(self, step: CoordinatorStep, member_id: MemberId) -> None:
        """If the step has removed the member ``member_id`` because its session timer fired, check that at least one
        session timeout has passed since the coordinator computed its last response without an error to this member.

        :raises Violation: PATIENT.
        """
        if member_id in step.group.members or member_id not in step.group_before.members:
            return
        silent_ms = self._world.now_ms - self._last_success_at_ms.get(member_id, 0)
        if silent_ms < SESSION_TIMEOUT_MS:
            raise Violation(
                Invariant.PATIENT,
                f"{member_id} is removed {silent_ms} ms after the last response without an error to it, before the "
                f"session timeout of {SESSION_TIMEOUT_MS} ms has passed",
            )

    # -- a response, at the step that produces it -------------------------------------------------------------------

    def _check_response_when_computed(self, step: CoordinatorStep, reply: Reply[Response]) -> None:
        """Check a response in the step that computes it, before it is sent.

        :raises Violation: PROTOCOL_KEPT, ONE_PER_INSTANCE, AS_LED, CURRENT_COMMITS, GONE, STATIC_STAYS_QUIET,
            NOTHING_LOST.
        """
        request, response = step.unanswered_requests[reply.to], reply.response
        self._received_when_computed[reply.to] = self._received
        if isinstance(request, SyncGroup) and response.error is ErrorCode.inconsistent_group_protocol:
            # Each client sends the protocol of its JoinGroup response.
            raise Violation(
                Invariant.PROTOCOL_KEPT,
                f"{request.member_id} sends SyncGroup with the protocol {request.protocol} of its JoinGroup response, "
                "and is refused with INCONSISTENT_GROUP_PROTOCOL",
            )
        if response.error is not ErrorCode.none:
            return
        if isinstance(request, Heartbeat | SyncGroup | JoinGroup) or (
            isinstance(request, OffsetCommit) and request.generation >= 0
        ):
            self._check_not_replaced_and_store_success(request, response)
        match request, response:
            case SyncGroup(), SyncGroupResponse():
                self._check_assignment_is_from_leader(request, response)
            case OffsetCommit(), OffsetCommitResponse() if request.generation >= 0:
                self._check_commit_generation_not_outdated(request)
            case DeleteGroup(), _:
                if step.group.generation_record is not None or step.group.offsets:
                    raise Violation(
                        Invariant.GONE,
                        f"the deletion of the group succeeds, but its generation {step.group.generation} or offsets "
                        "remain",
                    )
            case JoinGroup(instance_id=instance_id), _ if instance_id is not None:
                self._check_static_rejoin_is_quiet(step, request)
            case _, OffsetFetchResponse(offsets=offsets):
                for partition, committed in offsets.items():
                    if committed.offset != self._commits[partition][-1]:
                        raise Violation(
                            Invariant.NOTHING_LOST,
                            f"the fetched offset of {partition} is {committed.offset}, the last committed one is "
                            f"{self._commits[partition][-1]}",
                        )
            case _:
                pass

    def _check_not_replaced_and_store_success(self, request: Request, response: Response) -> None:
        """Store that a response without an error to a member is computed now, and check that no newer member with the
        same instance id has replaced this member.

        :raises Violation: ONE_PER_INSTANCE.
        """
        if isinstance(response, JoinGroupResponse):
            member_id = response.member_id
        else:
            assert isinstance(request, Heartbeat | SyncGroup | OffsetCommit)
            member_id = request.member_id
        self._last_success_at_ms[member_id] = self._world.now_ms
        if member_id in self._replaced_member_ids:
            raise Violation(
                Invariant.ONE_PER_INSTANCE,
                f"{member_id} gets a response without an error, but a newer member has the same instance id "
                f"{self._identities[member_id]}",
            )

    def _check_static_rejoin_is_quiet(self, step: CoordinatorStep, request: JoinGroup) -> None:
        """Check a successful JoinGroup of a static member: if the member rejoins a STABLE group without a member id and
        with the protocols of its last join, no rebalance may come.

        :raises Violation: STATIC_STAYS_QUIET.
        """
        group_before = step.group_before
        is_static_rejoin = not request.member_id and request.instance_id in group_before.static_members
        assert request.instance_id is not None
        offered = self._offered_protocols.pop(request.instance_id, None)
        if not is_static_rejoin or group_before.phase is not GroupPhase.STABLE or offered != _protocol_names(request):
            return
        other_replies = [
            effect for effect in step.output.effects if isinstance(effect, Reply) and effect.to != request.reply_to
        ]
        if (
            other_replies
            or step.group.generation != group_before.generation
            or step.group.phase is not GroupPhase.STABLE
        ):
            raise Violation(
                Invariant.STATIC_STAYS_QUIET,
                f"{request.instance_id} rejoins with unchanged protocols, and a rebalance comes: the group is "
                f"{step.group.phase} in generation {step.group.generation}, before in {group_before.generation}",
            )

    def _check_assignment_is_from_leader(self, request: SyncGroup, response: SyncGroupResponse) -> None:
        """Check that the member receives the assignment that the leader of its generation has sent for it. Nothing is
        checked if this checker has stored no assignments of that leader.

        :raises Violation: AS_LED.
        """
        leader_assignments = self._received.leader_assignments_by_generation.get(request.generation)
        identity = self._identities[request.member_id]
        if leader_assignments is not None and leader_assignments.get(identity, b"") != response.assignment:
            raise Violation(
                Invariant.AS_LED,
                f"{identity} receives the assignment {response.assignment!r}, but the leader of its generation sent "
                f"{leader_assignments.get(identity)!r} for it",
            )

    def _check_commit_generation_not_outdated(self, request: OffsetCommit) -> None:
        """Check that no client has received a later generation than that of ``request``, an accepted commit.

        :raises Violation: CURRENT_COMMITS.
        """
        if request.generation < self._received.highest_generation:
            raise Violation(
                Invariant.CURRENT_COMMITS,
                f"a commit of {request.member_id} in generation {request.generation} is accepted, but a client has "
                f"received generation {self._received.highest_generation}",
            )

    # -- a response, when it leaves ---------------------------------------------------------------------------------

    def check_sent_response(self, request: Request, response: Response) -> None:
        """Check a response when it is sent. Store which generations and acknowledged offsets clients receive."""
        if response.error is not ErrorCode.none:
            return
        match request, response:
            case JoinGroup(), JoinGroupResponse():
                self._check_and_store_join_response(request, response)
            case OffsetCommit(), OffsetCommitResponse():
                for new_offset, error in zip(request.offsets, response.partition_errors, strict=True):
                    commits = self._commits.get(new_offset.partition, [])
                    if error is ErrorCode.none and new_offset.offset in commits:
                        commit_index = commits.index(new_offset.offset)
                        self._acknowledged_commit_index[new_offset.partition] = max(
                            self._acknowledged_commit_index.get(new_offset.partition, 0), commit_index
                        )
            case _:
                pass

    def _check_and_store_join_response(self, request: JoinGroup, response: JoinGroupResponse) -> None:
        """Check the generation that a client receives with a JoinGroup response, and the members of that generation.
        Also store the member's id and protocols for later checks.

        :raises Violation: GENERATION_RISES.
        """
        received, member_id = self._received_when_computed.pop(request.reply_to, self._received), response.member_id
        identity = self._identities[member_id] = request.instance_id or member_id
        if response.generation < received.highest_generation:
            raise Violation(
                Invariant.GENERATION_RISES,
                f"{identity} receives generation {response.generation}, but generation "
                f"{received.highest_generation} was sent before",
            )
        received.highest_generation = response.generation
        if response.members:
            identities = frozenset(
                joined_member.instance_id or joined_member.member_id for joined_member in response.members
            )
            if received.members_by_generation.setdefault(response.generation, identities) != identities:
                raise Violation(
                    Invariant.GENERATION_RISES,
                    f"generation {response.generation} was sent to its leader with two different sets of members",
                )
            for joined_member in response.members:
                self._identities[joined_member.member_id] = joined_member.instance_id or joined_member.member_id
        if request.instance_id is not None:
            self._offered_protocols[request.instance_id] = _protocol_names(request)
        if request.instance_id is not None and not request.member_id:
            former_id = self._member_id_by_instance.get(request.instance_id)
            if former_id is not None and former_id != member_id:
                self._replaced_member_ids.add(former_id)
            self._member_id_by_instance[request.instance_id] = member_id

    # -- starts of the coordinator ----------------------------------------------------------------------------------

    def check_and_store_loaded_group(self, group: Group) -> None:
        """Check the group that the coordinator has loaded, at its first start or after a crash. Also set what this
        checker has stored about offsets, sessions and retention to the loaded state: a crash may have undone the last
        steps.

        :raises Violation: NOTHING_LOST.
        """
        if group.generation_record is not None and group.generation < self._received.highest_generation:
            raise Violation(
                Invariant.NOTHING_LOST,
                f"after a crash the group is at generation {group.generation}, but generation "
                f"{self._received.highest_generation} was sent before",
            )
        for partition in self._commits.keys() | group.offsets.keys():
            self._check_and_store_loaded_offset(partition, group)
        for member_id in group.generation_record.members if group.generation_record is not None else ():
            # The member's session begins again at the load.
            self._last_success_at_ms[member_id] = self._world.now_ms
        # The crash may have undone the removal of an offset: until it is removed again, its older commit counts.
        self._emptied_at_ms = (
            group.generation_record.written_at_ms
            if group.generation_record is not None and not group.generation_record.members
            else None
        )
        self._committed_at_ms = {partition: committed.committed_at_ms for partition, committed in group.offsets.items()}
        self._own_retention_ms = {
            partition: committed.expires_at_ms - committed.committed_at_ms
            for partition, committed in group.offsets.items()
            if committed.expires_at_ms is not None
        }

    def _check_and_store_loaded_offset(self, partition: TopicPartition, group: Group) -> None:
        """Check the offset of ``partition`` after a load: the crash may have lost its last commits, but no commit that
        was acknowledged.

        :raises Violation: NOTHING_LOST.
        """
        loaded_offset, commits = group.offsets.get(partition), self._commits.pop(partition, [])
        acknowledged = self._acknowledged_commit_index.pop(partition, None)
        if loaded_offset is None:
            kept_index = None
        elif loaded_offset.offset in commits:
            kept_index = commits.index(loaded_offset.offset)
            self._commits[partition] = commits[: kept_index + 1]
        else:
            # The crash has lost the record that removed the offset.
            kept_index, acknowledged = 0, None
            self._commits[partition] = [loaded_offset.offset]
        if acknowledged is not None:
            if kept_index is None or kept_index < acknowledged:
                raise Violation(
                    Invariant.NOTHING_LOST,
                    f"the offset {commits[acknowledged]} of {partition} was acknowledged, but after a crash the offset "
                    f"is {loaded_offset}",
                )
            self._acknowledged_commit_index[partition] = acknowledged


def _protocol_names(request: JoinGroup) -> tuple[str, ...]:
    """The names of the protocols that the request offers, in order."""
    return tuple(protocol.name for protocol in request.protocols)
