"""A member that goes on in the place of a former life of its process."""

from dataclasses import replace

from coterie.member.classic.machine import step
from coterie.member.classic.messages import HeartbeatRequest, HeartbeatResponse, JoinRequest, Request
from coterie.member.classic.state import Member, MemberSettings
from coterie.member.events import Answered, RejoinWanted, Send, TimerFired
from coterie.nouns.ids import GroupId, InstanceId, WorkerUrl
from coterie.nouns.membership import Lost, ProvedUntil
from coterie.wire.connect import ConnectProtocol
from coterie.wire.errors import ErrorCode
from tests.wire.test_connect_place import PLACE

SETTINGS = MemberSettings(group_id=GroupId("group"), url=WorkerUrl("http://here:8083/"))


def first_heartbeat(member: Member) -> Send[Request]:
    """Driven at once by the loop around it."""
    output = step(member, TimerFired(timer="heartbeat"), now_ms=1_000)
    (send,) = [effect for effect in output.effects if isinstance(effect, Send)]
    return send


def test_it_joins_nothing_and_is_heard_of_under_its_former_id() -> None:
    for settings in (SETTINGS, replace(SETTINGS, instance_id=InstanceId("place"))):
        send = first_heartbeat(Member(settings, PLACE))
        assert isinstance(send.request, HeartbeatRequest)
        assert (send.request.member_id, send.request.generation) == (PLACE.member_id, PLACE.generation)
        assert send.request.instance_id == settings.instance_id


def test_an_answer_proves_the_place() -> None:
    member = Member(SETTINGS, PLACE)
    send = first_heartbeat(member)
    output = step(member, Answered(id=send.id, response=HeartbeatResponse(error=ErrorCode.none)), now_ms=1_100)
    assert (
        ProvedUntil(until_ms=1_000 + SETTINGS.lease_ms, session_timeout_ms=SETTINGS.session_timeout_ms)
        in output.effects
    )


def test_a_place_that_the_group_gave_up_is_lost() -> None:
    member = Member(SETTINGS, PLACE)
    send = first_heartbeat(member)
    unknown = HeartbeatResponse(error=ErrorCode.unknown_member_id)
    output = step(member, Answered(id=send.id, response=unknown), now_ms=1_100)
    assert any(isinstance(effect, Lost) for effect in output.effects)


def test_the_next_join_says_what_it_had() -> None:
    member = Member(SETTINGS, PLACE)
    output = step(member, RejoinWanted(reason="a new life"), now_ms=1_000)
    (join,) = [effect.request for effect in output.effects if isinstance(effect, Send)]
    assert isinstance(join, JoinRequest)
    assert join.member_id == PLACE.member_id
    assert member.owned == PLACE.jobs


def test_whose_former_life_may_have_missed_a_vote_offers_no_eager_while_it_has_work() -> None:
    for unheard in (True, False):
        member = Member(SETTINGS, replace(PLACE, unheard=unheard))
        output = step(member, RejoinWanted(reason="a new life"), now_ms=1_000)
        (join,) = [effect.request for effect in output.effects if isinstance(effect, Send)]
        assert isinstance(join, JoinRequest)
        offered = [name for name, _ in join.protocols]
        assert (ConnectProtocol.EAGER.wire_name in offered) is not unheard
