"""A heartbeat that repeats the last one in an unchanged group takes a shorter way than other heartbeats. Both ways give
the same state and the same effects."""

from copy import deepcopy
from dataclasses import replace

import pytest

from coterie.engine.output import Output
from coterie.groups.connect.machine import step
from coterie.groups.connect.messages import Effect, Event, Heartbeat, Record, SetGroupConfigs
from coterie.groups.connect.state import Group
from coterie.groups.effects import Reply
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import LEAVE_EPOCH, Claims, ConfiguredJobs, HeartbeatResponse
from coterie.nouns.ids import ConfigOffset, InstanceId, MemberEpoch, ReplyTo, WorkerUrl
from coterie.nouns.jobs import NO_JOBS
from tests.groups.connect.builders import Conversation, assignor, short_heartbeat
from tests.groups.connect.faulty_play import play


class ComparedSteps:
    """Steps the heartbeats that take the shorter way both ways, and compares the results."""

    def __init__(self) -> None:
        self.repeated = 0
        """How many heartbeats took the shorter way."""

    def step(self, group: Group, event: Event, /, *, now_ms: int) -> Output[Record, Effect]:
        session = group.sessions.get(event.member_id) if isinstance(event, Heartbeat) else None
        if session is None or session.response_without_news is None:
            return step(group, event, now_ms=now_ms)
        assert isinstance(event, Heartbeat)
        contents = [one.sent_contents for one in group.sessions.values() if one.sent_contents is not None]
        by_identity = [group.computation, *(one.chosen_computation for one in contents)]  # how they are compared
        copy = deepcopy(group, {id(one): one for one in by_identity})
        copy.sessions[event.member_id].response_without_news = None  # so that the copy takes the whole step
        whole = step(copy, event, now_ms=now_ms)
        former = session.response_without_news
        output = step(group, event, now_ms=now_ms)
        if any(isinstance(one, Reply) and one.response is former.response for one in output.effects):
            self.repeated += 1
            copy.sessions[event.member_id].response_without_news = former
            assert output == whole, event
            assert vars(group) == vars(copy), event
        return output


def test_the_shorter_way_gives_what_the_whole_step_gives() -> None:
    compared = ComparedSteps()
    for seed in range(200, 240):
        play(seed, step_group=compared.step).settle()
    assert compared.repeated > 1_000, "the plays contain many heartbeats that repeat the last one"


def settled_group(compared: ComparedSteps) -> tuple[Conversation, int]:
    """A group of two members without news, and its epoch. The last request of member a has the number 2."""
    conversation = Conversation(step_group=compared.step)
    conversation.settle("a", "b")
    epoch = conversation.coordinator.group.assignment_epoch
    for number in (1, 2):
        conversation.ask(short_heartbeat("a", epoch, request_number=number))
    return conversation, epoch


def test_a_heartbeat_without_news_renews_the_session() -> None:
    compared = ComparedSteps()
    conversation, epoch = settled_group(compared)
    repeated = compared.repeated
    conversation.now_ms += 5_000
    response = conversation.ask(short_heartbeat("a", epoch, request_number=3))
    assert isinstance(response, HeartbeatResponse)
    assert (response.error, response.member_epoch, response.assignment) == (ConnectErrorCode.NONE, epoch, None)
    assert compared.repeated == repeated + 1
    conversation.now_ms += 6_000
    conversation.coordinator.fire_due(conversation.now_ms)
    assert conversation.coordinator.group.members.keys() == {"a"}, "only the session of b has ended"


@pytest.mark.parametrize(
    "fields",
    [
        {"request_number": 2},
        {"request_number": 0},
        {"connection_number": 2},
        {"resumes": True},
        {"max_wait_ms": 1_000},
        {"max_wait_ms": -1},
        {"member_epoch": MemberEpoch(1)},
        {"member_epoch": MemberEpoch(LEAVE_EPOCH)},
        {"instance_id": InstanceId("i")},
        {"rebalance_timeout_ms": 1_000},
        {"server_assignor": "eager"},
        {"client_assignors": (assignor("other"),)},
        {"owned": NO_JOBS},
        {"url": WorkerUrl("http://other")},
        {"name": "other"},
        {"config_offset": ConfigOffset(9)},
        {"config_topic_id": bytes(16)},
        {"configured": ConfiguredJobs(config_offset=ConfigOffset(9), jobs=NO_JOBS)},
        {"claims": Claims(jobs=NO_JOBS)},
        {"draining": True},
        {"connection_grace_ms": 0},
    ],
    ids=str,
)
def test_every_other_heartbeat_takes_the_whole_step(fields: dict[str, object]) -> None:
    compared = ComparedSteps()
    conversation, epoch = settled_group(compared)
    repeated = compared.repeated
    conversation.ask(replace(short_heartbeat("a", epoch, request_number=3), **fields))  # type: ignore[arg-type]
    assert compared.repeated == repeated


def test_a_held_heartbeat_is_answered_before_the_next_one_is() -> None:
    compared = ComparedSteps()
    conversation, epoch = settled_group(compared)
    repeated = compared.repeated
    assert conversation.ask(short_heartbeat("a", epoch, request_number=3, max_wait_ms=1_000)) is None
    assert conversation.ask(short_heartbeat("a", epoch, request_number=4)) is not None
    assert len(conversation.coordinator.replies) == 1, "the held one"
    assert compared.repeated == repeated


def test_a_changed_group_is_reported_in_the_next_response() -> None:
    compared = ComparedSteps()
    conversation, epoch = settled_group(compared)
    repeated = compared.repeated
    conversation.ask(SetGroupConfigs(reply_to=ReplyTo(0), configs={"connect.session.timeout.ms": "20000"}))
    response = conversation.ask(short_heartbeat("a", epoch, request_number=3))
    assert isinstance(response, HeartbeatResponse)
    assert response.session_timeout_ms == 20_000
    assert compared.repeated == repeated
