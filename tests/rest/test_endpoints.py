"""What follows from the table of endpoints, at a worker over real HTTP: every path with every method."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from coterie.rest.endpoints import ENDPOINTS, JSON, TEXT, Endpoint
from coterie.rest.routing import AllEndpointsRoute
from coterie.wire.connect import ConnectProtocol
from tests.rest.served import ServedCluster, ServedWorker

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
PATHS = sorted({endpoint.path for endpoint in ENDPOINTS})


@pytest.fixture
async def worker() -> AsyncIterator[ServedWorker]:
    async with ServedCluster(protocol=ConnectProtocol.STATIC) as cluster:
        yield await cluster.serve()


PAGE = Path(__file__).parents[2] / "docs" / "rest.md"


def methods_of(path: str) -> set[str]:
    return {endpoint.method for endpoint in ENDPOINTS if endpoint.path == path}


def filled(path: str) -> str:
    """``path`` with a value for each parameter."""
    return path.replace("{connector}", "nope").replace("{task}", "0").replace("{worker:path}", "nope")


async def test_every_path_has_exactly_the_methods_of_the_table(worker: ServedWorker) -> None:
    for path in PATHS:
        allowed = methods_of(path) | {"OPTIONS"} | ({"HEAD"} if "GET" in methods_of(path) else set())
        for end in ("", "/"):
            options = await worker.ask("OPTIONS", (filled(path) + end).replace("//", "/"))
            assert options.status_code == 200, path
            assert set(options.headers["allow"].split(",")) == allowed, path
            assert set(options.text.split(", ")) == allowed, path
        for method in (*METHODS, "TRACE", "FOO"):
            answer = await worker.ask(method, filled(path))
            assert (answer.status_code == 405) == (method not in allowed), (method, path)
            if method not in allowed:
                assert answer.json() == {"error_code": 405, "message": "HTTP 405 Method Not Allowed"}
                assert set(answer.headers["allow"].split(",")) == allowed


async def test_head_has_the_status_and_headers_of_get_without_its_body(worker: ServedWorker) -> None:
    for endpoint in ENDPOINTS:
        if endpoint.method != "GET":
            continue
        path = filled(endpoint.path)
        head, get = await worker.ask("HEAD", path), await worker.ask("GET", path)
        assert (head.status_code, head.content) == (get.status_code, b""), path
        content_type = {JSON: JSON, TEXT: CONTENT_TYPE_PLAIN_0_0_4}[endpoint.response_media_type]
        assert head.headers["content-type"] == get.headers["content-type"] == content_type, path
        assert int(head.headers["content-length"]) > 0


def test_every_endpoint_has_one_handler() -> None:
    async def handler(_: object) -> object:
        raise NotImplementedError

    operations = {endpoint.operation: handler for endpoint in ENDPOINTS}
    first = ENDPOINTS[0]
    missing = {operation: handler for operation in operations if operation is not first.operation}
    for resources in ([missing], [operations, {first.operation: handler}]):
        with pytest.raises(AssertionError, match=first.operation):
            AllEndpointsRoute(ENDPOINTS, resources, None)  # type: ignore[arg-type]


def test_a_request_has_a_body_only_where_its_method_may_have_one() -> None:
    def needs_no_body(endpoint: Endpoint) -> bool:
        return endpoint.method in ("GET", "DELETE")

    assert not [
        endpoint for endpoint in ENDPOINTS if needs_no_body(endpoint) and endpoint.request_body_type is not None
    ]
    assert not [
        endpoint
        for endpoint in ENDPOINTS
        if set(endpoint.success_statuses) == {204} and endpoint.response_body_type is not None
    ]


def documented(endpoint: Endpoint) -> str:
    """The row of the endpoint in the table of ``docs/rest.md``."""
    query = f"?{'=…&'.join(endpoint.type_by_query_parameter)}=…" if endpoint.type_by_query_parameter else ""
    path = endpoint.path.replace(":path", "")
    statuses = ", ".join(map(str, endpoint.success_statuses)) or "none: it is always refused"
    answered_by = endpoint.answered_by.value.replace("_", " ")
    return f"| `{endpoint.method} {path}{query}` | {endpoint.role.value} | {answered_by} | {statuses} |"


def test_the_documentation_has_exactly_the_endpoints_of_the_table() -> None:
    section = PAGE.read_text().partition("## All endpoints\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [documented(endpoint) for endpoint in ENDPOINTS]
