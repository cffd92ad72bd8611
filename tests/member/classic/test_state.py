"""What must always hold of a member, whatever comes in whatever order; and a member in a handed-on place."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.member.classic.machine import step
from coterie.member.classic.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeaveResponse,
    Request,
    Response,
    SyncRequest,
    SyncResponse,
    Timer,
)
from coterie.member.classic.state import HasLeft, InGroup, Member, MemberSettings, ReleasesAll
from coterie.member.events import Answered, Began, Left, RequestId, Send, SetTimer, TimerFired, Unanswered
from coterie.nouns.ids import ConfigOffset, Generation, GroupId, InstanceId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import (
    Abandon,
    Assigned,
    Computed,
    Install,
    Leave,
    Lost,
    MembershipOrder,
    MembershipRefused,
    ProvedUntil,
    Rejoin,
    Subscribe,
)
from coterie.wire.connect import ConnectProtocol, RoundToken
from coterie.wire.errors import ErrorCode
from tests.member.classic.driving import HANDED_ON, SOME_WORK, Worker, synced

ERRORS = st.sampled_from(
    [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.member_id_required,
        ErrorCode.unknown_member_id,
        ErrorCode.illegal_generation,
        ErrorCode.rebalance_in_progress,
        ErrorCode.not_coordinator,
        ErrorCode.inconsistent_group_protocol,
        ErrorCode.fenced_instance_id,
    ]
)
GENERATIONS = st.integers(-1, 5).map(Generation)
IDS = st.sampled_from(["me", "me", "", "other"]).map(MemberId)
INSTANCE_IDS = st.sampled_from([None, InstanceId("one")])
TIMERS: st.SearchStrategy[Timer] = st.sampled_from(["heartbeat", "lease", "answer", "retry", "leave"])
JOINS = st.builds(
    JoinResponse,
    error=ERRORS,
    generation=GENERATIONS,
    protocol=st.sampled_from(["compatible", "compatible", "sessioned"]),
    leader=IDS,
    member_id=IDS,
    members=st.sampled_from([None, {MemberId("me"): b"\x00"}]),
    skip_assignment=st.booleans(),
)
SYNCS = st.one_of(
    st.builds(SyncResponse, error=ERRORS, assignment=st.binary(max_size=8)),
    st.sampled_from([synced(SOME_WORK), synced(), synced(revoked=SOME_WORK)]),
)
STRAY = st.one_of(
    st.builds(Subscribe, config_offset=st.just(ConfigOffset(1)), owned=st.sampled_from([NO_JOBS, SOME_WORK])),
    st.builds(Rejoin, reason=st.just("a wish")),
    st.just(Abandon(reason="the herder is stuck")),
    st.builds(
        Install,
        token=st.builds(RoundToken, generation=GENERATIONS, protocol=st.just(ConnectProtocol.COMPATIBLE)),
        computed=st.just(Computed(config_offset=ConfigOffset(1), assignments={})),
    ),
    st.builds(Unanswered, id=st.integers(1, 30).map(RequestId), reason=st.just("the connection broke")),
    st.builds(TimerFired, timer=TIMERS),
    st.just(Leave(reason="shutdown")),
)
TURNS = st.one_of(
    st.tuples(st.just("event"), STRAY), st.tuples(st.just("pass"), st.integers(0, 4_000)), st.just("reply")
)


def answer_to(request: Request, data: st.DataObject) -> Response:
    match request:
        case JoinRequest():
            return data.draw(JOINS)
        case SyncRequest():
            return data.draw(SYNCS)
        case HeartbeatRequest():
            return HeartbeatResponse(error=data.draw(ERRORS))
        case _:
            return LeaveResponse(error=data.draw(ERRORS))


@settings(max_examples=300)
@given(turns=st.lists(TURNS, max_size=60), instance_id=INSTANCE_IDS, data=st.data())
def test_any_course_of_events_keeps_a_member_in_order(
    turns: list[object], instance_id: InstanceId | None, data: st.DataObject
) -> None:
    """`check` runs in every step; here is what only the whole course shows."""
    worker = Worker(instance_id)
    worker.subscribe()
    for turn in turns:
        before = len(worker.told)
        has_lost = isinstance(worker.member.round, ReleasesAll) and not isinstance(worker.member.place, InGroup)
        has_left = isinstance(worker.member.ending, HasLeft)
        sent = len(worker.out)
        match turn:
            case ("event", event):
                assert isinstance(event, MembershipOrder | Unanswered | TimerFired)
                worker.feed(event)
            case ("pass", int(ms)):
                worker.pass_time(ms)
            case _:
                if not worker.out:
                    continue
                send = worker.out.pop(data.draw(st.integers(0, len(worker.out) - 1)))
                sent -= 1
                worker.feed(Answered(id=send.id, response=answer_to(send.request, data)))
        if has_left:
            assert len(worker.told) == before, "nothing is told after the farewell"
            assert len(worker.out) == sent, "and nothing is asked"
        for told in worker.told[before:]:
            assert not (has_lost and isinstance(told, Assigned)), "no work before all has stopped"
            assert not (has_lost and isinstance(told, Lost)), "a loss is told once"
        for send in worker.out[sent:]:
            assert not (instance_id and isinstance(send.request, LeaveRequest)), "a static member never says farewell"
            if isinstance(send.request, HeartbeatRequest):
                is_question = instance_id is not None and not send.request.member_id
                assert (send.request.generation >= 0) is not is_question
    assert sum(isinstance(told, Left) for told in worker.told) <= 1


@settings(max_examples=200)
@given(turns=st.lists(TURNS, max_size=40), instance_id=INSTANCE_IDS, data=st.data())
def test_once_the_coordinator_answers_every_member_that_was_not_refused_gets_its_assignment(
    turns: list[object], instance_id: InstanceId | None, data: st.DataObject
) -> None:
    worker = Worker(instance_id)
    worker.subscribe()
    for turn in turns:
        match turn:
            case ("event", event):
                if not isinstance(event, Leave):
                    assert isinstance(event, MembershipOrder | Unanswered | TimerFired)
                    worker.feed(event)
            case ("pass", int(ms)):
                worker.pass_time(ms)
            case _:
                if worker.out:
                    send = worker.out.pop()
                    worker.feed(Answered(id=send.id, response=answer_to(send.request, data)))
    if worker.heard(MembershipRefused):
        return  # it waits for its end
    worker.subscribe(SOME_WORK)  # A herder takes up all that it is told, also what it has to stop at once.
    worker.subscribe(NO_JOBS)
    worker.feed(Rejoin(reason="let us see"))
    for _ in range(400):
        while worker.out:
            send = worker.out.pop(0)
            worker.feed(Answered(id=send.id, response=honest(send.request)))
        if any(isinstance(told, Assigned) for told in worker.told):
            return
        worker.pass_time(500)
    raise AssertionError("the member does not find its way back")


def honest(request: Request) -> Response:
    match request:
        case JoinRequest():
            return JoinResponse(
                error=ErrorCode.none,
                generation=Generation(9),
                protocol="compatible",
                leader=MemberId("x"),
                member_id=request.member_id or MemberId("me"),
            )
        case SyncRequest():
            return synced(SOME_WORK) if request.generation == 9 else SyncResponse(error=ErrorCode.illegal_generation)
        case HeartbeatRequest():
            return HeartbeatResponse(error=ErrorCode.none if request.generation == 9 else ErrorCode.illegal_generation)
        case _:
            return LeaveResponse(error=ErrorCode.none)


# -- a place that a former life of the process has handed on ----------------------------------------------------------


SETTINGS = MemberSettings(group_id=GroupId("group"), url=WorkerUrl("http://here:8083/"))


def first_heartbeat(member: Member) -> Send[Request]:
    """Due as soon as its driver begins."""
    assert step(member, Began(), now_ms=1_000).effects == (SetTimer(timer="heartbeat", at_ms=1_000),)
    output = step(member, TimerFired(timer="heartbeat"), now_ms=1_000)
    (send,) = [effect for effect in output.effects if isinstance(effect, Send)]
    return send


def test_it_joins_nothing_and_is_heard_of_under_its_former_id() -> None:
    for its_settings in (SETTINGS, replace(SETTINGS, instance_id=InstanceId("place"))):
        send = first_heartbeat(Member(its_settings, HANDED_ON))
        assert isinstance(send.request, HeartbeatRequest)
        assert (send.request.member_id, send.request.generation) == (HANDED_ON.member_id, HANDED_ON.generation)
        assert send.request.instance_id == its_settings.instance_id


def test_outside_a_group_no_heartbeat_is_due_when_the_driver_begins() -> None:
    assert not step(Member(SETTINGS), Began(), now_ms=1_000).effects


def test_an_answer_proves_the_place() -> None:
    member = Member(SETTINGS, HANDED_ON)
    send = first_heartbeat(member)
    output = step(member, Answered(id=send.id, response=HeartbeatResponse(error=ErrorCode.none)), now_ms=1_100)
    assert (
        ProvedUntil(until_ms=1_000 + SETTINGS.lease_ms, session_timeout_ms=SETTINGS.session_timeout_ms)
        in output.effects
    )


def test_a_place_that_the_group_gave_up_is_lost() -> None:
    member = Member(SETTINGS, HANDED_ON)
    send = first_heartbeat(member)
    unknown = HeartbeatResponse(error=ErrorCode.unknown_member_id)
    output = step(member, Answered(id=send.id, response=unknown), now_ms=1_100)
    assert any(isinstance(effect, Lost) for effect in output.effects)


def test_the_next_join_says_what_it_had() -> None:
    member = Member(SETTINGS, HANDED_ON)
    output = step(member, Rejoin(reason="a new life"), now_ms=1_000)
    (join,) = [effect.request for effect in output.effects if isinstance(effect, Send)]
    assert isinstance(join, JoinRequest)
    assert join.member_id == HANDED_ON.member_id
    assert member.owned == HANDED_ON.jobs


def test_whose_former_life_may_have_missed_a_vote_offers_no_eager_while_it_has_work() -> None:
    for may_have_missed_vote in (True, False):
        member = Member(SETTINGS, replace(HANDED_ON, may_have_missed_vote=may_have_missed_vote))
        output = step(member, Rejoin(reason="a new life"), now_ms=1_000)
        (join,) = [effect.request for effect in output.effects if isinstance(effect, Send)]
        assert isinstance(join, JoinRequest)
        offered = [name for name, _ in join.protocols]
        assert (ConnectProtocol.EAGER.wire_name in offered) is not may_have_missed_vote
