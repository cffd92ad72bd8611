"""The errors of a group's coordinator after which no retry can succeed, and for each of them the setting that the user
must change."""

from coterie.member.classic.state import Member, NeverInGroup
from coterie.wire.connect import PROTOCOL_TYPE
from coterie.wire.errors import ErrorCode


def permanent_error_reason(member: Member, error: ErrorCode) -> str | None:
    """Why the group cannot accept this worker with its current settings, and what to change; None when a retry may
    succeed.

    A retry may succeed when the group is full (GROUP_MAX_SIZE_REACHED). A retry may also succeed when the group has no
    protocol in common with this worker (INCONSISTENT_GROUP_PROTOCOL), if this worker was a member before: an operator
    may be restarting the workers one by one with another protocol.
    """
    settings = member.settings
    match error:
        case ErrorCode.invalid_session_timeout:
            return (
                f"The broker does not accept session.timeout.ms={settings.session_timeout_ms}: set it between the "
                "broker's group.min.session.timeout.ms and group.max.session.timeout.ms (by default 6000 and 1800000)"
            )
        case ErrorCode.inconsistent_group_protocol if isinstance(member.place, NeverInGroup):
            offered = ", ".join(protocol.wire_name for protocol in settings.protocols)
            return (
                f"The group {settings.group_id} supports no protocol that this worker offers (type {PROTOCOL_TYPE}, "
                f"connect.protocol {offered}): its members have another group.protocol or connect.protocol, or are not "
                "Connect workers (for example consumers). This worker has group.protocol=classic; set the same "
                "group.protocol (classic or connect) on all workers, and with classic the same connect.protocol, or "
                "set another group.id"
            )
        case ErrorCode.invalid_group_id:
            return f"The broker does not accept group.id={settings.group_id}: set another group.id"
        case ErrorCode.group_authorization_failed:
            return (
                f"This worker is not authorized for the group {settings.group_id}: allow its principal to read the "
                "group on the brokers, or set another group.id"
            )
        case ErrorCode.fenced_instance_id:
            return (
                f"Another process has joined the group {settings.group_id} with this worker's "
                f"group.instance.id={settings.instance_id} and has replaced this process in the group: set another "
                "group.instance.id for each worker, and run only one process of each worker"
            )
        case _:
            return None
