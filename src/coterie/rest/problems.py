"""The exceptions of the HTTP API with their HTTP status. The body of every error response is Connect's
``{error_code, message}``.
"""

import http
from collections.abc import Mapping
from typing import TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.refusals import Problem, RequestRefused
from coterie.nouns.errors import Refusal, WorldError
from coterie.rest.json_response import JSONResponse

AnswerT = TypeVar("AnswerT", bound=Answer)

STATUS_BY_PROBLEM: Mapping[Problem, int] = {
    Problem.NOT_FOUND: 404,
    # On Connect's own paths, 409 has only this cause. Connect also responds 409 during a rebalance.
    Problem.ALREADY_EXISTS: 409,
    # Only on Coterie's own paths: the state of the group or of the worker does not allow the request.
    Problem.NOT_POSSIBLE: 409,
    Problem.BAD_REQUEST: 400,
    Problem.VERSION_MISMATCH: 412,
    Problem.FORBIDDEN: 403,
    Problem.NOT_LEADER: 503,  # Only on the last hop, which does not forward the request again.
    Problem.NOT_THIS_WORKER: 503,  # Likewise.
    Problem.UNASSIGNED: 503,
    Problem.NO_LEADER: 503,
    Problem.STARTING: 503,
    Problem.SHUTTING_DOWN: 503,
    Problem.BUSY: 503,
    Problem.TIMED_OUT: 500,
    Problem.LOG_FAILED: 500,
    Problem.OUTCOME_UNKNOWN: 500,
    Problem.PLUGIN_FAILED: 500,
    Problem.OFFSETS_FAILED: 500,
    Problem.NOT_VALIDATED: 500,
}
"""The HTTP status for each reason for which the herder refuses a request."""


RETRY_LATER_HEADER = {"Retry-After": "1"}
"""The header of every 503: the request was not performed, and the client may send it again after one second."""


class HttpRefusal(Refusal):
    """A request is refused with ``status``, an HTTP status; the exception's text is the response's ``message``."""

    status: int


class HerderRefusal(HttpRefusal):
    """The herder refused the request, or the request could not be forwarded to another worker."""

    def __init__(self, refusal: RequestRefused) -> None:
        self.status = STATUS_BY_PROBLEM[refusal.problem]
        super().__init__(refusal.message)


class BadRequestError(HttpRefusal):
    """The request is invalid, and is refused before it reaches the herder."""

    status = 400


class NotFoundError(HttpRefusal):
    """This worker does not have the logger in the path, or there is no log level with the name in the body (404 as in
    Connect). The request is refused before it reaches the herder, which itself refuses unknown connectors and
    tasks."""

    status = 404


class UnreadableBodyError(HttpRefusal):
    """The request's body was not received completely, is not JSON, or is JSON of another structure than the request
    needs. The status is 400, while Connect responds with 500 to such a request."""

    status = 400


class NotLoggedInError(HttpRefusal):
    """The request has no log-in, or names an unknown user or a wrong password."""

    status = 401


class SignatureNotValidError(HttpRefusal):
    """Another worker has forwarded the request, and the signature of its user's name is not valid, for example because
    one of the two workers has not read a new session key yet: the forwarding worker signs the request again."""

    status = 503


class RoleMissingError(HttpRefusal):
    """The user may not do what the request asks for."""

    status = 403


class NotJsonError(HttpRefusal):
    """The Content-Type of the request is not ``application/json``."""

    status = 415


class ForeignOriginError(HttpRefusal):
    """A browser sent the request for a page of another address, and the request would change something."""

    status = 403


class BodyTooLargeError(HttpRefusal):
    """The request's body is longer than ``bodies.BODY_SIZE_MAX_BYTES``."""

    status = 413


def answer_or_raise(answer: Answer, answer_type: type[AnswerT]) -> AnswerT:
    """``answer``, the herder's response, which is of the type ``answer_type`` unless the herder refused the request.

    :raises HerderRefusal: when ``answer`` is a :class:`RequestRefused`.
    """
    if isinstance(answer, RequestRefused):
        raise HerderRefusal(answer)
    assert isinstance(answer, answer_type), f"the response must be a {answer_type.__name__}, but is {answer}"
    return answer


def error_json_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """A response with ``status``, Connect's error body and further ``headers``."""
    return JSONResponse({"error_code": status, "message": message}, status_code=status, headers=headers)


def error_response(request: Request, error: Exception) -> Response:
    """The HTTP response for an exception that a handler has raised: the status of an :class:`HttpRefusal` or of
    Starlette's HTTPException, and 500 for every other exception. The text of an unexpected exception is not sent."""
    match error:
        case NotLoggedInError(status=status):
            # Connect's response: a text, declared as JSON like the responses of the path.
            media_type = "text/plain" if request.method == "OPTIONS" else "application/json"
            headers = {"WWW-Authenticate": 'Basic realm="Kafka Connect", charset="UTF-8"'}
            return Response(str(error), status_code=status, media_type=media_type, headers=headers)
        case HttpRefusal(status=status):
            return error_json_response(status, str(error), RETRY_LATER_HEADER if status == 503 else None)
        case WorldError():
            return error_json_response(500, str(error))
        case HTTPException(status_code=status):
            return error_json_response(status, f"HTTP {status} {http.HTTPStatus(status).phrase}", error.headers)
        case _:
            # The server logs the error with its trace; the response does not disclose internal details.
            return error_json_response(500, "Internal Server Error; see the worker's log")


HANDLED_EXCEPTIONS: tuple[type[Exception], ...] = (HttpRefusal, WorldError, HTTPException, Exception)
"""The exceptions for which :func:`error_response` makes the response. An exception that only ``Exception`` matches is a
bug: Starlette raises it again after the response, and the server logs it with its trace."""
