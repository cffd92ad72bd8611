"""The objects that all clients of one simulation share: settings, coordinator, network, and the bytes of subscriptions
and assignments."""

from collections.abc import Mapping, Sequence

from coterie.groups.classic.messages import JoinedMember
from coterie.groups.classic.offset_messages import NewOffset, TopicId, TopicPartition
from coterie.groups.classic.subscriptions import CONSUMER_PROTOCOL_TYPE
from coterie.lab.simulator.coordinator import SimCoordinator
from coterie.lab.simulator.network import Network
from coterie.lab.simulator.world import World
from coterie.nouns.ids import GroupId, MemberId
from coterie.wire.primitives import Writer

GROUP_ID = GroupId("readers")
SESSION_TIMEOUT_MS = 6_000
REBALANCE_TIMEOUT_MS = 10_000
HEARTBEAT_INTERVAL_MS = 1_500
COMMIT_INTERVAL_MS = 2_500
OFFSETS_RETENTION_MS = 30_000
OFFSETS_RETENTION_CHECK_MS = 5_000
REQUESTED_RETENTION_MS = 12_000
"""The retention time that some offset commits request for their offset."""
REQUEST_DELAY_MAX_MS = 8_000
"""By how much a request whose connection broke may arrive late."""

SUBSCRIBED_TOPIC, UNSUBSCRIBED_TOPIC = "read", "unread"
"""The topic to which the members subscribe; and a topic for which only clients outside of the group commit offsets."""
SUBSCRIBED_PARTITIONS: Sequence[TopicPartition] = tuple(TopicPartition(SUBSCRIBED_TOPIC, number) for number in range(5))
UNSUBSCRIBED_PARTITION = TopicPartition(UNSUBSCRIBED_TOPIC, 0)
TOPIC_ID = TopicId(b"whatever it is..")
LEADER_EPOCH = 7


class SharedByClients:
    """The objects that all clients of the simulation with one seed share."""

    def __init__(self, world: World, network: Network, coordinator: SimCoordinator, *, protocol_type: str) -> None:
        self.world = world
        self.network = network
        self.coordinator = coordinator
        self.protocol_type = protocol_type
        self._last_offset = 0

    def next_offset_to_commit(self, partition: TopicPartition, metadata: str = "") -> NewOffset:
        """The next offset to commit for ``partition``, with ``metadata`` as the commit's text. It is higher than all
        offsets that this method returned before, for any partition, so that every commit is different."""
        self._last_offset += 1
        return NewOffset(
            partition=partition,
            topic_id=TOPIC_ID,
            offset=self._last_offset,
            leader_epoch=LEADER_EPOCH,
            metadata=metadata,
        )

    def encode_protocol_metadata(self) -> bytes:
        """The metadata that a member sends with each protocol: for the protocol type `consumer` the subscribed topic;
        for another type bytes that the coordinator cannot decode."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return b"\xff anything at all"
        writer = Writer()
        writer.int16(0)
        writer.array_count(1)
        writer.string(SUBSCRIBED_TOPIC)
        writer.int32(-1)  # no user data
        return writer.getvalue()


def compute_and_encode_assignments(members: Sequence[JoinedMember]) -> Mapping[MemberId, bytes]:
    """The encoded assignment of each of ``members``, by member id: the partitions of `SUBSCRIBED_PARTITIONS`, one to
    each member in turn, until all are assigned."""
    partition_numbers: dict[MemberId, list[str]] = {member.member_id: [] for member in members}
    for number in range(len(SUBSCRIBED_PARTITIONS)):
        partition_numbers[members[number % len(members)].member_id].append(str(number))
    return {member_id: ",".join(numbers).encode() for member_id, numbers in partition_numbers.items()}


def decode_assignment(assignment: bytes) -> Sequence[TopicPartition]:
    """The partitions in an assignment that `compute_and_encode_assignments` has encoded."""
    return [SUBSCRIBED_PARTITIONS[int(number)] for number in assignment.decode().split(",") if number]
