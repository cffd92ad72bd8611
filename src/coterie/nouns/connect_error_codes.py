"""The error codes of the connect protocol, for both sides: the coordinator of a group and its members."""

from enum import IntEnum


class ConnectErrorCode(IntEnum):
    """The error codes in responses of the connect protocol. Those below 10000 are the codes of Kafka that the protocol
    uses, with Kafka's numbers. Kafka does not have the three from 10000. NONE and COMPUTE_ASSIGNMENT are no errors."""

    UNKNOWN_SERVER_ERROR = -1
    """The broker failed. A client also uses it for an error code that is not listed here."""
    NONE = 0
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    UNKNOWN_MEMBER_ID = 25
    GROUP_AUTHORIZATION_FAILED = 30
    UNSUPPORTED_VERSION = 35
    """The broker does not serve the API. A client also uses it for a broker that does not list the API."""
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    COMPUTE_ASSIGNMENT = 10000
    """No error: the member must compute the target assignment."""
    INVALID_ASSIGNMENT = 10001
    """The assignment to install is incomplete or contradictory, or answers no computation that is in progress."""
    STALE_REQUEST = 10002
    """The request is older than one that was processed, and was not processed. The worker stops nothing and sends all
    fields next."""


def error_text(error: ConnectErrorCode, message: str | None) -> str:
    """The name of an error and its message, if there is one, as text for a log message."""
    return f"{error.name}: {message}" if message else error.name
