"""The ends of the members' connections: which ones end a membership."""

from coterie.groups.connect.messages import ConnectionClosed, SetGroupConfigs
from coterie.nouns.ids import MemberId, ReplyTo
from tests.groups.connect.builders import Conversation, short_heartbeat

GRACE_MS = 2_000


class Workers:
    """Members of one group, each with a connection of its own."""

    def __init__(self, *members: str) -> None:
        self.conversation = Conversation()
        self.conversation.settle(*members)
        self.connections = {member: number for number, member in enumerate(members, start=5)}
        for member in members:
            self.beat(member)

    def beat(self, member: str) -> None:
        epoch = self.conversation.coordinator.group.currents[MemberId(member)].member_epoch
        number = self.connections[member]
        self.conversation.ask(short_heartbeat(member, epoch, connection_number=number, connection_grace_ms=GRACE_MS))

    def close(self, *members: str) -> None:
        for member in members:
            closed = ConnectionClosed(connection_number=self.connections[member], member_ids=(MemberId(member),))
            self.conversation.coordinator.handle(closed, self.conversation.now_ms)

    def connect_again(self, member: str) -> None:
        self.connections[member] += 100
        self.beat(member)

    def wait(self, ms: int) -> None:
        self.conversation.now_ms += ms
        self.conversation.coordinator.fire_due(self.conversation.now_ms)

    @property
    def members(self) -> set[str]:
        return set(self.conversation.coordinator.group.members)


def test_a_closed_connection_ends_a_membership_after_the_grace() -> None:
    conversation = Conversation()
    conversation.settle("w0", "w1", "w2")
    conversation.ask(short_heartbeat("w1", 3, connection_number=5, connection_grace_ms=2_000))
    conversation.ask(short_heartbeat("w2", 3, connection_number=6, connection_grace_ms=2_000))
    closed = ConnectionClosed(connection_number=5, member_ids=(MemberId("gone"), MemberId("w1"), MemberId("w2")))
    conversation.coordinator.handle(closed, conversation.now_ms)
    conversation.now_ms += 1_999
    conversation.coordinator.fire_due(conversation.now_ms)
    assert "w1" in conversation.coordinator.group.members
    conversation.now_ms += 1
    conversation.coordinator.fire_due(conversation.now_ms)
    assert conversation.coordinator.group.members.keys() == {"w0", "w2"}


def test_a_grace_below_0_counts_as_0() -> None:
    workers = Workers("w0", "w1")
    workers.conversation.beat("w2", connection_number=7, connection_grace_ms=-5)
    workers.conversation.ask(short_heartbeat("w1", 2, connection_number=6, connection_grace_ms=-5))
    workers.connections = {"w1": 6, "w2": 7}
    for member in ("w1", "w2"):
        assert workers.conversation.coordinator.group.members[MemberId(member)].connection_grace_ms == 0
        workers.close(member)
    workers.wait(GRACE_MS)
    assert workers.members == {"w0", "w1", "w2"}, "the end of a connection has no effect"


def test_after_a_stall_of_the_broker_a_grace_that_is_over_still_ends_the_membership() -> None:
    """The end of another connection is processed before the late timer of the first grace."""
    workers = Workers("w0", "w1", "w2", "w3", "w4")
    workers.close("w1")
    workers.conversation.now_ms += 3 * GRACE_MS
    workers.close("w2")
    workers.wait(0)
    assert workers.members == {"w0", "w2", "w3", "w4"}
    workers.wait(GRACE_MS)
    assert workers.members == {"w0", "w3", "w4"}


def test_a_heartbeat_that_is_held_on_a_closed_connection_is_dropped() -> None:
    conversation = Conversation()
    conversation.settle("w0")
    request = short_heartbeat("w0", 1, connection_number=5, connection_grace_ms=2_000, max_wait_ms=60_000)
    assert conversation.ask(request) is None
    closed = ConnectionClosed(connection_number=5, member_ids=(MemberId("w0"),))
    conversation.coordinator.handle(closed, conversation.now_ms)
    conversation.now_ms += 1_999
    conversation.coordinator.fire_due(conversation.now_ms)
    assert not conversation.coordinator.replies
    assert conversation.ask(short_heartbeat("w0", 1, connection_number=6)) is not None
    conversation.now_ms += 1
    conversation.coordinator.fire_due(conversation.now_ms)
    assert "w0" in conversation.coordinator.group.members


def test_nothing_is_concluded_when_half_of_the_connections_close_together() -> None:
    workers = Workers("w0", "w1", "w2")
    workers.close("w1", "w2")
    workers.wait(GRACE_MS)
    assert workers.members == {"w0", "w1", "w2"}


def test_the_slowest_of_several_members_stays_when_a_proxy_has_restarted() -> None:
    workers = Workers("w0", "w1", "w2", "w3")
    workers.close("w0", "w1", "w2", "w3")
    for member in ("w0", "w1", "w2"):
        workers.wait(300)
        workers.connect_again(member)
    workers.wait(GRACE_MS)
    assert workers.members == {"w0", "w1", "w2", "w3"}
    workers.connect_again("w3")
    workers.wait(2 * GRACE_MS)
    workers.close("w2")
    workers.wait(GRACE_MS)
    assert workers.members == {"w0", "w1", "w3"}, "the proxy restarted more than a grace earlier"


def test_a_grace_that_an_operator_ends_meanwhile_counts_by_the_configs_at_the_end_of_the_connection() -> None:
    workers = Workers("w0", "w1", "w2", "w3", "w4")
    workers.close("w1")
    workers.wait(100)
    request = SetGroupConfigs(reply_to=ReplyTo(0), configs={"connect.connection.grace.ms": "0"})
    workers.conversation.ask(request)
    workers.close("w2")
    workers.wait(GRACE_MS - 100)
    assert workers.members == {"w0", "w2", "w3", "w4"}


def test_fewer_than_half_of_the_members_that_are_killed_together_are_removed_one_after_the_other() -> None:
    """The first removal must not make the second one half of the group."""
    workers = Workers("w0", "w1", "w2", "w3", "w4")
    workers.close("w3", "w4")
    workers.wait(GRACE_MS)
    assert workers.members == {"w0", "w1", "w2"}
