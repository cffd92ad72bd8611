"""Which errors no retry mends, and which setting the user must change."""

from coterie.member.classic.state import Member, NeverIn
from coterie.wire.connect import PROTOCOL_TYPE
from coterie.wire.errors import ErrorCode


def refusal(member: Member, error: ErrorCode) -> str | None:
    """Why the group never accepts this worker with its present settings; None if it may, so that a retry makes sense.

    A group that is full (GROUP_MAX_SIZE_REACHED) may have room later. A group that has no protocol in common with a
    former member is being changed: its members are restarted one by one.
    """
    settings = member.settings
    match error:
        case ErrorCode.invalid_session_timeout:
            return (
                f"The broker does not accept session.timeout.ms={settings.session_timeout_ms}: set it between the "
                "broker's group.min.session.timeout.ms and group.max.session.timeout.ms (by default 6000 and 1800000)"
            )
        case ErrorCode.inconsistent_group_protocol if isinstance(member.place, NeverIn):
            offered = ", ".join(protocol.wire_name for protocol in settings.protocols)
            return (
                f"The group {settings.group_id} speaks nothing that this worker offers (type {PROTOCOL_TYPE}, "
                f"connect.protocol {offered}): its members have another connect.protocol, or are no Connect workers "
                "(consumers, say); make connect.protocol the same everywhere, or set another group.id"
            )
        case ErrorCode.invalid_group_id:
            return f"The broker does not accept group.id={settings.group_id}: set another one"
        case ErrorCode.group_authorization_failed:
            return (
                f"This worker is not authorized for the group {settings.group_id}: allow its principal to read the "
                "group on the brokers, or set another group.id"
            )
        case ErrorCode.fenced_instance_id:
            return (
                f"Another worker of the group {settings.group_id} has started with this one's "
                f"group.instance.id={settings.instance_id} and has its place now: give each worker an id of its own, "
                "and run each only once"
            )
        case _:
            return None
