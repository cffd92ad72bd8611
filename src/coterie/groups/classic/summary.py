"""The summary of an event for a trace: the event's name, member and generation, and the number of its elements.

The summary omits the elements themselves: the sender determines the size of an assignment, a subscription or an
offset's metadata, and a trace keeps hundreds of events, those of refused requests too.
"""

from coterie.groups.classic.messages import (
    DescribeGroup,
    Event,
    GroupLoaded,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    SyncGroup,
)
from coterie.groups.classic.offset_messages import (
    DeleteGroup,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OffsetRequest,
    TopicDeleted,
    TransactionEnded,
    TxnOffsetCommit,
)
from coterie.groups.effects import TimerFired

ID_LENGTH_MAX = 80
"""The greatest length of an id in a summary, because clients also determine the length of ids. A longer id is
represented by its end, which contains the uuid."""

Summary = tuple[str | int, ...]
"""The parts of a summary; the first is the event's name."""


def summarize_event(event: Event) -> Summary:
    """A short description of ``event`` for the trace, as its parts: the event's name, then ids, the generation and
    counts. They are not joined to one text, which would cost time at every heartbeat."""
    match event:
        case Heartbeat():
            return "Heartbeat", event.member_id[-ID_LENGTH_MAX:], event.generation
        case OffsetCommit() | TxnOffsetCommit() | OffsetFetch() | OffsetDelete() | DeleteGroup():
            return _summarize_offset_request(event)
        case JoinGroup():
            ids = event.member_id, "fresh", event.fresh_member_id, "instance", event.instance_id or ""
            return "JoinGroup", *map(_tail, ids), f"{len(event.protocols)} protocols"
        case SyncGroup():
            instance_id = _tail(event.instance_id or "")
            count_text = f"{len(event.assignments)} assignments"
            return "SyncGroup", _tail(event.member_id), "instance", instance_id, event.generation, count_text
        case LeaveGroup(members=members):
            first_id = _tail(members[0].member_id or members[0].instance_id or "") if members else ""
            return "LeaveGroup", first_id, f"{len(members)} members"
        case DescribeGroup():
            return ("DescribeGroup",)
        case TimerFired(key=key):
            return "TimerFired", type(key).__name__, _tail(getattr(key, "member_id", ""))
        case TopicDeleted(topic=topic):
            return "TopicDeleted", _tail(topic)
        case TransactionEnded(producer_id=producer_id, is_commit=is_commit):
            return "TransactionEnded", "producer", producer_id, "commit" if is_commit else "abort"
        case GroupLoaded():
            return ("GroupLoaded",)


def _summarize_offset_request(request: OffsetRequest) -> Summary:
    """A short description of ``request`` for the trace, as `summarize_event` returns it."""
    match request:
        case OffsetCommit():
            return "OffsetCommit", _tail(request.member_id), request.generation, f"{len(request.offsets)} offsets"
        case TxnOffsetCommit(member_id=member_id, producer=producer):
            count_text = f"{len(request.offsets)} offsets"
            return "TxnOffsetCommit", _tail(member_id), request.generation, *producer, count_text
        case OffsetFetch(partitions=partitions):
            return "OffsetFetch", "all" if partitions is None else f"{len(partitions)} partitions"
        case OffsetDelete(partitions=partitions):
            return "OffsetDelete", f"{len(partitions)} partitions"
        case DeleteGroup():
            return ("DeleteGroup",)


def _tail(text: str) -> str:
    """The last `ID_LENGTH_MAX` characters of ``text``."""
    return text[-ID_LENGTH_MAX:]
