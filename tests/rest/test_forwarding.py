"""What a worker forwards to the leader, which here is a server that records each request, and what it returns."""

import asyncio
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse, Response

from coterie.herder.requests.kinds import Answer, Request
from coterie.herder.requests.writes import WriteAttempt
from coterie.rest import writes
from coterie.rest.endpoints import ENDPOINTS, AnsweredBy, Operation, Role
from coterie.rest.leader import forward_to_worker
from coterie.wire.connect import ConnectProtocol
from tests.rest.recording_leader import BODIES, RecordingLeader, follower_of
from tests.rest.served import JSON, ServedWorker

CLIENT_HEADERS = {
    "Authorization": "Basic eDp5",
    "If-Match": '"7"',
    "X-Connect-Authorization": "c2ln",
    "X-Connect-Request-Signature-Algorithm": "HmacSHA256",
}


async def test_the_leader_receives_the_headers_that_it_needs(follower: ServedWorker, leader: RecordingLeader) -> None:
    not_forwarded = {"Cookie": "secret", "X-Coterie-User": "ada", "X-Coterie-Request-Id": "0" * 32}
    await follower.ask("DELETE", "/connectors/a?x=1", raw=b"", headers={**CLIENT_HEADERS, **not_forwarded})
    [(method, path, query, headers)] = leader.requests
    assert (method, path, query) == ("DELETE", b"/connectors/a", b"x=1&forward=true")
    assert CLIENT_HEADERS.items() <= {name.title(): value for name, value in headers.items()}.items()
    assert "cookie" not in headers
    assert headers.get("x-coterie-user") != "ada", "only the worker itself names a user"
    assert headers["x-coterie-request-id"] != "0" * 32, "a client may send the same id with several requests"


async def test_repeated_headers_are_forwarded_joined(follower: ServedWorker, leader: RecordingLeader) -> None:
    tags = [("If-Match", '"6"'), ("If-Match", '"7"')]
    async with httpx.AsyncClient() as client:
        await client.delete(f"{follower.url}/connectors/a", headers=[*JSON.items(), *tags])
    [(*_, headers)] = leader.requests
    assert headers["if-match"] == '"6", "7"'


@pytest.mark.parametrize("path", ["/connectors/a%252Fb", "/connectors/%2E%2E", "/connectors/%F0%9F%98%80%3Bx"])
async def test_a_name_is_forwarded_as_it_was_sent(follower: ServedWorker, leader: RecordingLeader, path: str) -> None:
    await follower.ask("DELETE", path)
    assert [raw_path for _, raw_path, _, _ in leader.requests] == [path.encode()]


async def test_the_client_receives_the_leaders_status_body_and_headers(
    follower: ServedWorker, leader: RecordingLeader
) -> None:
    headers = {"ETag": '"8"', "Retry-After": "3", "Location": "/connectors/a", "X-Internal": "x"}
    leader.response = JSONResponse({"error_code": 503, "message": "later"}, status_code=503, headers=headers)
    answer = await follower.ask("DELETE", "/connectors/a")
    assert (answer.status_code, answer.json()) == (503, {"error_code": 503, "message": "later"})
    assert [answer.headers.get(name) for name in headers] == ['"8"', "3", "/connectors/a", None]


@pytest.mark.parametrize(("forward", "sent"), [("", b"true"), ("?forward=true", b"false"), ("?forward=TRUE", b"false")])
async def test_a_request_is_forwarded_twice_at_most(
    follower: ServedWorker, leader: RecordingLeader, forward: str, sent: bytes
) -> None:
    await follower.ask("DELETE", f"/connectors/a{forward}")
    assert [query for _, _, query, _ in leader.requests] == [b"forward=" + sent]
    leader.requests.clear()
    for last in ("?forward=false", "?forward=no", "?forward="):
        assert (await follower.ask("DELETE", f"/connectors/a{last}")).status_code == 503
    assert not leader.requests


async def test_exactly_the_requests_are_forwarded_that_the_table_of_endpoints_gives_to_the_leader(
    follower: ServedWorker, leader: RecordingLeader
) -> None:
    # The owner of a task or of an order is found in the group, which this leader does not know; requests of workers are
    # signed, and each worker that receives one checks the signature first.
    endpoints = [one for one in ENDPOINTS if one.answered_by is not AnsweredBy.OWNER and one.role is not Role.WORKER]
    expected = {endpoint.operation for endpoint in endpoints if endpoint.answered_by is AnsweredBy.LEADER}
    forwarded: set[Operation] = set()
    for endpoint in endpoints:
        leader.requests.clear()
        path = endpoint.path.replace("{connector}", "a").replace("{plugin}", "X").replace("{logger}", "x")
        answer = await follower.ask(endpoint.method, path, BODIES.get(endpoint.operation))
        assert answer.status_code not in (405, 415), path
        if leader.requests:
            forwarded.add(endpoint.operation)
    assert forwarded == expected


# -- writes that are sent again ---------------------------------------------------------------------------------------


async def test_a_write_that_the_leader_answers_503_is_sent_again(
    follower: ServedWorker, leader: RecordingLeader
) -> None:
    leader.busy_responses = 2
    assert (await follower.ask("DELETE", "/connectors/a")).status_code == 204
    ids = [headers["x-coterie-request-id"] for _, _, _, headers in leader.requests]
    assert (len(ids), len(set(ids))) == (3, 1)
    assert not any("x-coterie-repeated" in headers for _, _, _, headers in leader.requests), "nothing was written"
    times = [int(headers["x-coterie-time-left"]) for _, _, _, headers in leader.requests]
    assert times == sorted(times, reverse=True)
    assert 0 < times[-1] < times[0] <= 2_000


async def test_a_write_whose_connection_breaks_is_repeated_as_such_with_its_id(
    follower: ServedWorker, leader: RecordingLeader
) -> None:
    leader.broken_connections = 1
    leader.busy_responses = 1
    body = {"name": "a", "config": {"connector.class": "X"}}
    assert (await follower.ask("POST", "/connectors", body)).status_code == 204
    sent = [headers for _, _, _, headers in leader.requests]
    assert len({headers["x-coterie-request-id"] for headers in sent}) == 1
    assert [headers.get("x-coterie-repeated") for headers in sent] == [None, "true", "true"]


async def test_a_write_without_a_response_is_500_with_the_reason_that_its_outcome_is_unknown(
    follower: ServedWorker, leader: RecordingLeader
) -> None:
    leader.broken_connections = 100
    answer = await follower.ask("PUT", "/connectors/a/config", {"connector.class": "X"})
    assert answer.status_code == 500
    assert "may have taken effect; read the connector to find out" in answer.json()["message"]
    assert "retry-after" not in answer.headers


async def test_a_leader_that_may_be_a_worker_of_connect_receives_no_write_twice(leader: RecordingLeader) -> None:
    async with follower_of(leader, ConnectProtocol.SESSIONED) as follower:
        leader.broken_connections = 1
        answer = await follower.ask("POST", "/connectors", {"name": "a", "config": {"connector.class": "X"}})
    assert answer.status_code == 500
    assert "It is unknown whether the request has taken effect" in answer.json()["message"]
    assert len(leader.requests) == 1


# -- the time limit of a write ----------------------------------------------------------------------------------------


def let_herder_wait_before_each_answer_to_a_write(worker: ServedWorker, wait_s: float) -> None:
    """As a herder does that does not know yet who leads the group."""
    ask = worker.running.worker.ask

    async def ask_later(request: Request, attempt: WriteAttempt | None = None) -> Answer:
        if attempt is None:
            return await ask(request)
        await asyncio.sleep(wait_s)
        return await ask(request, attempt)

    worker.running.worker.ask = ask_later  # type: ignore[method-assign]


async def test_the_time_that_the_herder_waits_before_it_names_the_leader_is_taken_from_the_time_limit(
    follower: ServedWorker, leader: RecordingLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeouts_s: list[float] = []

    async def forward(*arguments: Any, timeout_s: float, **options: Any) -> Response:
        timeouts_s.append(timeout_s)
        return await forward_to_worker(*arguments, timeout_s=timeout_s, **options)

    monkeypatch.setattr(writes, "forward_to_worker", forward)
    let_herder_wait_before_each_answer_to_a_write(follower, 0.3)
    leader.busy_responses = 1
    assert (await follower.ask("DELETE", "/connectors/a")).status_code == 204
    times_left_ms = [int(headers["x-coterie-time-left"]) for _, _, _, headers in leader.requests]
    assert len(times_left_ms) == 2
    # The time limit is 2 s; a second wait and the pause follow the first response.
    assert 0 < times_left_ms[0] <= 1_700
    assert 0 < times_left_ms[1] <= times_left_ms[0] - 300 - writes.RETRY_PAUSE_MS
    assert timeouts_s == [time_ms / 1000 + writes.RESPONSE_MARGIN_S for time_ms in times_left_ms]


async def test_a_write_is_not_forwarded_after_its_time_limit(follower: ServedWorker, leader: RecordingLeader) -> None:
    let_herder_wait_before_each_answer_to_a_write(follower, 2.1)
    answer = await follower.ask("DELETE", "/connectors/a")
    assert answer.status_code == 500
    assert f"sending the request to the leader at {leader.url}" in answer.json()["message"]
    assert answer.json()["message"].endswith("The last attempt has failed: no time was left to send the request")
    assert leader.requests == []
