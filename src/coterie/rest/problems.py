"""All errors of a request, with their HTTP status; the body is always Connect's ``{error_code, message}``."""

import http
from collections.abc import Mapping
from typing import TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from coterie.herder.requests import Answer, Problem, RequestRefused
from coterie.nouns.errors import Refusal, WorldError

AnswerT = TypeVar("AnswerT", bound=Answer)

STATUS: Mapping[Problem, int] = {
    Problem.NOT_FOUND: 404,
    # On Connect's own paths, 409 has only this cause. Connect also responds 409 during a rebalance.
    Problem.ALREADY_EXISTS: 409,
    # Only on Coterie's own paths: the state of the group or of the worker does not allow the request.
    Problem.NOT_POSSIBLE: 409,
    Problem.BAD_REQUEST: 400,
    Problem.FORBIDDEN: 403,
    Problem.NOT_LEADER: 503,  # Only on the last hop, which does not forward the request again.
    Problem.NOT_THIS_WORKER: 503,  # Likewise.
    Problem.NO_LEADER: 503,
    Problem.STARTING: 503,
    Problem.SHUTTING_DOWN: 503,
    Problem.BUSY: 503,
    Problem.TIMED_OUT: 500,
    Problem.LOG_FAILED: 500,
    Problem.NOT_VALIDATED: 500,
}


class HttpRefusal(Refusal):
    """A refusal with its HTTP status."""

    status: int


class ProblemRefusal(HttpRefusal):
    """The herder refused the request."""

    def __init__(self, refused: RequestRefused) -> None:
        self.status = STATUS[refused.problem]
        super().__init__(refused.message)


class BadRequestError(HttpRefusal):
    """An invalid request that is refused before it reaches the herder."""

    status = 400


class UnreadableBodyError(HttpRefusal):
    """A body that is not JSON, or JSON of another shape. Connect responds 500, and its clients expect that status."""

    status = 500


class NotJsonError(HttpRefusal):
    """A body that is not declared as JSON."""

    status = 415


class ForeignOriginError(HttpRefusal):
    """A mutation that a browser sent for a page of another address."""

    status = 403


class BodyTooLargeError(HttpRefusal):
    """A body that is longer than the limit."""

    status = 413


def expect(answer: Answer, kind: type[AnswerT]) -> AnswerT:
    """``answer`` as a ``kind``.

    :raises ProblemRefusal: when the herder refused the request.
    """
    if isinstance(answer, RequestRefused):
        raise ProblemRefusal(answer)
    assert isinstance(answer, kind), f"the response must be a {kind.__name__}, but is {answer}"
    return answer


def body(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error_code": status, "message": message}, status_code=status)


def answer(_: Request, error: Exception) -> JSONResponse:
    """The HTTP response for every exception."""
    match error:
        case HttpRefusal(status=status):
            return body(status, str(error))
        case WorldError():
            return body(500, str(error))
        case HTTPException(status_code=status):
            return body(status, f"HTTP {status} {http.HTTPStatus(status).phrase}")
        case _:
            # The server logs the error with its trace; the response does not disclose internal details.
            return body(500, "Internal Server Error; see the worker's log")


KINDS: tuple[type[Exception], ...] = (HttpRefusal, WorldError, HTTPException, Exception)
"""The exceptions for which :func:`answer` is the handler."""
