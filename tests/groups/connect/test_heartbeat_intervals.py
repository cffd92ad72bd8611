"""The heartbeat interval that a response states: short while the member waits for a job or has one to give back, the
group's otherwise."""

from coterie.groups.connect.messages import SetGroupConfigs
from coterie.nouns.connect_groups import HeartbeatResponse
from coterie.nouns.ids import ReplyTo
from coterie.nouns.jobs import Jobs
from tests.groups.connect.builders import JOBS, Conversation, short_heartbeat

WAITING_MS, NORMAL_MS = 200, 3_000
"""The first one is the protocol's, and no setting; the second one is the default of `connect.heartbeat.interval.ms`."""


def interval_of(conversation: Conversation, member: str, epoch: int) -> int:
    """The interval in the response to a heartbeat of the member in which nothing has changed."""
    response = conversation.ask(short_heartbeat(member, epoch))
    assert isinstance(response, HeartbeatResponse)
    return response.heartbeat_interval_ms


def test_a_member_without_a_target_receives_the_short_interval_until_it_has_its_jobs() -> None:
    conversation = Conversation()
    joins = [conversation.beat("w0") for _ in range(2)]
    assert [one.heartbeat_interval_ms for one in joins] == [WAITING_MS] * 2
    conversation.compute("w0")
    assigned = conversation.beat("w0")
    assert assigned.assignment is not None
    assert (assigned.assignment.jobs, assigned.heartbeat_interval_ms) == (JOBS, NORMAL_MS)
    assert interval_of(conversation, "w0", 1) == NORMAL_MS


def test_the_releasing_and_the_receiving_member_of_a_job_receive_the_short_interval_until_it_has_moved() -> None:
    conversation = Conversation()
    conversation.settle("w0")
    conversation.beat("w1")
    conversation.compute("w0")
    revoked = conversation.beat("w0", 1, owned=JOBS)
    assert revoked.assignment is not None
    kept = revoked.assignment.jobs
    waits = conversation.beat("w1")
    assert (revoked.heartbeat_interval_ms, waits.heartbeat_interval_ms) == (WAITING_MS, WAITING_MS)
    assert interval_of(conversation, "w0", 1) == WAITING_MS, "it has acknowledged nothing"
    assert interval_of(conversation, "w1", 2) == WAITING_MS

    first, *_ = JOBS - kept
    some = conversation.beat("w0", 1, owned=JOBS - Jobs.of([first]))
    assert some.heartbeat_interval_ms == WAITING_MS, "it has more jobs to give back"
    assert interval_of(conversation, "w1", 2) == WAITING_MS, "it has received one of several jobs"
    done = conversation.beat("w0", 1, owned=kept)
    assert (done.member_epoch, done.heartbeat_interval_ms) == (2, NORMAL_MS)
    assert interval_of(conversation, "w1", 2) == NORMAL_MS, "its last job has come with this response"
    assert interval_of(conversation, "w0", 2) == interval_of(conversation, "w1", 2) == NORMAL_MS


def test_a_member_with_nothing_to_release_and_to_receive_receives_the_normal_interval_during_a_rebalance() -> None:
    conversation = Conversation()
    conversation.settle("w0", "w1")
    conversation.beat("w2")
    assert interval_of(conversation, "w1", 2) == NORMAL_MS, "a new target is needed, and w1 has the one that stands"


def test_the_normal_interval_is_the_groups_config() -> None:
    conversation = Conversation()
    conversation.settle("w0")
    conversation.ask(SetGroupConfigs(reply_to=ReplyTo(0), configs={"connect.heartbeat.interval.ms": "1500"}))
    assert interval_of(conversation, "w0", 1) == 1_500
