"""The errors of a coordinator after which no retry can succeed, and for each of them the setting that the user must
change."""

from coterie.member.connect.state import MemberSettings
from coterie.nouns.connect_error_codes import ConnectErrorCode


def permanent_error_reason(settings: MemberSettings, error: ConnectErrorCode, message: str | None) -> str | None:
    """Why the group cannot accept this worker with its current settings, and what to change; None when a retry may
    succeed. ``message`` is the text of the response, which contains the values that the coordinator compared."""
    why = f": {message}" if message else ""
    group = f"the connect group {settings.group_id}"
    match error:
        case ConnectErrorCode.UNSUPPORTED_VERSION:
            return (
                f"The coordinator of {group} does not serve connect groups{why}; set group.protocol=classic on this "
                "worker, or use a Coterie broker whose group.coordinator.rebalance.protocols contains connect"
            )
        case ConnectErrorCode.UNSUPPORTED_ASSIGNOR:
            return (
                f"The coordinator of {group} does not accept the assignors of this worker "
                f"({_assignors_text(settings)}){why}"
            )
        case ConnectErrorCode.GROUP_AUTHORIZATION_FAILED:
            return (
                f"This worker is not authorized for the group {settings.group_id}: allow its principal to read the "
                "group on the brokers, or set another group.id"
            )
        case ConnectErrorCode.INVALID_REQUEST:
            return f"The coordinator of {group} does not accept the heartbeats of this worker{why}"
        case ConnectErrorCode.FENCED_INSTANCE_ID:
            return (
                f"The coordinator of {group} does not accept group.instance.id={settings.instance_id} of this "
                f"worker{why}; stop this worker and start it again, and set another group.instance.id for each worker"
            )
        case ConnectErrorCode.GROUP_MAX_SIZE_REACHED:
            return (
                f"The coordinator accepts no further member of {group}{why}; increase group.connect.max.size on the "
                "brokers, or run fewer workers"
            )
        case ConnectErrorCode.GROUP_ID_NOT_FOUND:
            return (
                f"The coordinator has no connect group {settings.group_id}, and creates none{why}. This worker has "
                "group.protocol=connect; set the same group.protocol (classic or connect) on all workers, or set "
                "another group.id"
            )
        case _:
            return None


def _assignors_text(settings: MemberSettings) -> str:
    """The assignors of this worker, as a part of an error message: the name and the metadata versions of each, or the
    name of the coordinator's assignor that this worker uses."""
    if settings.server_assignor is not None:
        return f"{settings.server_assignor} of the coordinator"
    return ", ".join(f"{one.name} {one.minimum_version} to {one.maximum_version}" for one in settings.assignors)
