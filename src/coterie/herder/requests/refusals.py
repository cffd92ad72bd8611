"""The responses that every kind of request may receive: success without content, and refusals."""

from dataclasses import dataclass, field
from enum import StrEnum, auto

from coterie.nouns.ids import WorkerUrl
from coterie.nouns.instants import instant_text
from coterie.nouns.jobs import ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessWithoutContent:
    """Success without content. A write was appended and this worker has read it back; a change of offsets, a reset of
    active topics or the cancellation of a drain has taken effect; the level of a logger is durable; or this worker has
    begun a drain or a restart, or ordered the restart of a task."""


class Problem(StrEnum):
    """Why a request is refused; `rest.problems` has the HTTP status of each."""

    NOT_FOUND = auto()
    """The connector, task, status or worker does not exist."""
    ALREADY_EXISTS = auto()
    """The connector to create exists already."""
    VERSION_MISMATCH = auto()
    """The connector's config does not have the version that the write requires."""
    BAD_REQUEST = auto()
    """The request is not valid, for example its config; or several workers have the name that an order contains."""
    FORBIDDEN = auto()
    """The request's signature is not valid, or the worker's settings do not allow the request."""
    NOT_LEADER = auto()
    """Only the leader can serve the request; it is another worker."""
    NOT_THIS_WORKER = auto()
    """The order names another worker, or a task that is assigned to another worker; that worker can serve it."""
    NOT_POSSIBLE = auto()
    """The state of the worker, of its settings or of its group does not allow the order."""
    UNASSIGNED = auto()
    """No worker has the task that the order names; a later request may succeed."""
    NO_LEADER = auto()
    """The leader is not known now, this worker is not a member, or the coordinator has not described the group; a later
    request may succeed."""
    STARTING = auto()
    """The worker is still starting."""
    SHUTTING_DOWN = auto()
    """The worker is leaving its group, or relaunching."""
    BUSY = auto()
    """The worker has too many events to process."""
    TIMED_OUT = auto()
    """The request was not complete in time. If the append of a write, or a change of offsets, had started, it may still
    take effect."""
    LOG_FAILED = auto()
    """The config log could not be written, or the worker ends before a write that has begun is complete: the write may
    still take effect."""
    OUTCOME_UNKNOWN = auto()
    """The connection to the leader broke after the write was sent to it, and the config log does not tell whether the
    write has taken effect; or no response came after an order was sent to the leader or to the worker that it names,
    and the order may have been accepted."""
    PLUGIN_FAILED = auto()
    """The plug-ins could not be listed or described: an exception was raised, normally by a plug-in."""
    OFFSETS_FAILED = auto()
    """The connector's offsets could not be read or changed, for example because a server cannot be reached, or a batch
    that was begun fails. A change may take effect later."""
    NOT_VALIDATED = auto()
    """The config could not be validated, for example because a server that it names cannot be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRefused:
    """A refused request. A write was not appended, except perhaps with TIMED_OUT, LOG_FAILED and OUTCOME_UNKNOWN; a
    change of offsets may also take effect after OFFSETS_FAILED."""

    problem: Problem
    message: str = field(repr=False)
    """The reason, for the client."""
    redirect_url: WorkerUrl | None = None
    """With NOT_LEADER and NOT_THIS_WORKER: the URL of the worker that can serve the request."""


def not_found_refusal(message: str) -> RequestRefused:
    """The refusal NOT_FOUND with this message."""
    return RequestRefused(problem=Problem.NOT_FOUND, message=message)


def unknown_connector_refusal(name: ConnectorName) -> RequestRefused:
    """The refusal of a request for a connector that does not exist, in Connect's words."""
    return not_found_refusal(f"Connector {name} not found")


def timeout_refusal(activity: str, began_at_wall_clock_ms: int | None) -> RequestRefused:
    """The refusal of a request whose time limit is over, in Connect's words. ``activity``: what the worker is doing for
    the request, such as ``listing its plugins``; it began at ``began_at_wall_clock_ms``, in milliseconds since the Unix
    epoch, or None if that is not known."""
    began = "" if began_at_wall_clock_ms is None else f", which began at {instant_text(began_at_wall_clock_ms)}"
    message = f"Request timed out. The worker is currently {activity}{began}."
    return RequestRefused(problem=Problem.TIMED_OUT, message=message)
