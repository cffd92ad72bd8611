"""Serves the writes of clients: asks this worker's herder, and sends the write to the leader if that is another worker.
A restart of a task and a reset of active topics are served in the same way, although they are not written to the config
log; a restart is sent to the worker that has the task. A logger's level for all workers, which any worker writes, waits
in the same way.

While workers start, stop, restart or die, one attempt may not be enough:

    the other worker cannot be reached, or         nothing was written: the herder is asked again who is the leader
    answers 503
    this worker starts, or knows no leader, or     likewise: the herder is asked again
    no worker that has the task
    the connection breaks after the write was      the write may have taken effect: it is repeated with the same id,
    sent, and no response has come                 and is looked up in the config log before it is performed; a restart
                                                   of a task cannot be looked up, and is not repeated
    any other response                             is the client's response

The time limit of all attempts together is that of the write. What the workers send to each other for this:

    X-Coterie-Request-Id    the id of the write, which the first worker makes
    X-Coterie-Time-Left     the time that is left for the write, in milliseconds
    X-Coterie-Repeated      true, if an earlier attempt may have taken effect

A worker uses these headers only in a request with the query parameter ``forward``. For every other request it makes a
new id, and takes its own time limit.
"""

import asyncio
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import httpx
from starlette.requests import Request
from starlette.responses import Response

from coterie.engine.backoff import doubled_delay_ms
from coterie.herder.requests.ids import ClientRequestId
from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.orders import RestartConnectorTask, SetGroupLoggerLevel
from coterie.herder.requests.refusals import Problem, RequestRefused, timeout_refusal
from coterie.herder.requests.topics import ResetActiveTopics
from coterie.herder.requests.writes import Write, WriteAttempt
from coterie.rest.callers import SignFunction
from coterie.rest.leader import FORWARD_PARAMETER, RequestNotSentError, ResponseMissingError, forward_to_worker
from coterie.rest.problems import STATUS_BY_PROBLEM
from coterie.worker.worker import Worker

ClientWrite: TypeAlias = Write | RestartConnectorTask | ResetActiveTopics | SetGroupLoggerLevel
"""A request of a client that changes something, and waits until it can be performed."""

RETRY_PAUSE_MS = 250
"""The time between two attempts to perform a write, in milliseconds."""
UNASSIGNED_TASK_RETRY_PAUSE_MAX_MS = 4_000
"""The longest time between two attempts to restart a task that no worker has: from :data:`RETRY_PAUSE_MS` on, the time
doubles with each attempt. Such a task may wait for minutes, and in a connect group each attempt asks the coordinator
for the description of the group."""
RESPONSE_MARGIN_S = 5.0
"""How much longer than the time that is left for a write a worker waits for the leader's response, in seconds: the
leader has the same time limit, and its refusal then contains what it was waiting for."""
_TEMPORARY_PROBLEMS = frozenset({Problem.STARTING, Problem.NO_LEADER, Problem.UNASSIGNED})
"""Why this worker's herder cannot perform a write at the moment: nothing was written, and the herder is asked again.
Most writes to the config log wait in the herder itself."""
_REQUEST_ID_HEADER, _TIME_LEFT_HEADER, _REPEATED_HEADER = (
    "X-Coterie-Request-Id",
    "X-Coterie-Time-Left",
    "X-Coterie-Repeated",
)
"""The names of the headers with which a worker describes the attempt of a write to another worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ForwardFailed:
    """The other worker has not performed a forwarded write, or has not responded."""

    reason: str
    response: Response | None = None
    """The other worker's response, a 503; None without a response."""
    may_have_been_performed: bool = False
    """Whether the write was sent and no response has come."""


async def perform_or_forward_write(
    worker: Worker,
    http_client: httpx.AsyncClient,
    request: Request,
    body: bytes,
    write: ClientWrite,
    sign: SignFunction,
    to_response_or_raise: Callable[[Answer], Response],
) -> Response:
    """Perform ``write``, which ``request`` with ``body`` contains, here or on another worker, and return the response.
    ``to_response_or_raise`` converts the answer of this worker's herder to the response. ``sign`` signs the name of the
    caller for the other worker. The write is attempted until it is performed or refused, or its time limit is over.

    :raises HttpRefusal: when the write was refused; when it could not be performed within its time limit; or when the
        time limit is over, an attempt may have taken effect, and its outcome is not known (OUTCOME_UNKNOWN).
    :raises WorldError: when the other worker's URL is invalid; or when the restart of a task was sent to the other
        worker and no response has come.
    """
    attempt = _first_attempt(request, worker.settings.request_timeout_ms)
    sent_since_ms = 0
    unassigned_attempts = 0
    ends_s = asyncio.get_running_loop().time() + attempt.time_left_ms / 1000
    while True:
        answer = await worker.ask(write, attempt)
        last_response: Response | None = None
        pause_ms = RETRY_PAUSE_MS
        match answer:
            case RequestRefused(problem=Problem.NOT_LEADER | Problem.NOT_THIS_WORKER):
                sent_since_ms = sent_since_ms or time.time_ns() // 1_000_000
                # The herder may have waited for long before it answered.
                attempt = replace(attempt, time_left_ms=max(_time_left_ms(ends_s), 0))
                outcome = await _forward_once(http_client, request, body, write, attempt, answer, sign)
                if isinstance(outcome, Response):
                    return outcome
                last_response = outcome.response
                attempt = replace(attempt, is_repeat=attempt.is_repeat or outcome.may_have_been_performed)
                last_answer: Answer = _forwarding_timeout_refusal(answer, outcome.reason, sent_since_ms)
            case RequestRefused(problem=problem) if problem in _TEMPORARY_PROBLEMS:
                last_answer = answer
                if problem is Problem.UNASSIGNED:
                    pause_ms = doubled_delay_ms(RETRY_PAUSE_MS, unassigned_attempts, UNASSIGNED_TASK_RETRY_PAUSE_MAX_MS)
                    unassigned_attempts += 1
            case _:
                return to_response_or_raise(_answer_or_unknown_earlier_outcome(answer, attempt))
        # A long pause must not take the last attempt from the request: that comes shortly before the time limit.
        pause_ms = max(RETRY_PAUSE_MS, min(pause_ms, _time_left_ms(ends_s) - RETRY_PAUSE_MS))
        time_left_ms = _time_left_ms(ends_s) - pause_ms
        if time_left_ms <= 0:
            if last_response is not None and not attempt.is_repeat:
                return last_response
            return to_response_or_raise(_answer_or_unknown_earlier_outcome(last_answer, attempt))
        await asyncio.sleep(pause_ms / 1000)
        attempt = replace(attempt, time_left_ms=time_left_ms)


async def _forward_once(
    http_client: httpx.AsyncClient,
    request: Request,
    body: bytes,
    write: ClientWrite,
    attempt: WriteAttempt,
    redirection: RequestRefused,
    sign: SignFunction,
) -> "Response | _ForwardFailed":
    """Forward ``write``, which ``request`` with ``body`` contains, as ``attempt`` to the worker in ``redirection``.
    Returns that worker's response unless it is a 503. Without any time left the write is not sent.

    :raises ResponseMissingError: when the write was sent, no response has come, and the write cannot be looked up.
    :raises WorldError: when the other worker's URL is invalid.
    """
    if attempt.time_left_ms == 0:
        return _ForwardFailed(reason="no time was left to send the request")
    try:
        response = await forward_to_worker(
            http_client,
            request,
            body,
            redirection,
            sign,
            headers=_attempt_headers(attempt),
            timeout_s=attempt.time_left_ms / 1000 + RESPONSE_MARGIN_S,
        )
    except RequestNotSentError as error:
        return _ForwardFailed(reason=str(error))
    except ResponseMissingError as error:
        if not isinstance(write, Write):
            raise
        return _ForwardFailed(reason=str(error), may_have_been_performed=True)
    if response.status_code != 503:
        return response
    return _ForwardFailed(reason=f"it responds {response.status_code}", response=response)


def _time_left_ms(ends_s: float) -> int:
    """The milliseconds until ``ends_s``, a time of the event loop's clock; negative when that is over."""
    return int((ends_s - asyncio.get_running_loop().time()) * 1000)


def _forwarding_timeout_refusal(redirection: RequestRefused, failure: str, began_at_ms: int) -> RequestRefused:
    """The refusal of a write whose time limit ended while this worker tried to forward the write. ``redirection``: the
    herder's response with the URL of the other worker. ``failure``: why the last attempt has failed. ``began_at_ms``:
    when the first attempt to forward began, in milliseconds since the Unix epoch."""
    receiver = "leader" if redirection.problem is Problem.NOT_LEADER else "worker"
    refusal = timeout_refusal(f"sending the request to the {receiver} at {redirection.redirect_url}", began_at_ms)
    return replace(refusal, message=f"{refusal.message} The last attempt has failed: {failure}")


def _answer_or_unknown_earlier_outcome(answer: Answer, last: WriteAttempt) -> Answer:
    """The client's response to a write: ``answer``, the response to the attempt ``last``. But it is OUTCOME_UNKNOWN if
    an earlier attempt may have taken effect, and ``answer`` (a timeout or a 503) only shows that ``last`` had no
    effect."""
    if not last.is_repeat or not isinstance(answer, RequestRefused):
        return answer
    if answer.problem is not Problem.TIMED_OUT and STATUS_BY_PROBLEM[answer.problem] != 503:
        return answer
    message = (
        "No response came after the request was sent to the leader, and its outcome could not be looked up: the "
        f"request may have taken effect; read the connector to find out. {answer.message}"
    )
    return RequestRefused(problem=Problem.OUTCOME_UNKNOWN, message=message)


def _first_attempt(request: Request, time_limit_ms: int) -> WriteAttempt:
    """The first attempt of this worker to perform the write in ``request``. In a request that another worker has
    forwarded, that worker describes the attempt by headers; otherwise it is a new attempt with the time limit
    ``time_limit_ms``."""
    headers = request.headers
    id_ = headers.get(_REQUEST_ID_HEADER, "") if FORWARD_PARAMETER in request.query_params else ""
    if not re.fullmatch("[0-9a-f]{32}", id_):
        return WriteAttempt(id=ClientRequestId(uuid.uuid4().hex), time_left_ms=time_limit_ms)
    time_left = headers.get(_TIME_LEFT_HEADER, "")
    if re.fullmatch("[0-9]{1,9}", time_left):
        time_limit_ms = min(time_limit_ms, int(time_left))
    return WriteAttempt(
        id=ClientRequestId(id_), time_left_ms=time_limit_ms, is_repeat=headers.get(_REPEATED_HEADER, "") == "true"
    )


def _attempt_headers(attempt: WriteAttempt) -> dict[str, str]:
    """The headers that describe ``attempt`` to the other worker, to which the write is sent."""
    headers = {_REQUEST_ID_HEADER: attempt.id, _TIME_LEFT_HEADER: str(attempt.time_left_ms)}
    return {**headers, _REPEATED_HEADER: "true"} if attempt.is_repeat else headers
