"""Requests that a web page may not make a browser send: bodies that are not JSON, and mutations of another origin."""

import asyncio
import json
import socket
from collections.abc import Mapping

from coterie.config.rest import RestSettings
from coterie.rest.access import AccessRules
from coterie.rest.cross_origin import CrossOriginRules
from tests.rest.served import JSON, ServedCluster, ServedWorker

NEW = json.dumps({"name": "a", "config": {"connector.class": "SimulatedSource", "tasks.max": "1"}}).encode()
WITHOUT_BODY = [
    ("PUT", "/connectors/a/pause", 202),
    ("PUT", "/connectors/a/resume", 202),
    ("PUT", "/connectors/a/stop", 204),
    ("DELETE", "/connectors/a", 204),
]


async def create(worker: ServedWorker, headers: Mapping[str, str]) -> tuple[int, str]:
    """The status and the message; the message is empty if the connector was created."""
    answer = await worker.ask("POST", "/connectors", raw=NEW, headers=headers)
    error = answer.json()
    if answer.is_error:
        assert error.keys() == {"error_code", "message"}
        assert error["error_code"] == answer.status_code
        assert (await worker.get("/connectors")).json() == []
    return answer.status_code, error.get("message", "")


OTHER_CONTENT_TYPES = [
    "text/plain",
    "text/plain; application/json",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "application/jsonp",
    "",
]


async def test_a_body_that_is_not_declared_as_json_is_415(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    for headers in ({}, *({"Content-Type": content_type} for content_type in OTHER_CONTENT_TYPES)):
        status, message = await create(worker, headers)
        assert status == 415, headers
        assert message == "HTTP 415 Unsupported Media Type"


async def test_the_json_content_type_may_have_parameters(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    for content_type in ("application/json", "application/json;charset=utf-8", "Application/JSON ; a=b"):
        assert await create(worker, {"Content-Type": content_type}) == (201, ""), content_type
        assert (await worker.ask("DELETE", "/connectors/a")).status_code == 204


async def test_a_body_of_unknown_length_must_be_declared_as_json_too(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    host, port = worker.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /connectors HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n")
    writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(NEW), NEW))
    assert (await reader.read()).startswith(b"HTTP/1.1 415 ")
    writer.close()
    await writer.wait_closed()


async def test_a_mutation_without_a_body_needs_no_content_type(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    await create(worker, JSON)
    for method, path, status in WITHOUT_BODY:
        answer = await worker.ask(method, path, raw=b"", headers={})
        assert answer.status_code == status, (method, path, answer.text)


def foreign_origins(worker: ServedWorker) -> list[str]:
    port = worker.url.rpartition(":")[2]
    return [
        "null",
        "http://evil.example",
        f"http://evil.example:{port}",
        f"https://127.0.0.1:{port}",
        "http://127.0.0.1",
        f"http://127.0.0.1:{port}.evil.example",
        "http://[",
        "",
    ]


async def test_a_mutation_of_another_origin_is_403(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    for origin in foreign_origins(worker):
        status, message = await create(worker, {**JSON, "Origin": origin})
        assert status == 403, origin
        assert message.startswith(f"HTTP 403 Forbidden: the request comes from a page of {origin}. Only a page")
    await create(worker, JSON)
    orders = [("POST", "/coterie/workers/x/drain"), ("DELETE", "/coterie/workers/x/drain")]
    for method, path in [*(call[:2] for call in WITHOUT_BODY), *orders, ("POST", "/coterie/workers/x/restart")]:
        answer = await worker.ask(method, path, raw=b"", headers={"Origin": "http://evil.example"})
        assert (answer.status_code, answer.json()["error_code"]) == (403, 403), (method, path)
    assert (await worker.get("/connectors")).json() == ["a"]


async def test_a_mutation_of_the_same_origin_is_accepted(cluster: ServedCluster) -> None:
    worker = await cluster.serve(access=AccessRules(cross_origin=CrossOriginRules(own_hosts=["h"])))
    assert await create(worker, {**JSON, "Origin": worker.url}) == (201, "")
    for host, origin in (("h:80", "http://H"), ("h", "http://h:80"), ("[::1]:8083", "http://[::1]:8083")):
        headers = {"Host": host, "Origin": origin}
        answer = await worker.ask("PUT", "/connectors/a/pause", raw=b"", headers=headers)
        assert answer.status_code == 202, (host, origin, answer.text)


OWN_SETTINGS = RestSettings(
    listeners=("http://Listener.example:8083", "http://10.0.0.7:8084"),
    admin_listeners=("http://admin.example:8085",),
    rest_advertised_host_name="advertised.example",
)


async def test_a_page_counts_as_own_only_at_a_host_that_is_the_workers(cluster: ServedCluster) -> None:
    """With DNS rebinding, a page of a foreign domain has the same Host as Origin."""
    worker = await cluster.serve(access=AccessRules(cross_origin=CrossOriginRules(own_hosts=OWN_SETTINGS.own_hosts)))
    await create(worker, JSON)

    async def pause_status_and_message(host: str) -> tuple[int, str]:
        headers = {"Host": host, "Origin": f"http://{host}"}
        answer = await worker.ask("PUT", "/connectors/a/pause", raw=b"", headers=headers)
        return answer.status_code, answer.text

    local = ("127.0.0.1", "10.9.9.9:8083", "[::1]:8083", "localhost", "LOCALHOST:8083", "worker-1.localhost:8083")
    named = ("listener.example", "admin.example:8085", "advertised.example", f"{socket.gethostname()}:8083")
    for host in (*local, *named):
        assert (await pause_status_and_message(host))[0] == 202, host
    foreign = ("evil.example", "evil.example:8083", "localhost.evil.example", "notlocalhost", "127.0.0.1.evil.example")
    for host in foreign:
        status, message = await pause_status_and_message(host)
        assert status == 403, host
        assert "access.control.allow.origin" in message


async def test_a_foreign_name_of_the_worker_is_allowed_by_connects_key_and_programs_may_use_any_name(
    cluster: ServedCluster,
) -> None:
    rules = CrossOriginRules(allowed_origins=["http://proxy.example"], allowed_methods=["PUT"])
    worker = await cluster.serve(access=AccessRules(cross_origin=rules))
    await create(worker, JSON)
    statuses = [
        (await worker.ask("PUT", "/connectors/a/pause", raw=b"", headers=headers)).status_code
        for headers in (
            {"Host": "proxy.example", "Origin": "http://proxy.example"},
            {"Host": "evil.example", "Origin": "http://evil.example"},
            {"Host": "evil.example"},
        )
    ]
    assert statuses == [202, 403, 202]


async def test_reads_are_served_for_any_origin(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    await create(worker, JSON)
    for origin in foreign_origins(worker):
        answer = await worker.ask("GET", "/connectors", raw=b"", headers={"Origin": origin})
        assert (answer.status_code, answer.json()) == (200, ["a"])
