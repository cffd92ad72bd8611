from typing import TYPE_CHECKING

from coterie.groups.classic.messages import DescribedMember, DescribeGroup, DescribeGroupResponse
from coterie.groups.classic.state import GroupPhase
from coterie.nouns.ids import InstanceId, MemberId, ReplyTo
from coterie.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tests.groups.classic.conftest import GroupDriver


def describe_group(driver: "GroupDriver", *, with_members: bool = True) -> DescribeGroupResponse:
    reply_to = ReplyTo(1_000_000 + len(driver.responses))
    driver.feed(DescribeGroup(reply_to=reply_to, includes_members=with_members))
    response = driver.responses[reply_to]
    assert isinstance(response, DescribeGroupResponse)
    return response


def test_a_group_without_any_record_is_not_found_and_dead(driver: "GroupDriver") -> None:
    assert describe_group(driver) == DescribeGroupResponse(error=ErrorCode.group_id_not_found, phase=GroupPhase.DEAD)


def test_a_stable_group_reports_its_members_and_their_assignments(driver: "GroupDriver") -> None:
    join = driver.join(instance="a")
    driver.advance_clock(6_000)
    driver.sync("m1", assignments={"m1": b"work"})
    assert driver.join_response(join).error is ErrorCode.none
    assert describe_group(driver) == DescribeGroupResponse(
        error=ErrorCode.none,
        phase=GroupPhase.STABLE,
        protocol_type="connect",
        protocol="v1",
        members=(
            DescribedMember(
                member_id=MemberId("m1"),
                instance_id=InstanceId("a"),
                client_id="worker",
                client_host="/127.0.0.1",
                metadata=b"I am new",
                assignment=b"work",
            ),
        ),
    )
    assert describe_group(driver, with_members=False).members == ()


def test_a_rebalancing_group_reports_its_members_without_their_metadata(driver: "GroupDriver") -> None:
    driver.settle(2)
    driver.join("m1")
    joining = describe_group(driver)
    driver.join("m2")
    syncing = describe_group(driver)
    assert (joining.phase, syncing.phase) == (GroupPhase.PREPARING_REBALANCE, GroupPhase.COMPLETING_REBALANCE)
    for response in (joining, syncing):
        assert (response.protocol_type, response.protocol) == ("connect", "")
        assert [(member.member_id, member.metadata) for member in response.members] == [("m1", b""), ("m2", b"")]
    assert [member.assignment for member in joining.members] == [b"m1", b"m2"], "kept until there is a new generation"
    assert [member.assignment for member in syncing.members] == [b"", b""]


def test_a_group_that_all_members_left_is_empty_and_keeps_its_protocol_type(driver: "GroupDriver") -> None:
    driver.settle(1)
    driver.leave("m1")
    assert describe_group(driver) == DescribeGroupResponse(
        error=ErrorCode.none, phase=GroupPhase.EMPTY, protocol_type="connect", protocol=""
    )


def test_a_group_with_only_a_pending_member_id_is_empty_without_a_protocol_type(driver: "GroupDriver") -> None:
    driver.join(requires_known_member_id=True)
    assert describe_group(driver) == DescribeGroupResponse(error=ErrorCode.none, phase=GroupPhase.EMPTY)


def test_a_stable_group_has_the_same_description_after_a_coordinator_crash(driver: "GroupDriver") -> None:
    driver.settle(2)
    before = describe_group(driver)
    driver.restart()
    assert describe_group(driver) == before
