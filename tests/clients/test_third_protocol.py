"""A group of neither consumers nor Connect workers, over TCP on both brokers: the broker does not parse its bytes."""

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from coterie.wire.errors import ErrorCode
from tests.broker.conftest import RawClient, raw_client

pytestmark = pytest.mark.interop

FIND_COORDINATOR, JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST = 10, 11, 12, 13, 14, 15, 16
METADATA_A = b"\x00\xff not a subscription"
METADATA_B = b""
ASSIGNMENT_A = bytes(range(256))
ASSIGNMENT_B = b"\x80 nor an assignment"


class Elector:
    """A member of a group that elects a primary, for example of a schema registry."""

    def __init__(self, client: RawClient, group: str, metadata: bytes) -> None:
        self.client = client
        self.group = group
        self.metadata = metadata
        self.member_id = ""

    def send_join(self, protocol_type: str = "sr") -> Any:
        return self.client.send(
            JOIN, 9, group_id=self.group, session_timeout=30_000, rebalance_timeout=30_000, member_id=self.member_id,
            group_instance_id=None, protocol_type=protocol_type, protocols=[{"name": "v0", "metadata": self.metadata}],
            reason=None,
        )  # fmt: skip

    def request_member_id(self) -> None:
        """Get a member id; a Kafka broker returns NOT_COORDINATOR for a while after its start."""
        while True:
            self.client.ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[self.group])
            answer = self.client.receive(self.send_join())
            if answer.error_code not in (ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress):
                break
            time.sleep(0.05)
        assert answer.error_code is ErrorCode.member_id_required
        self.member_id = answer.member_id

    def send_sync(self, generation: int, assignments: dict[str, bytes]) -> Any:
        return self.client.send(
            SYNC, 5, group_id=self.group, generation_id=generation, member_id=self.member_id, group_instance_id=None,
            protocol_type="sr", protocol_name="v0",
            assignments=[{"member_id": member, "assignment": data} for member, data in assignments.items()],
        )  # fmt: skip


@pytest.fixture
def electors(bootstrap: str) -> Iterator[tuple[Elector, Elector]]:
    group = f"electors-{uuid.uuid4()}"
    with raw_client(port_of(bootstrap)) as a, raw_client(port_of(bootstrap)) as b:
        yield Elector(a, group, METADATA_A), Elector(b, group, METADATA_B)


def test_a_group_of_a_third_protocol_type_forms_and_its_bytes_are_unchanged(electors: tuple[Elector, Elector]) -> None:
    a, b = electors
    for elector in electors:
        elector.request_member_id()
    sent = [(elector, elector.send_join()) for elector in electors]
    joined = {elector.member_id: elector.client.receive(header) for elector, header in sent}
    generation = joined[a.member_id].generation_id
    assert {(one.error_code, one.generation_id, one.protocol_type) for one in joined.values()} == {
        (ErrorCode.none, generation, "sr")
    }
    leader = a if joined[a.member_id].leader == a.member_id else b
    follower = b if leader is a else a
    metadata_by_member = {member.member_id: member.metadata for member in joined[leader.member_id].members}
    assert metadata_by_member == {a.member_id: METADATA_A, b.member_id: METADATA_B}
    assert not joined[follower.member_id].members

    waiting = follower.send_sync(generation, {})
    leading = leader.send_sync(generation, {a.member_id: ASSIGNMENT_A, b.member_id: ASSIGNMENT_B})
    synced = {leader: leader.client.receive(leading), follower: follower.client.receive(waiting)}
    assert synced[a].assignment == ASSIGNMENT_A
    assert synced[b].assignment == ASSIGNMENT_B
    assert synced[a].protocol_type == "sr"

    (described,) = a.client.ask(DESCRIBE, 5, groups=[a.group], include_authorized_operations=False).groups
    assert (described.group_state, described.protocol_type, described.protocol_data) == ("Stable", "sr", "v0")
    assert {one.member_id: one.member_metadata for one in described.members} == metadata_by_member
    (listed,) = [one for one in a.client.ask(LIST, 4, states_filter=["Stable"]).groups if one.group_id == a.group]
    assert listed.protocol_type == "sr"
    heartbeat_fields = {"group_id": a.group, "generation_id": generation, "group_instance_id": None}
    assert a.client.ask(HEARTBEAT, 4, member_id=a.member_id, **heartbeat_fields).error_code is ErrorCode.none

    # An ordinary consumer cannot join; the protocol type of a leaving member does not matter.
    a.metadata = b""
    assert a.client.receive(a.send_join("consumer")).error_code is ErrorCode.inconsistent_group_protocol
    left = b.client.ask(LEAVE, 5, group_id=b.group, members=[{"member_id": b.member_id, "group_instance_id": None}])
    assert [one.error_code for one in left.members] == [ErrorCode.none]
    assert (
        a.client.ask(HEARTBEAT, 4, member_id=a.member_id, **heartbeat_fields).error_code
        is ErrorCode.rebalance_in_progress
    )


def port_of(bootstrap: str) -> int:
    return int(bootstrap.rpartition(":")[2])
