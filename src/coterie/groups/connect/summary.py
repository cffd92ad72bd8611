"""The summary of an event for a trace: the event's name, member and epoch, and the number of its elements.

The summary omits the elements themselves: the sender determines the size of its metadata and of its jobs, and a trace
keeps hundreds of events, those of refused requests too.
"""

from coterie.groups.connect.messages import (
    CheckOffsetAccess,
    ConnectionClosed,
    DeleteGroup,
    DescribeGroup,
    Event,
    GroupLoaded,
    Heartbeat,
    InstallAssignment,
    PrepareAssignment,
    ReleaseHeldResponse,
    RemoveMember,
    SetGroupConfigs,
    TargetComputed,
)
from coterie.groups.effects import TimerFired

ID_LENGTH_MAX = 80
"""The greatest length of an id in a summary, because clients determine the length of ids. A longer id is represented by
its end."""

Summary = tuple[str | int, ...]
"""The parts of a summary; the first is the event's name."""


def summarize_event(event: Event) -> Summary:
    """A short description of ``event`` for the trace, as its parts: the event's name, then ids, epochs and counts. They
    are not joined to one text, which would cost time at every heartbeat."""
    match event:
        case Heartbeat():
            owned = "unchanged" if event.owned is None else len(event.owned)
            return "Heartbeat", event.member_id[-ID_LENGTH_MAX:], event.member_epoch, event.request_number, owned
        case TimerFired(key=key):
            return "TimerFired", type(key).__name__, _tail(getattr(key, "member_id", ""))
        case ReleaseHeldResponse(member_id=member_id):
            return "ReleaseHeldResponse", _tail(member_id)
        case PrepareAssignment():
            return "PrepareAssignment", _tail(event.member_id), event.member_epoch
        case InstallAssignment():
            members = f"{len(event.target.members)} members"
            return (
                "InstallAssignment",
                _tail(event.member_id),
                event.group_epoch,
                f"error {event.assignor_error}",
                members,
            )
        case TargetComputed(group_epoch=group_epoch, target=target):
            return "TargetComputed", group_epoch, "failed" if target is None else f"{len(target.members)} members"
        case ConnectionClosed(connection_number=connection, member_ids=member_ids):
            return "ConnectionClosed", connection, f"{len(member_ids)} members"
        case RemoveMember():
            return "RemoveMember", _tail(event.member_id)
        case CheckOffsetAccess():
            return "CheckOffsetAccess", _tail(event.member_id), event.member_epoch
        case SetGroupConfigs(configs=configs):
            return "SetGroupConfigs", f"{len(configs)} configs"
        case DescribeGroup() | DeleteGroup() | GroupLoaded():
            return (type(event).__name__,)


def _tail(text: str) -> str:
    """The last `ID_LENGTH_MAX` characters of ``text``."""
    return text[-ID_LENGTH_MAX:]
