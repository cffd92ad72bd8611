"""Static members, and descriptions of groups, over TCP: the same tests with both brokers."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import uuid4

import pytest

from coterie.wire.errors import ErrorCode
from coterie.wire.frames import RequestHeader
from tests.broker.conftest import RawClient

FIND, JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST, DELETE = 10, 11, 12, 13, 14, 15, 16, 42
DEADLINE_S = 60
NOT_YET = (ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_not_available, ErrorCode.not_coordinator)


class Member:
    """One member, with its own connection, since its requests may be parked."""

    def __init__(self, client: RawClient, group: str, instance: str | None) -> None:
        self.client = client
        self.group = group
        self.instance = instance
        self.session_ms = self.rebalance_ms = 30_000
        self.member_id = ""
        self.generation = -1
        self._asked: RequestHeader | None = None

    def send_join(self, metadata: bytes = b"mine", *, version: int = 9) -> None:
        self._asked = self.client.send(
            JOIN,
            version,
            group_id=self.group,
            session_timeout=self.session_ms,
            rebalance_timeout=self.rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="sheep",
            protocols=[{"name": "herd", "metadata": metadata}],
            reason=None,
        )

    def joined(self) -> Any:
        """The response to the join that was sent."""
        answer = self._answer()
        self.member_id, self.generation = answer.member_id, answer.generation_id
        return answer

    def join(self, metadata: bytes = b"mine", *, version: int = 9) -> Any:
        self.send_join(metadata, version=version)
        answer = self.joined()
        if answer.error_code is ErrorCode.member_id_required:
            self.send_join(metadata, version=version)
            answer = self.joined()
        return answer

    def send_sync(self, *assignments: tuple[str, bytes]) -> None:
        self._asked = self.client.send(
            SYNC,
            5,
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="sheep",
            protocol_name="herd",
            assignments=[{"member_id": member_id, "assignment": work} for member_id, work in assignments],
        )

    def synced(self) -> Any:
        return self._answer()

    def sync(self, *assignments: tuple[str, bytes]) -> Any:
        self.send_sync(*assignments)
        return self.synced()

    def beat(self) -> ErrorCode:
        error: ErrorCode = self.client.ask(
            HEARTBEAT,
            4,
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
        ).error_code
        return error

    def leave(self, *leaving: tuple[str, str | None]) -> list[ErrorCode]:
        members = [{"member_id": one, "group_instance_id": instance, "reason": None} for one, instance in leaving]
        answer = self.client.ask(LEAVE, 5, group_id=self.group, members=members)
        assert answer.error_code is ErrorCode.none
        return [one.error_code for one in answer.members]

    def _answer(self) -> Any:
        assert self._asked is not None
        return self.client.receive(self._asked)


class Group:
    """A new group on one broker, with a connection that no member's join blocks."""

    def __init__(self, open_: Callable[[], RawClient]) -> None:
        self.group_id = f"group-{uuid4().hex[:8]}"
        self._open = open_
        self.client = open_()
        # A Kafka broker creates its coordinator at the first request for it.
        self.until(lambda: self.found() not in NOT_YET and self.member().sync().error_code not in NOT_YET)

    def found(self) -> ErrorCode:
        (found,) = self.client.ask(FIND, 6, key_type=0, coordinator_keys=[self.group_id]).coordinators
        error: ErrorCode = found.error_code
        return error

    def member(self, instance: str | None = None) -> Member:
        return Member(self._open(), self.group_id, instance)

    def settle(
        self, *instances: str | None, session_ms: Mapping[str, int] | None = None, rebalance_ms: int = 30_000
    ) -> list[Member]:
        """A stable group, leader first; the assignment of each member is its index in this list.

        :param session_ms: session timeouts of members with another one than the default.
        """
        members: list[Member] = []
        answers: list[Any] = []
        for instance in instances:
            newcomer = self.member(instance)
            newcomer.rebalance_ms = rebalance_ms
            newcomer.session_ms = (session_ms or {}).get(instance or "", newcomer.session_ms)
            newcomer.send_join()
            if instance is None:
                assert newcomer.joined().error_code is ErrorCode.member_id_required
                newcomer.send_join()
            # One after the other: a member that is late for a group's first rebalance is in the second one.
            for member in members:
                self.until_it_joins(member)
                member.send_join()
            members.append(newcomer)
            answers = [member.joined() for member in members]
        assert {answer.generation_id for answer in answers} == {len(members)}, answers
        members.sort(key=lambda member: member.member_id != answers[0].leader)
        for member in members[1:]:
            member.send_sync()
        work = [(member.member_id, str(place).encode()) for place, member in enumerate(members)]
        assert members[0].sync(*work).assignment == b"0"
        assert [member.synced().assignment for member in members[1:]] == [w for _, w in work[1:]]
        return members

    def described(self, version: int = 6) -> Any:
        values = {"groups": [self.group_id], "include_authorized_operations": False}
        return self.client.ask(DESCRIBE, version, **values).groups[0]

    def listed(self, version: int = 5, *, states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> Any:
        """The group's entry in the list; None if the filters exclude it."""
        answer = self.client.ask(LIST, version, states_filter=states, types_filter=types)
        assert answer.error_code is ErrorCode.none
        return next((one for one in answer.groups if one.group_id == self.group_id), None)

    def delete(self, version: int = 2) -> ErrorCode:
        (result,) = self.client.ask(DELETE, version, groups_names=[self.group_id]).results
        error: ErrorCode = result.error_code
        return error

    def until_it_joins(self, member: Member) -> None:
        self.until(lambda: member.beat() is ErrorCode.rebalance_in_progress)

    def until(self, holds: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline_s, self.described()
            time.sleep(0.02)


@pytest.fixture
def group(bootstrap: str) -> Iterator[Group]:
    clients: list[RawClient] = []

    def open_one() -> RawClient:
        clients.append(RawClient(int(bootstrap.rpartition(":")[2])))
        return clients[-1]

    try:
        yield Group(open_one)
    finally:
        for client in clients:
            client.socket.close()


# -- static members ---------------------------------------------------------------------------------------------------


def test_the_restart_of_a_static_follower_causes_no_rebalance(group: Group) -> None:
    leader, follower = group.settle("a", "b")
    back = group.member(follower.instance)
    answer = back.join(b"I own nothing yet")
    assert (answer.error_code, answer.generation_id, answer.leader) == (ErrorCode.none, 2, leader.member_id)
    assert (answer.skip_assignment, answer.members) == (False, ())
    assert back.member_id != follower.member_id
    assert back.member_id.startswith(f"{follower.instance}-")
    assert back.sync().assignment == b"1"
    assert (leader.beat(), back.beat()) == (ErrorCode.none, ErrorCode.none)
    (shown,) = [one for one in group.described().members if one.group_instance_id == follower.instance]
    assert (shown.member_id, shown.member_metadata, shown.member_assignment) == (
        back.member_id,
        b"I own nothing yet",
        b"1",
    )


def test_a_restarted_static_leader_may_skip_the_assignment(group: Group) -> None:
    leader, follower = group.settle("a", "b")
    back = group.member(leader.instance)
    answer = back.join()
    assert (answer.generation_id, answer.leader, answer.skip_assignment) == (2, back.member_id, True)
    assert {one.group_instance_id for one in answer.members} == {"a", "b"}
    assert back.sync().assignment == b"0"
    assert follower.beat() is ErrorCode.none


@pytest.mark.parametrize("version", [5, 8])
def test_a_restarted_static_leader_that_cannot_skip_the_assignment_is_a_follower(group: Group, version: int) -> None:
    leader, follower = group.settle("a", "b")
    back = group.member(leader.instance)
    answer = back.join(version=version)
    assert (answer.error_code, answer.generation_id, answer.leader) == (ErrorCode.none, 2, leader.member_id)
    assert answer.members == ()
    assert back.sync().assignment == b"0"
    assert follower.beat() is ErrorCode.none


def test_three_static_members_are_upgraded_one_by_one_in_one_generation(group: Group) -> None:
    members = group.settle("a", "b", "c")
    for place in (1, 0, 2):
        members[place] = group.member(members[place].instance)
        assert members[place].join(b"a newer build").generation_id == 3
        assert members[place].sync().assignment == str(place).encode()
        assert {member.beat() for member in members} == {ErrorCode.none}


def test_the_last_member_with_an_instance_id_replaces_and_fences_the_former_one(group: Group) -> None:
    former, _ = group.settle("a", "b")
    group.member(former.instance).join()
    assert former.beat() is ErrorCode.fenced_instance_id
    assert former.sync().error_code is ErrorCode.fenced_instance_id
    assert former.leave((former.member_id, former.instance)) == [ErrorCode.fenced_instance_id]
    member_id = former.member_id
    fenced = former.join()
    assert (fenced.error_code, fenced.member_id) == (ErrorCode.fenced_instance_id, member_id)
    former.instance, former.generation = None, 2
    assert former.beat() is ErrorCode.unknown_member_id


def test_a_replaced_member_whose_join_or_sync_waits_is_fenced_at_once(group: Group) -> None:
    first, second = group.member("a"), group.member("a")
    first.send_join()
    group.until(lambda: len(group.described().members) == 1)
    second.send_join()
    assert first.joined().error_code is ErrorCode.fenced_instance_id
    assert second.joined().error_code is ErrorCode.none
    second.sync((second.member_id, b"all"))

    follower, double = group.member("b"), group.member("b")
    follower.send_join()
    group.until_it_joins(second)
    second.join()
    assert follower.joined().error_code is ErrorCode.none
    follower.send_sync()
    double.send_join()
    assert follower.synced().error_code is ErrorCode.fenced_instance_id
    # The leader may be assigning to the fenced member: the group rebalances once more.
    assert second.beat() is ErrorCode.rebalance_in_progress
    second.join()
    assert double.joined().generation_id == second.generation == 3


def test_a_static_member_that_does_not_return_is_removed_when_its_session_ends(group: Group) -> None:
    members = {member.instance: member for member in group.settle("a", "b", session_ms={"b": 3_000})}
    group.until_it_joins(members["a"])
    assert members["b"].beat() is ErrorCode.unknown_member_id


def test_a_join_phase_ends_as_soon_as_the_missing_static_member_returns(group: Group) -> None:
    leader, absent = group.settle("a", "b")
    newcomer = group.member("c")
    newcomer.send_join()
    group.until_it_joins(leader)
    leader.send_join()
    back = group.member(absent.instance)
    assert back.join().generation_id == 3
    assert (leader.joined().generation_id, newcomer.joined().generation_id) == (3, 3)


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_join_phase_does_not_remove_an_absent_static_member(group: Group, role: str) -> None:
    leader, follower = group.settle("a", "b", rebalance_ms=3_000)
    present = follower if role == "leader" else leader
    newcomer = group.member("c")
    newcomer.rebalance_ms = 3_000
    newcomer.send_join()
    group.until_it_joins(present)
    present.send_join()
    answers = [present.joined(), newcomer.joined()]
    assert {answer.generation_id for answer in answers} == {3}
    # A present member leads, and may assign to the absent one.
    (shown,) = [answer for answer in answers if answer.members]
    assert shown.leader == shown.member_id
    assert {one.group_instance_id for one in shown.members} == {"a", "b", "c"}


def test_an_operator_removes_a_static_member_by_its_instance_id(group: Group) -> None:
    leader, absent = group.settle("a", "b")
    codes = leader.leave(("", absent.instance), ("", "unknown"), ("unknown", None), (leader.member_id, "unknown"))
    assert codes == [ErrorCode.none, *3 * [ErrorCode.unknown_member_id]]
    assert leader.beat() is ErrorCode.rebalance_in_progress
    assert absent.beat() is ErrorCode.unknown_member_id


# -- descriptions of groups -------------------------------------------------------------------------------------------


def test_a_group_is_described_and_listed_in_every_phase(group: Group) -> None:
    assert (group.described().error_code, group.listed()) == (ErrorCode.group_id_not_found, None)
    member = group.member()
    member.send_join()
    member.joined()
    # Kafka returns the member id before its log has the group, and describes only groups that are in its log.
    group.until(lambda: group.described().error_code is ErrorCode.none)
    assert _described_state(group) == ("Empty", "", "", ())
    member.send_join(b"hello")
    member.joined()
    assert _described_state(group) == ("CompletingRebalance", "sheep", "", ((None, b"", b""),))
    member.sync((member.member_id, b"work"))
    assert _described_state(group) == ("Stable", "sheep", "herd", ((None, b"hello", b"work"),))
    newcomer = group.member("i")
    newcomer.send_join()
    group.until(lambda: len(group.described().members) == 2)
    assert _described_state(group) == ("PreparingRebalance", "sheep", "", ((None, b"", b"work"), ("i", b"", b"")))
    member.leave((member.member_id, None))
    newcomer.joined()
    newcomer.leave(("", "i"))
    assert _described_state(group) == ("Empty", "sheep", "", ())


def _described_state(group: Group) -> tuple[Any, ...]:
    described, listed = group.described(), group.listed()
    assert described.error_code is ErrorCode.none
    assert (listed.group_state, listed.protocol_type, listed.group_type) == (
        described.group_state,
        described.protocol_type,
        "classic",
    )
    members = [(one.group_instance_id, one.member_metadata, one.member_assignment) for one in described.members]
    assert {(one.client_id, one.client_host) for one in described.members} <= {("raw", "/127.0.0.1")}
    return (
        described.group_state,
        described.protocol_type,
        described.protocol_data,
        tuple(sorted(members, key=str)[::-1]),
    )


def test_an_unknown_group_is_dead_and_from_v6_on_not_found(group: Group) -> None:
    for version in range(7):
        shown = group.described(version)
        assert (shown.group_state, shown.protocol_type, shown.members) == ("Dead", "", ())
        assert (shown.error_code is ErrorCode.none) is (version < 6)
    assert shown.error_code is ErrorCode.group_id_not_found
    assert shown.error_message == f"Group {group.group_id} not found."


def test_a_group_is_described_with_its_authorized_operations(group: Group) -> None:
    group.settle(None)
    for included, shown in ((True, 0b1101_0100_1000), (False, -(2**31))):
        values = {"groups": [group.group_id], "include_authorized_operations": included}
        (described,) = group.client.ask(DESCRIBE, 6, **values).groups
        assert described.authorized_operations == shown


def test_a_list_is_filtered_by_states_and_types_in_upper_and_lower_case(group: Group) -> None:
    group.settle(None)
    for states in ((), ("Stable",), (" sTABLE ",), ("Empty", "stable", "nonsense")):
        for types in ((), ("classic",), ("CLASSIC", "nonsense")):
            assert group.listed(states=states, types=types) is not None, (states, types)
    assert group.listed(states=("Empty", "nonsense"), types=("classic",)) is None
    for other in (" classic ", "consumer", "nonsense", ""):
        assert group.listed(states=("stable",), types=(other,)) is None, other
    assert group.listed(states=("",)) is None


def test_every_version_lists_the_fields_that_it_has(group: Group) -> None:
    group.settle(None)
    for version in range(6):
        shown = group.listed(version)
        assert shown.protocol_type == "sheep"
        assert getattr(shown, "group_state", "Stable") == "Stable"
        assert getattr(shown, "group_type", "classic") == "classic"


@pytest.mark.parametrize("version", range(3))
def test_a_group_without_members_can_be_deleted_and_created_again(group: Group, version: int) -> None:
    assert group.delete(version) is ErrorCode.group_id_not_found
    (member,) = group.settle("a")
    assert group.delete(version) is ErrorCode.non_empty_group
    member.leave(("", "a"))
    assert group.delete(version) is ErrorCode.none
    assert group.described().error_code is ErrorCode.group_id_not_found
    assert group.listed() is None
    assert group.delete(version) is ErrorCode.group_id_not_found
    (again,) = group.settle("a")
    assert again.generation == 1


def test_member_ids_of_a_deleted_group_are_unknown(group: Group) -> None:
    member = group.member()
    member.send_join()
    member.joined()
    assert group.delete() is ErrorCode.none
    assert member.join().error_code is ErrorCode.unknown_member_id


def test_each_group_of_a_request_is_deleted_separately_and_reported_once(group: Group) -> None:
    group.settle(None)
    answer = group.client.ask(DELETE, 2, groups_names=[group.group_id, "unknown", group.group_id])
    assert {one.group_id: one.error_code for one in answer.results} == {
        group.group_id: ErrorCode.non_empty_group,
        "unknown": ErrorCode.group_id_not_found,
    }
    assert len(answer.results) == 2


# -- finding coordinators ---------------------------------------------------------------------------------------------


def test_a_coordinator_is_found_in_every_version(group: Group, bootstrap: str) -> None:
    for version in range(7):
        answer = group.client.ask(FIND, version, key="g", key_type=0, coordinator_keys=["g", "h"])
        found = answer.coordinators if version >= 4 else (answer,)
        assert {(one.error_code, f"{one.host}:{one.port}") for one in found} == {(ErrorCode.none, bootstrap)}
        assert version < 4 or [one.key for one in found] == ["g", "h"]


def test_a_request_for_no_coordinators_gets_an_empty_response(group: Group) -> None:
    assert group.client.ask(FIND, 6, key_type=0, coordinator_keys=[]).coordinators == ()
