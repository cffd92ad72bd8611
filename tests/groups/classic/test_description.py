from typing import TYPE_CHECKING

from coterie.groups.classic.messages import DescribedMember, DescribeGroup, DescribeGroupResponse
from coterie.groups.classic.state import Phase
from coterie.nouns.ids import InstanceId, MemberId, ReplyTo
from coterie.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tests.groups.classic.conftest import Play


def described(play: "Play", *, with_members: bool = True) -> DescribeGroupResponse:
    reply_to = ReplyTo(1_000_000 + len(play.answers))
    play.feed(DescribeGroup(reply_to=reply_to, with_members=with_members))
    response = play.answers[reply_to]
    assert isinstance(response, DescribeGroupResponse)
    return response


def test_a_group_that_nobody_was_ever_in_is_not_found_and_dead(play: "Play") -> None:
    assert described(play) == DescribeGroupResponse(error=ErrorCode.group_id_not_found, phase=Phase.DEAD)


def test_a_stable_group_tells_who_has_what(play: "Play") -> None:
    join = play.join(instance="a")
    play.wait(6_000)
    play.sync("m1", assignments={"m1": b"work"})
    assert play.joined(join).error is ErrorCode.none
    assert described(play) == DescribeGroupResponse(
        error=ErrorCode.none,
        phase=Phase.STABLE,
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
    assert described(play, with_members=False).members == ()


def test_a_group_that_rebalances_tells_who_is_in_and_not_what_they_say(play: "Play") -> None:
    play.settle(2)
    play.join("m1")
    joining = described(play)
    play.join("m2")
    syncing = described(play)
    assert (joining.phase, syncing.phase) == (Phase.PREPARING_REBALANCE, Phase.COMPLETING_REBALANCE)
    for answer in (joining, syncing):
        assert (answer.protocol_type, answer.protocol) == ("connect", "")
        assert [(one.member_id, one.metadata) for one in answer.members] == [("m1", b""), ("m2", b"")]
    assert [one.assignment for one in joining.members] == [b"m1", b"m2"], "until there is a new generation"
    assert [one.assignment for one in syncing.members] == [b"", b""]


def test_a_group_that_everybody_left_is_empty_and_keeps_its_type(play: "Play") -> None:
    play.settle(1)
    play.leave("m1")
    assert described(play) == DescribeGroupResponse(
        error=ErrorCode.none, phase=Phase.EMPTY, protocol_type="connect", protocol=""
    )


def test_a_group_of_which_only_an_id_is_out_is_empty_and_has_no_type(play: "Play") -> None:
    play.join(knows_ids=True)
    assert described(play) == DescribeGroupResponse(error=ErrorCode.none, phase=Phase.EMPTY)


def test_what_was_left_behind_by_a_crash_is_told_as_before(play: "Play") -> None:
    play.settle(2)
    before = described(play)
    play.restart()
    assert described(play) == before
