"""Every way in which a request can fail, with its status; the body is always Connect's ``{error_code, message}``."""

import http
from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from coterie.herder.requests import Problem, RequestRefused
from coterie.nouns.errors import Refusal, WorldError

STATUS: Mapping[Problem, int] = {
    Problem.NOT_FOUND: 404,
    Problem.ALREADY_EXISTS: 409,  # and of Connect's own API nothing else is: Connect also says 409 while it rebalances
    Problem.NOT_POSSIBLE: 409,  # of what only Coterie has: the group, or the worker, is not in a state for it
    Problem.BAD_REQUEST: 400,
    Problem.FORBIDDEN: 403,
    Problem.NOT_LEADER: 503,  # only on a last hop, which forwards no more
    Problem.NOT_THIS_WORKER: 503,  # likewise
    Problem.NO_LEADER: 503,
    Problem.STARTING: 503,
    Problem.SHUTTING_DOWN: 503,
    Problem.BUSY: 503,
    Problem.TIMED_OUT: 500,
    Problem.LOG_FAILED: 500,
}


class ProblemRefusal(Refusal):
    """The herder refused; carries what it said."""

    def __init__(self, refused: RequestRefused) -> None:
        self.refused = refused
        super().__init__(refused.message)


class BadRequestError(Refusal):
    """A request that no herder needs to see: 400."""


class UnreadableBodyError(Refusal):
    """A body that is no JSON, or JSON of another shape. Connect answers 500 to it, and so its clients expect that."""


class NotJsonError(Refusal):
    """A body that is not declared as JSON: 415."""


class ForeignOriginError(Refusal):
    """A mutation that a browser sent for a page of another address: 403."""


class BodyTooLargeError(Refusal):
    """More than the limit: 413."""


def body(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error_code": status, "message": message}, status_code=status)


def answer(_: Request, error: Exception) -> JSONResponse:
    """The one table from exception to answer."""
    match error:
        case ProblemRefusal(refused=refused):
            return body(STATUS[refused.problem], refused.message)
        case BadRequestError():
            return body(400, str(error))
        case ForeignOriginError():
            return body(403, str(error))
        case BodyTooLargeError():
            return body(413, str(error))
        case NotJsonError():
            return body(415, str(error))
        case UnreadableBodyError() | WorldError():
            return body(500, str(error))
        case HTTPException(status_code=status):
            return body(status, f"HTTP {status} {http.HTTPStatus(status).phrase}")
        case _:
            # The server logs it with its trace; what went wrong inside is nobody's business outside.
            return body(500, "Internal Server Error; see the worker's log")


KINDS: tuple[type[Exception], ...] = (
    ProblemRefusal,
    BadRequestError,
    ForeignOriginError,
    BodyTooLargeError,
    NotJsonError,
    UnreadableBodyError,
    WorldError,
    HTTPException,
    Exception,
)
"""All that :func:`answer` is to be asked about."""
