"""Every way in which a request can fail, with its status; the body is always Connect's ``{error_code, message}``."""

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
    Problem.NOT_VALIDATED: 500,
}


class HttpRefusal(Refusal):
    """A refusal with its status of HTTP."""

    status: int


class ProblemRefusal(HttpRefusal):
    """The herder refused."""

    def __init__(self, refused: RequestRefused) -> None:
        self.status = STATUS[refused.problem]
        super().__init__(refused.message)


class BadRequestError(HttpRefusal):
    """A request that no herder needs to see."""

    status = 400


class UnreadableBodyError(HttpRefusal):
    """A body that is no JSON, or JSON of another shape. Connect answers 500 to it, and so its clients expect that."""

    status = 500


class NotJsonError(HttpRefusal):
    """A body that is not declared as JSON."""

    status = 415


class ForeignOriginError(HttpRefusal):
    """A mutation that a browser sent for a page of another address."""

    status = 403


class BodyTooLargeError(HttpRefusal):
    """More than the limit."""

    status = 413


def expect(answer: Answer, kind: type[AnswerT]) -> AnswerT:
    """``answer``, which is of ``kind`` unless the herder refused.

    :raises ProblemRefusal: when the herder refused.
    """
    if isinstance(answer, RequestRefused):
        raise ProblemRefusal(answer)
    assert isinstance(answer, kind), f"{kind.__name__} was asked for, the answer is {answer}"
    return answer


def body(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error_code": status, "message": message}, status_code=status)


def answer(_: Request, error: Exception) -> JSONResponse:
    """The one table from exception to answer."""
    match error:
        case HttpRefusal(status=status):
            return body(status, str(error))
        case WorldError():
            return body(500, str(error))
        case HTTPException(status_code=status):
            return body(status, f"HTTP {status} {http.HTTPStatus(status).phrase}")
        case _:
            # The server logs it with its trace; what went wrong inside is nobody's business outside.
            return body(500, "Internal Server Error; see the worker's log")


KINDS: tuple[type[Exception], ...] = (HttpRefusal, WorldError, HTTPException, Exception)
"""All that :func:`answer` is to be asked about."""
