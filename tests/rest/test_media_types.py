"""Content-Type and Accept of requests, at a worker over real HTTP."""

from collections.abc import AsyncIterator

import httpx
import pytest

from coterie.wire.connect import ConnectProtocol
from tests.rest.served import ServedCluster, ServedWorker


@pytest.fixture
async def worker() -> AsyncIterator[ServedWorker]:
    async with ServedCluster(protocol=ConnectProtocol.STATIC) as cluster:
        yield await cluster.serve()


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("", 200),
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("application/*", 200),
        ("*/*", 200),
        ("text/html,application/xhtml+xml,*/*;q=0.8", 200),
        ("*", 200),
        ("*/json", 200),
        ("text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2", 200),
        ("application/json;q=0", 200),
        ("text/html", 406),
        ("nonsense", 406),
        ("application/*+json", 406),
    ],
)
async def test_a_client_that_accepts_no_json_gets_406(worker: ServedWorker, accept: str, status: int) -> None:
    answer = await worker.ask("GET", "/connectors", raw=b"", headers={"Accept": accept})
    assert answer.status_code == status
    if status == 406:
        assert answer.json() == {"error_code": 406, "message": "HTTP 406 Not Acceptable"}


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        (None, b"", 404),
        ("application/json", b"", 404),
        ("application/json", b"{", 404),
        ("application/x-www-form-urlencoded", b"", 415),
        ("text/plain", b"x", 415),
        (None, b"x", 404),
        ("nonsense", b"", 400),
        ("*", b"", 400),
        ("application/json/x", b"", 400),
        ("application/json,application/json", b"", 400),
        ('application/json ;; charset="utf-8"; version=1;', b"", 404),
        ("application/*", b"", 404),
        ("*/*", b"", 404),
    ],
)
async def test_a_body_that_is_not_read_may_have_no_other_type_than_json(
    worker: ServedWorker, content_type: str | None, body: bytes, status: int
) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    answer = await worker.ask("PUT", "/connectors/nope/pause", raw=body, headers=headers)
    assert (answer.status_code, answer.json()["error_code"]) == (status, status)


async def test_a_body_that_is_not_read_may_be_sent_in_chunks_without_a_type(worker: ServedWorker) -> None:
    answer = await worker.send("PUT", "/connectors/nope/pause", b"", {"Transfer-Encoding": "chunked"})
    assert answer.status_code == 404


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "application/*"}, {"Content-Type": "*/*"}])
async def test_a_body_that_is_read_needs_its_exact_type(worker: ServedWorker, headers: dict[str, str]) -> None:
    answer = await worker.ask("PUT", "/connectors/nope/config", raw=b"{}", headers=headers)
    assert (answer.status_code, answer.json()["error_code"]) == (415, 415)


@pytest.mark.parametrize(
    ("content_type", "status", "status_of_server"),
    [
        ("application/json", 200, 200),
        ("Application/JSON; charset=utf-8", 200, 200),
        ("*/*", 200, 200),
        ("text/plain", 415, 200),
        ("application/x-www-form-urlencoded", 415, 200),
        ("application/problem+json", 415, 200),
        ("nonsense", 400, 400),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_read_may_have_no_other_type_than_json_except_of_the_server_itself(
    worker: ServedWorker, method: str, content_type: str, status: int, status_of_server: int
) -> None:
    """The statuses are those of Kafka Connect 4.3.1."""
    headers = {"Content-Type": content_type}
    for path in ("/connectors", "/connectors?expand=info", "/connector-plugins", "/admin/loggers"):
        assert (await worker.send(method, path, None, headers)).status_code == status
    for path in ("/", "/health", "/metrics", "/coterie/worker"):
        assert (await worker.send(method, path, None, headers)).status_code == status_of_server


async def test_several_types_are_refused(worker: ServedWorker) -> None:
    headers = httpx.Headers([("Content-Type", "application/json"), ("Content-Type", "text/plain")])
    answer = await worker.ask("PUT", "/connectors/nope/pause", raw=b"", headers=headers)
    assert (answer.status_code, answer.json()["error_code"]) == (400, 400)


async def test_a_request_with_a_whole_url_is_answered_as_one_with_its_path(worker: ServedWorker) -> None:
    """Some clients send it to each worker, since they take it for a proxy."""
    answer = await worker.send("GET", "http://worker.example:8083/connectors?expand=info", None, {})
    assert (answer.status_code, answer.json()) == (200, {})
    assert (await worker.send("GET", "HTTP://worker.example", None, {})).json()["version"]
    assert (await worker.send("GET", "/http://worker.example/connectors", None, {})).status_code == 400
