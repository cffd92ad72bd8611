"""The offsets of connectors over real HTTP, on simulated workers: statuses, messages and bodies are those that a real
Kafka Connect 4.3.1 was recorded with."""

import asyncio
import json
from typing import Any

import pytest

from coterie.nouns.connector_offsets import ConnectorOffset, OffsetsRefusedError
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.sources.python import PythonSource
from tests.rest.served import ServedCluster, ServedWorker
from tests.worker.simulated import until

CONFIG = {"connector.class": "SimulatedSource", "tasks.max": "2"}
FILE = {"filename": "/data/in.txt"}
EMPTY = "Partitions / offsets need to be provided for an alter offsets request"


async def stopped(cluster: ServedCluster, count: int = 1) -> list[ServedWorker]:
    """Workers with one stopped connector, ``src1``."""
    workers = [await cluster.serve() for _ in range(count)]
    await workers[0].ask("POST", "/connectors", {"name": "src1", "config": CONFIG})
    await workers[0].until_running("src1", 2)
    assert (await workers[0].ask("PUT", "/connectors/src1/stop")).status_code == 204
    return workers


async def alter(worker: ServedWorker, body: Any, name: str = "src1") -> tuple[int, str]:
    answer = await worker.ask("PATCH", f"/connectors/{name}/offsets", body)
    return answer.status_code, answer.json()["message"]


def offset(position: int | None, partition: dict[str, Any] | None = FILE) -> dict[str, Any]:
    return {"partition": partition, "offset": None if position is None else {"position": position}}


async def test_any_worker_shows_alters_and_resets_offsets(cluster: ServedCluster) -> None:
    workers = await stopped(cluster, 3)
    for number, writer in enumerate(workers):
        body = {"offsets": [offset(5), offset(number)]}
        assert await alter(writer, body) == (200, "The offsets for this connector have been altered successfully")
        for reader in workers:
            assert (await reader.get("/connectors/src1/offsets")).json() == {"offsets": [offset(number)]}
    assert await alter(workers[1], {"offsets": [offset(7, {"filename": "/b"}), offset(None)]}) == (
        200,
        "The offsets for this connector have been altered successfully",
    )
    assert (await workers[2].get("/connectors/src1/offsets")).json() == {"offsets": [offset(7, {"filename": "/b"})]}
    for worker in workers:
        reset = await worker.ask("DELETE", "/connectors/src1/offsets")
        message = "The offsets for this connector have been reset successfully"
        assert (reset.status_code, reset.json()) == (200, {"message": message})
        assert (await worker.get("/connectors/src1/offsets")).json() == {"offsets": []}


async def test_a_request_without_offsets_is_refused(cluster: ServedCluster) -> None:
    (worker,) = await stopped(cluster)
    bodies: list[dict[str, Any]] = [{"offsets": []}, {"offsets": None}, {}]
    for body in bodies:
        assert await alter(worker, body) == (400, EMPTY)
        assert await alter(worker, body, "nope") == (400, EMPTY)


BODIES_OF_OTHER_STRUCTURES: list[Any] = [
    {"offsets": {}},
    {"offsets": [1]},
    {"offsets": [offset(9)], "extra": 1},
    None,
    [],
    {"offsets": [{"x": 1}]},
]


async def test_a_body_of_another_structure_is_refused(cluster: ServedCluster) -> None:
    (worker,) = await stopped(cluster)
    for body in BODIES_OF_OTHER_STRUCTURES:
        status, message = await alter(worker, body)
        assert (status, bool(message)) == (400, True), body
        assert (await worker.get("/connectors/src1/offsets")).json() == {"offsets": []}


@pytest.mark.parametrize("number", [b"1e999", b"-1e999"])
async def test_an_offset_that_no_double_can_have_is_refused_and_changes_nothing(
    cluster: ServedCluster, number: bytes
) -> None:
    (worker,) = await stopped(cluster)
    raw = b'{"offsets": [{"partition": {"filename": "/a"}, "offset": {"position": %s}}]}' % number
    refused = await worker.ask("PATCH", "/connectors/src1/offsets", raw=raw)
    assert (refused.status_code, number.decode() in refused.json()["message"]) == (400, True)
    shown = await worker.get("/connectors/src1/offsets")
    assert (shown.status_code, shown.json()) == (200, {"offsets": []})


async def test_unknown_and_running_connectors_are_refused(cluster: ServedCluster) -> None:
    (worker,) = await stopped(cluster)
    for method in ("GET", "DELETE"):
        answer = await worker.ask(method, "/connectors/nope/offsets")
        assert (answer.status_code, answer.json()["message"]) == (404, "Connector nope not found")
    assert await alter(worker, {"offsets": [offset(None)]}, "nope") == (404, "Connector nope not found")
    assert (await worker.ask("PUT", "/connectors/src1/resume")).status_code == 202
    refused = (
        400,
        "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for the "
        "specified connector by issuing a 'PUT' request to the '/connectors/src1/stop' endpoint",
    )
    assert await alter(worker, {"offsets": [offset(9)]}) == refused
    answer = await worker.ask("DELETE", "/connectors/src1/offsets")
    assert (answer.status_code, answer.json()["message"]) == refused
    post = await worker.ask("POST", "/connectors/src1/offsets", {})
    assert (post.status_code, post.headers["allow"]) == (405, "HEAD,GET,PATCH,DELETE,OPTIONS")


async def test_what_the_source_refuses_is_400_and_changes_nothing(cluster: ServedCluster) -> None:
    (worker,) = await stopped(cluster)
    assert await alter(worker, {"offsets": [offset(1), offset(1, None)]}) == (400, "Partition objects cannot be null")
    assert (await worker.get("/connectors/src1/offsets")).json() == {"offsets": []}


async def test_a_connector_that_is_resumed_ends_the_change(cluster: ServedCluster) -> None:
    (worker,) = await stopped(cluster)
    runtime = worker.running.runtime
    runtime.forgotten.clear()
    gate = runtime.blocked["change offsets src1"] = asyncio.Event()
    change = asyncio.create_task(alter(worker, {"offsets": [offset(9)]}))
    await until(lambda: "change offsets src1" in runtime.at_gates)
    assert (await worker.ask("PUT", "/connectors/src1/resume")).status_code == 202
    await until(lambda: "src1" in runtime.forgotten)
    gate.set()
    status, message = await change
    assert (status, "The change of the offsets of src1 was ended" in message) == (500, True)


async def test_a_connector_is_created_at_its_initial_offsets(cluster: ServedCluster) -> None:
    workers = [await cluster.serve() for _ in range(2)]
    for number, worker in enumerate(workers):
        body = {"name": f"c{number}", "config": CONFIG, "initial_offsets": [offset(4)], "initial_state": "STOPPED"}
        created = await worker.ask("POST", "/connectors", body)
        message = "The offsets for this connector have been altered successfully"
        assert (created.status_code, created.json()["offsets_status"]) == (201, message)
        assert (await workers[0].get(f"/connectors/c{number}/offsets")).json() == {"offsets": [offset(4)]}
    plain = await workers[0].ask("POST", "/connectors", {"name": "plain", "config": CONFIG})
    assert "offsets_status" not in plain.json()


async def test_a_connector_with_invalid_initial_offsets_is_not_created(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    invalid: list[tuple[list[Any], str]] = [([], EMPTY), ([offset(4, None)], "cannot be null")]
    for initial_offsets, message in invalid:
        body = {"name": "c", "config": CONFIG, "initial_offsets": initial_offsets}
        refused = await worker.ask("POST", "/connectors", body)
        assert (refused.status_code, message in refused.json()["message"]) == (400, True)
        assert (await worker.get("/connectors")).json() == []


@pytest.mark.parametrize("number", ["1e999", "9" * 5_000])
async def test_any_number_is_accepted_in_a_config_beside_initial_offsets(cluster: ServedCluster, number: str) -> None:
    worker = await cluster.serve()
    initial_offsets = json.dumps([offset(4, {"filename": "/a", "-1.5e2": -1.5e2})])
    raw = f'{{"name": "c", "config": {{"connector.class": "X", "x": {number}}}, "initial_offsets": {initial_offsets}}}'
    created = await worker.ask("POST", "/connectors", raw=raw.encode())
    assert (created.status_code, created.json()["config"]["x"]) == (201, number)
    shown = await worker.get("/connectors/c/offsets")
    assert shown.json() == {"offsets": json.loads(initial_offsets)}


def test_a_python_source_has_no_offsets_and_refuses_each_change() -> None:
    config = PrefixedConfig(config={}, prefix="source.", is_prefix_optional=True)
    assert PythonSource.to_offsets({}) == ()
    with pytest.raises(OffsetsRefusedError, match="which only Spark reads"):
        PythonSource.parse_offsets(config, [ConnectorOffset(partition={"a": 1}, offset=None)])
