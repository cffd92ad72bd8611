"""The audit log: which worker writes the line of a forwarded request, and what the lines of all mutations contain."""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest
from starlette.responses import JSONResponse

from coterie.config.secrets import masked_config
from coterie.rest import audit
from coterie.rest.endpoints import ENDPOINTS, Operation
from coterie.rest.leader import AUDITED_HEADER
from coterie.wire.connect import ConnectProtocol
from tests.rest.recording_leader import BODIES, RecordingLeader, let_lead
from tests.rest.served import ServedCluster, ServedWorker
from tests.worker.simulated import until

CONFIG = {"connector.class": "SimulatedSource", "tasks.max": "1", "db.password": "hunter2"}
HIDDEN = {**CONFIG, "db.password": "[hidden]"}
LOGGER = "tests.audit"


@pytest.fixture(autouse=True)
def audit_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.INFO, "coterie.audit")
    yield
    logging.root.manager.loggerDict.pop(LOGGER, None)


@pytest.fixture
async def cluster() -> AsyncIterator[ServedCluster]:
    async with ServedCluster(protocol=ConnectProtocol.STATIC) as cluster:
        yield cluster


def audit_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == "coterie.audit"]


def results(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int]]:
    """The operation and status of each line."""
    return [(line["operation"], line["status"]) for line in audit_lines(caplog)]


async def served_worker(cluster: ServedCluster, *, is_leader: bool) -> ServedWorker:
    """Serve two workers; returns the leader or the follower."""
    workers = [await cluster.serve() for _ in range(2)]
    return next(worker for worker in workers if (worker.running is cluster.leader) == is_leader)


# -- forwarded requests -----------------------------------------------------------------------------------------------


async def test_a_worker_that_performs_a_write_after_another_leaders_503_writes_the_line(
    cluster: ServedCluster, leader: RecordingLeader, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.request_timeout_ms = 30_000
    worker = await cluster.serve()
    await let_lead(leader, worker)
    leader.response = JSONResponse({}, status_code=503, headers={AUDITED_HEADER: "true"})
    creation = asyncio.create_task(worker.ask("POST", "/connectors", {"name": "a", "config": CONFIG}))
    await until(lambda: leader.requests != [])
    await cluster.serve()  # The rebalance makes `worker` the leader again.
    assert (await creation).status_code == 201
    (line,) = audit_lines(caplog)
    assert (line["operation"], line["connector"], line["status"]) == ("create_connector", "a", 201)


async def test_a_worker_that_gives_up_after_the_leaders_503_writes_the_line(
    follower: ServedWorker, leader: RecordingLeader, caplog: pytest.LogCaptureFixture
) -> None:
    leader.response = JSONResponse({}, status_code=503, headers={AUDITED_HEADER: "true"})
    deletion = asyncio.create_task(follower.ask("DELETE", "/connectors/a"))
    await until(lambda: leader.requests != [])
    leader.broken_connections = 1
    await until(lambda: leader.broken_connections == 0)
    assert (await deletion).status_code == 500
    assert results(caplog) == [("delete_connector", 500)]
    assert "may have taken effect" in audit_lines(caplog)[0]["message"]


@pytest.mark.parametrize("status", [201, 409, 503])
async def test_a_response_with_the_header_leaves_no_second_line_and_the_client_does_not_receive_the_header(
    follower: ServedWorker, leader: RecordingLeader, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    leader.response = JSONResponse({}, status_code=status, headers={AUDITED_HEADER: "true"})
    answer = await follower.ask("PUT", "/connectors/a/config", CONFIG)
    assert (answer.status_code, answer.headers.get(AUDITED_HEADER)) == (status, None)
    assert audit_lines(caplog) == []


async def test_the_worker_that_forwards_to_a_leader_of_kafka_connect_writes_the_line(
    follower: ServedWorker, leader: RecordingLeader, caplog: pytest.LogCaptureFixture
) -> None:
    leader.response = JSONResponse({"name": "a", "config": CONFIG, "tasks": [], "type": "source"}, status_code=201)
    assert (await follower.ask("PUT", "/connectors/a/config", CONFIG)).status_code == 201
    leader.response = JSONResponse({"error_code": 404, "message": "Connector b not found"}, status_code=404)
    assert (await follower.ask("DELETE", "/connectors/b")).status_code == 404
    performed, refused = audit_lines(caplog)
    assert (performed["connector"], performed["status"], performed["after"]) == ("a", 201, HIDDEN)
    assert (refused["connector"], refused["status"], refused["message"]) == ("b", 404, "Connector b not found")
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    "body",
    [b"<html>", b"[1]", b'{"config": 1}', b'{"config": {"a": null}}', b"[" * 100_000],
    ids=["no JSON", "no object", "no config", "a null value", "too deep"],
)
async def test_a_leader_that_responds_in_another_form_still_leaves_a_line(
    follower: ServedWorker, leader: RecordingLeader, caplog: pytest.LogCaptureFixture, body: bytes
) -> None:
    leader.response = JSONResponse(None, status_code=200)
    leader.response.body = body
    leader.response.headers["content-length"] = str(len(body))
    assert (await follower.ask("PUT", "/connectors/a/config", CONFIG)).content == body
    assert results(caplog) == [("put_config", 200)]


@pytest.mark.parametrize("forward", ["", "?forward=true"])
async def test_only_a_forwarded_request_has_the_header_in_its_response(cluster: ServedCluster, forward: str) -> None:
    worker = await cluster.serve()
    expected = "true" if forward else None
    for method, path, status in [
        ("PUT", "/connectors/a/config", 201),
        ("DELETE", "/connectors/nope", 404),
        ("POST", "/connectors/a", 405),
    ]:
        answer = await worker.ask(method, path + forward, CONFIG if method == "PUT" else None)
        has_line = status != 405
        assert (answer.status_code, answer.headers.get(AUDITED_HEADER)) == (status, expected if has_line else None)


async def test_an_order_that_was_forwarded_twice_has_one_line(
    cluster: ServedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    workers = [await cluster.serve() for _ in range(3)]
    first, named = (worker for worker in workers if worker.running is not cluster.leader)
    path = f"/coterie/workers/{named.url.removeprefix('http://')}/drain"
    answer = await first.ask("DELETE", path)
    assert (answer.status_code, answer.json()["life"]) == (202, named.running.worker.boot_id)
    assert AUDITED_HEADER not in answer.headers
    assert results(caplog) == [("uncordon_worker", 202)]


async def test_an_internal_error_of_the_leader_has_one_line(
    cluster: ServedCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = await served_worker(cluster, is_leader=False)

    def fail(*_: object) -> object:
        raise RuntimeError("a bug")

    monkeypatch.setattr("coterie.rest.views.written_connector_json", fail)
    assert (await follower.ask("PUT", "/connectors/a/config", CONFIG)).status_code == 500
    assert results(caplog) == [("put_config", 500)]


# -- what the lines contain -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_forwarded", [False, True])
async def test_the_line_of_changed_offsets_contains_the_requested_offsets(
    cluster: ServedCluster, caplog: pytest.LogCaptureFixture, is_forwarded: bool
) -> None:
    worker = await served_worker(cluster, is_leader=not is_forwarded)
    await worker.ask("PUT", "/connectors/a/config", CONFIG)
    await worker.until_running("a", 1)
    url = "jdbc:pg://ada:hunter2@host"
    offsets = [
        {"partition": {"filename": "/in.txt"}, "offset": {"position": 5}},
        {"partition": {"filename": url}, "offset": None},
    ]
    refused = await worker.ask("PATCH", "/connectors/a/offsets", {"offsets": offsets})
    assert refused.status_code == 400, "the connector is not stopped"
    await worker.ask("PUT", "/connectors/a/stop")
    assert (await worker.ask("PATCH", "/connectors/a/offsets", {"offsets": offsets})).status_code == 200
    assert (await worker.ask("DELETE", "/connectors/a/offsets")).status_code == 200
    lines = audit_lines(caplog)
    assert [line["operation"] for line in lines] == [
        "put_config",
        "change_offsets",
        "stop_connector",
        "change_offsets",
        "reset_offsets",
    ]
    assert "after" not in lines[1]
    assert "after" not in lines[2]
    hidden = {"partition": {"filename": "[hidden]"}, "offset": None}
    assert lines[3]["after"] == {"offsets": [offsets[0], hidden]}
    assert lines[4]["after"] is None
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("is_forwarded", [False, True])
async def test_the_line_of_a_creation_contains_the_initial_state_and_offsets(
    cluster: ServedCluster, caplog: pytest.LogCaptureFixture, is_forwarded: bool
) -> None:
    worker = await served_worker(cluster, is_leader=not is_forwarded)
    offsets = [{"partition": {"filename": "jdbc:pg://ada:hunter2@host"}, "offset": {"position": 5}}]
    new = {"name": "a", "config": CONFIG, "initial_state": "STOPPED", "initial_offsets": offsets}
    assert (await worker.ask("POST", "/connectors", new)).status_code == 201
    assert (await worker.ask("POST", "/connectors", {"name": "b", "config": CONFIG})).status_code == 201
    with_both, with_neither = (line for line in audit_lines(caplog) if line["operation"] == "create_connector")
    hidden = [{"partition": {"filename": "[hidden]"}, "offset": {"position": 5}}]
    assert with_both["after"] == {**HIDDEN, "name": "a", "initial_state": "STOPPED", "initial_offsets": hidden}
    assert with_neither["after"] == {**HIDDEN, "name": "b"}
    assert "hunter2" not in caplog.text


async def test_the_line_of_a_creation_contains_the_name_also_beside_a_number_of_thousands_of_digits(
    cluster: ServedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await cluster.serve()
    raw = b'{"name": "a", "config": {"connector.class": "X", "x": %s}}' % (b"9" * 5_000)
    assert (await worker.ask("POST", "/connectors", raw=raw)).status_code == 201
    assert [line.get("connector") for line in audit_lines(caplog)] == ["a"]


@pytest.mark.parametrize(("name", "stored"), [(5, "5"), (True, "true"), (" flights ", "flights")])
async def test_the_line_of_a_creation_contains_the_name_of_the_created_connector(
    cluster: ServedCluster, caplog: pytest.LogCaptureFixture, name: object, stored: str
) -> None:
    worker = await cluster.serve()
    assert (await worker.ask("POST", "/connectors", {"name": name, "config": CONFIG})).json()["name"] == stored
    assert [line["connector"] for line in audit_lines(caplog)] == [stored]


async def test_a_validation_has_no_line(cluster: ServedCluster, caplog: pytest.LogCaptureFixture) -> None:
    worker = await cluster.serve()
    validated = await worker.ask("PUT", "/connector-plugins/SimulatedSource/config/validate", CONFIG)
    assert validated.status_code == 200, validated.text
    assert audit_lines(caplog) == []


async def test_a_large_body_is_not_parsed_on_the_event_loop(
    cluster: ServedCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop sends the heartbeats, and parsing 8 MB for the audit log takes about two seconds."""
    threads: list[str] = []

    def observed_mask(fields: Mapping[str, str]) -> dict[str, str]:
        if "padding" in fields:
            threads.append(threading.current_thread().name)
        return masked_config(fields)

    monkeypatch.setattr(audit, "masked_config", observed_mask)
    worker = await cluster.serve()
    raw = json.dumps({"name": "a", "config": CONFIG, "initial_state": "STOPPED", "padding": "x" * 100_000}).encode()
    assert (await worker.ask("POST", "/connectors", raw=raw)).status_code == 400
    assert threads == ["request bodies_0"]
    assert [(line["connector"], line["status"]) for line in audit_lines(caplog)] == [("a", 400)]


@pytest.mark.parametrize(("query", "added"), [("", {}), ("?scope=cluster", {"scope": "cluster"})])
async def test_the_line_of_a_loggers_level_contains_the_level(
    cluster: ServedCluster, caplog: pytest.LogCaptureFixture, query: str, added: Mapping[str, str]
) -> None:
    worker = await cluster.serve()
    await worker.ask("PUT", f"/admin/loggers/{LOGGER}{query}", {"level": "DEBUG"})
    await worker.ask("PUT", f"/admin/loggers/{LOGGER}{query}", {"level": "NONE"})
    performed, refused = audit_lines(caplog)
    del performed["status"]
    assert performed == {
        "user": None,
        "address": "127.0.0.1",
        "operation": "set_logger_level",
        "logger": LOGGER,
        "after": {"level": "DEBUG"},
        **added,
    }
    assert (refused["status"], "after" in refused) == (404, False)


async def test_the_line_of_an_invalid_config_contains_the_number_of_errors_and_no_value(
    cluster: ServedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await cluster.serve()
    await worker.ask("PUT", "/connectors/a/config", {**CONFIG, "b": None, "c": None})
    (line,) = audit_lines(caplog)
    assert line["message"] == ("Connector configuration is invalid and contains 2 error(s); the response lists them")


async def test_the_line_of_a_restart_contains_its_parameters(
    cluster: ServedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await cluster.serve()
    await worker.ask("POST", "/connectors/a/restart")
    await worker.ask("POST", "/connectors/a/restart?includeTasks=true&other=1")
    await worker.ask("POST", "/connectors/a/restart?includeTasks=true&onlyFailed=false")
    common = {"user", "address", "operation", "connector", "status", "message"}
    parameters = [{key: line[key] for key in line.keys() - common} for line in audit_lines(caplog)]
    assert parameters == [{}, {"includeTasks": "true"}, {"includeTasks": "true", "onlyFailed": "false"}]


@pytest.mark.parametrize("is_forwarded", [False, True])
async def test_each_mutation_of_the_table_of_endpoints_has_exactly_one_line(
    cluster: ServedCluster, caplog: pytest.LogCaptureFixture, is_forwarded: bool
) -> None:
    worker = await served_worker(cluster, is_leader=not is_forwarded)
    bodies = {
        **BODIES,
        Operation.CREATE_CONNECTOR: {"name": "a", "config": CONFIG},
        Operation.PUT_CONFIG: CONFIG,
        Operation.PUT_TASK_CONFIGS: [],
    }
    mutations = [endpoint for endpoint in ENDPOINTS if endpoint.changes_state]
    for endpoint in mutations:
        caplog.clear()
        path = endpoint.path.replace("{connector}", "a").replace("{task}", "0").replace("{worker:path}", "nope")
        path = path.replace("{plugin}", "X").replace("{logger}", LOGGER)
        answer = await worker.ask(endpoint.method, path, bodies.get(endpoint.operation))
        assert answer.status_code not in (405, 415), path
        assert results(caplog) == [(endpoint.operation, answer.status_code)], answer.text
