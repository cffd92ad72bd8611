"""The active topics of connectors (KIP-558): the topics of Kafka that their tasks have read or written.

The worker that runs a task writes a line into the status topic when the task first uses a topic. A reset deletes a
connector's lines; a topic that is used again is then written again. The lines of a deleted connector are deleted, too.
"""

from dataclasses import replace

from coterie.engine.log import NewTopicRecord, TopicRecord
from coterie.herder.messages import CancelTimer, Reply, RequestArrived, SetTimer
from coterie.herder.requests.ids import RequestId
from coterie.herder.requests.refusals import Problem, RequestRefused, SuccessWithoutContent, timeout_refusal
from coterie.herder.requests.topics import ActiveTopics, DescribeActiveTopics, ResetActiveTopics, TopicRequest
from coterie.herder.seams import TaskProgressed
from coterie.herder.state import Herder, PendingActiveTopicsReset, Turn
from coterie.herder.status_records import ActiveTopic, FirstTopicUse, active_topic_line, active_topic_of_key
from coterie.herder.timers import RequestTimeoutDue
from coterie.nouns.jobs import ConnectorName

# -- the uses of topics -----------------------------------------------------------------------------------------------


def queue_new_topic_uses(turn: Turn, event: TaskProgressed) -> None:
    """Queue a line of the status topic for each topic in ``event.topics``, unless it is known as an active topic of the
    task's connector, or a line or tombstone of it is queued or being appended already. Does nothing while topic
    tracking is disabled, or if the connector is deleted."""
    herder, name = turn.herder, event.task.connector
    if not event.topics or not herder.settings.topic_tracking_enabled or herder.config.connector(name) is None:
        return
    now_ms = herder.wall_clock_ms(turn.now_ms)
    assert now_ms is not None, "a task makes progress, but the runtime is not open"
    for topic in sorted(event.topics - herder.statuses.active_topics(name)):
        active_topic = ActiveTopic(connector=name, topic=topic)
        if active_topic not in herder.work.queued_topics and active_topic not in herder.work.topics_in_flight:
            use = FirstTopicUse(task_number=event.task.task, discovered_at_ms=now_ms)
            herder.work.queued_topics[active_topic] = use


def queue_topic_tombstones(turn: Turn, name: ConnectorName) -> None:
    """Queue a tombstone for each active topic of the connector, also for a topic whose line is not written yet."""
    for topic in sorted(_topics_after_pending_appends(turn.herder, name)):
        turn.herder.work.queued_topics[ActiveTopic(connector=name, topic=topic)] = None


def queue_orphaned_topic_tombstones(turn: Turn) -> None:
    """Queue tombstones of the active topics of connectors that are not configured any more: a task may have used a
    topic after the worker that owned the connector had deleted its active topics."""
    for name in sorted(turn.herder.statuses.connectors_with_topics()):
        if turn.herder.config.connector(name) is None:
            queue_topic_tombstones(turn, name)


def _topics_after_pending_appends(herder: Herder, name: ConnectorName) -> frozenset[str]:
    """The active topics that the connector will have when this worker's queued lines, and those in flight, are
    written."""
    topics = set(herder.statuses.active_topics(name))
    for active_topic, use in {**herder.work.topics_in_flight, **herder.work.queued_topics}.items():
        if active_topic.connector != name:
            continue
        if use is None:
            topics.discard(active_topic.topic)
        else:
            topics.add(active_topic.topic)
    return frozenset(topics)


# -- the append, together with that of the statuses -------------------------------------------------------------------


def mark_queued_topics_in_flight(turn: Turn) -> tuple[NewTopicRecord, ...]:
    """Return the queued lines of active topics, for an append that the caller orders. Move them from ``queued_topics``
    to ``topics_in_flight``."""
    work = turn.herder.work
    work.topics_in_flight, work.queued_topics = work.queued_topics, {}
    return tuple(active_topic_line(active_topic, use) for active_topic, use in work.topics_in_flight.items())


def clear_topics_in_flight(turn: Turn) -> None:
    """The append has succeeded: forget the lines of active topics in flight."""
    turn.herder.work.topics_in_flight = {}


def requeue_topics_in_flight(turn: Turn) -> None:
    """Queue the lines of a failed append again, before the lines that are queued already; of one topic, only the newer
    line is kept. If the connector was deleted since then, only tombstones of its topics are kept."""
    herder = turn.herder
    again = {**herder.work.topics_in_flight, **herder.work.queued_topics}
    herder.work.queued_topics = {
        active_topic: use
        for active_topic, use in again.items()
        if use is None or herder.config.connector(active_topic.connector) is not None
    }
    herder.work.topics_in_flight = {}


# -- requests ---------------------------------------------------------------------------------------------------------


def on_request(turn: Turn, event: RequestArrived, request: TopicRequest) -> None:
    """Refuse the request if this worker's settings do not allow it. Answer a question for active topics at once, from
    the part of the status topic that this worker has read. For a reset, queue the tombstones: the request is answered
    when this worker has read all of them back, or at once if there are none. As in Connect, the connector need not
    exist."""
    herder, name = turn.herder, request.connector
    if (refusal := _refusal_by_settings(herder, request)) is not None:
        turn.emit(Reply(id=event.id, answer=refusal))
        return
    if isinstance(request, DescribeActiveTopics):
        answer = ActiveTopics(connector=name, topics=tuple(sorted(herder.statuses.active_topics(name))))
        turn.emit(Reply(id=event.id, answer=answer))
        return
    queue_topic_tombstones(turn, name)
    removed = {**herder.work.topics_in_flight, **herder.work.queued_topics}.items()
    unread = frozenset(active.topic for active, use in removed if use is None and active.connector == name)
    if not unread:
        turn.emit(Reply(id=event.id, answer=SuccessWithoutContent()))
        return
    herder.requests.topic_resets[event.id] = PendingActiveTopicsReset(
        connector=name, began_at_ms=turn.now_ms, unread_tombstone_topics=unread
    )
    limit_ms = herder.settings.time_limit_ms(event.attempt)
    turn.emit(SetTimer(timer=RequestTimeoutDue(id=event.id), at_ms=turn.now_ms + limit_ms))


def answer_reset_if_last_tombstone(turn: Turn, line: TopicRecord) -> None:
    """If ``line``, which was read from the status topic and applied, is the last tombstone for which a reset waits,
    answer the reset."""
    active_topic = active_topic_of_key(line.key) if line.value is None else None
    if active_topic is None:
        return
    resets = turn.herder.requests.topic_resets
    for id_, reset in list(resets.items()):
        if reset.connector != active_topic.connector:
            continue
        resets[id_] = replace(reset, unread_tombstone_topics=reset.unread_tombstone_topics - {active_topic.topic})
        if not resets[id_].unread_tombstone_topics:
            del resets[id_]
            turn.emit(CancelTimer(timer=RequestTimeoutDue(id=id_)))
            turn.emit(Reply(id=id_, answer=SuccessWithoutContent()))


def on_request_timeout(turn: Turn, id_: RequestId) -> None:
    """The time limit of the request is over: refuse it if it is a pending reset. Does nothing for another request."""
    reset = turn.herder.requests.topic_resets.pop(id_, None)
    if reset is not None:
        began_at_ms = turn.herder.wall_clock_ms(reset.began_at_ms)
        turn.emit(Reply(id=id_, answer=timeout_refusal("flushing updates to the status topic", began_at_ms)))


def refuse_pending_resets(turn: Turn, problem: Problem, message: str) -> None:
    """Refuse all pending resets. Their tombstones are written all the same."""
    for id_ in list(turn.herder.requests.topic_resets):
        del turn.herder.requests.topic_resets[id_]
        turn.emit(Reply(id=id_, answer=RequestRefused(problem=problem, message=message)))


def _refusal_by_settings(herder: Herder, request: TopicRequest) -> RequestRefused | None:
    """The refusal of the request by this worker's settings, with Connect's messages; None if they allow it."""
    if not herder.settings.topic_tracking_enabled:
        return RequestRefused(problem=Problem.FORBIDDEN, message="Topic tracking is disabled.")
    if isinstance(request, ResetActiveTopics) and not herder.settings.topic_reset_allowed:
        return RequestRefused(problem=Problem.FORBIDDEN, message="Topic tracking reset is disabled.")
    return None
