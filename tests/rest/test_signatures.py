"""Signed requests between workers, over real HTTP, beside those that a real Kafka Connect 4.3.1 sent."""

import asyncio
import base64
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from coterie.herder import config_records
from coterie.herder.requests.views import DescribeWorker, WorkerView
from coterie.herder.seams import LeaderClient
from coterie.herder.session_keys import SessionKey, SessionKeySettings, SigningKey, decode_base64_or_raise
from coterie.nouns.ids import Incarnation, WorkerUrl
from coterie.nouns.jobs import ConnectorName
from coterie.rest.leader import INCARNATION_HEADER, HttpLeaderClient
from coterie.wire.connect import ConnectProtocol
from tests.rest.served import JSON, ServedCluster, ServedWorker
from tests.worker.simulated import until

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "vectors" / "connect-signed.json").read_text())
CONFIG = {"connector.class": "SimulatedSource", "tasks.max": "2"}
BODY = b'[{"share":"0 of 1"}]'
SIGNATURE, ALGORITHM = "X-Connect-Authorization", "X-Connect-Request-Signature-Algorithm"
UNSIGNED = "Internal request missing required signature"


def recorded_key() -> SessionKey:
    fields = RECORDED["session_key"]
    return SessionKey(
        key=decode_base64_or_raise(fields["key"]),
        algorithm=fields["algorithm"],
        created_at_ms=fields["creation-timestamp"],
    )


def written_keys(cluster: ServedCluster) -> list[tuple[str, int]]:
    """All session keys that were written, each with its time."""
    values = [json.loads(line.value) for line in cluster.config_log.lines if line.key == b"session-key" and line.value]
    return [(value["key"], value["creation-timestamp"]) for value in values]


def headers(key: bytes, body: bytes = BODY, algorithm: str = "HmacSHA256") -> dict[str, str]:
    mac = SigningKey(key=key, algorithm=algorithm).signature(body).mac
    return {SIGNATURE: base64.b64encode(mac).decode(), ALGORITHM: algorithm}


async def post(
    worker: ServedWorker, headers: Mapping[str, str], body: bytes = BODY, name: str = "orders"
) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.post(f"{worker.url}/connectors/{name}/tasks", content=body, headers={**JSON, **headers})


async def until_key_is_read(cluster: ServedCluster) -> None:
    """Wait until all workers have read the config log to its end, session keys included."""

    async def is_so() -> bool:
        views = [await one.worker.ask(DescribeWorker()) for one in cluster.workers]
        end = len(cluster.config_log.lines)
        return b"session-key" in cluster.config_log.latest() and all(
            isinstance(view, WorkerView) and view.config_offset == end for view in views
        )

    await until(is_so)


@pytest.fixture
async def sessioned() -> AsyncIterator[ServedCluster]:
    async with ServedCluster(protocol=ConnectProtocol.SESSIONED) as cluster:
        yield cluster


async def test_requests_recorded_from_a_real_connect_are_accepted(sessioned: ServedCluster) -> None:
    sessioned.session_keys = SessionKeySettings(ttl_ms=0)  # The recorded key is as old as the recording.
    await sessioned.config_log.append([config_records.session_key_line(recorded_key())])
    worker = await sessioned.serve()
    for exchange in RECORDED["signed"]:
        name, body = exchange["path"].split("/")[2], exchange["body"].encode()
        created = {"name": name, "initial_state": "PAUSED", "config": CONFIG}
        assert (await worker.ask("POST", "/connectors", created)).status_code == 201
        answer = await post(worker, exchange["headers"], body, name)
        assert (answer.status_code, answer.content) == (exchange["status"], b"")
        tasks = (await worker.get(f"/connectors/{name}/tasks")).json()
        assert [task["config"] for task in tasks] == json.loads(body)
        assert headers(recorded_key().key, body).items() <= exchange["headers"].items(), (
            "our signature differs from Connect's"
        )
        for wrong, (status, expected) in (
            ({}, RECORDED["unsigned_answer"]),
            (headers(b"another"), RECORDED["bad_signature_answer"]),
        ):
            answer = await post(worker, wrong, body, name)
            assert (answer.status_code, answer.json()) == (status, expected)
    assert sessioned.config_log.latest()[b"session-key"] == config_records.session_key_line(recorded_key()).value


async def test_invalid_internal_requests_get_connects_errors_in_connects_order(sessioned: ServedCluster) -> None:
    worker = await sessioned.serve()
    await worker.ask("POST", "/connectors", {"name": "orders", "initial_state": "PAUSED", "config": CONFIG})
    await until_key_is_read(sessioned)
    good = headers(sessioned.session_key())
    cases: list[tuple[Mapping[str, str], bytes, str, int, str]] = [
        ({}, b"{", "orders", 400, "The body is not JSON"),
        (good, b"{}", "orders", 400, "Cannot read a list of task configs"),
        ({}, BODY, "orders", 400, UNSIGNED),
        ({SIGNATURE: good[SIGNATURE]}, BODY, "orders", 400, UNSIGNED),
        ({ALGORITHM: good[ALGORITHM]}, BODY, "orders", 400, UNSIGNED),
        (
            {**good, ALGORITHM: "nope"},
            BODY,
            "orders",
            400,
            "names the MAC algorithm nope, which this worker does not have",
        ),
        ({**good, SIGNATURE: "a-b"}, BODY, "orders", 400, "The header X-Connect-Authorization cannot be read"),
        (headers(b"k", algorithm="HmacSHA512"), BODY, "orders", 400, "does not support the 'HmacSHA512' key signing"),
        (headers(b"k"), BODY, "orders", 403, "Internal request contained invalid signature."),
        (good, b"[]", "orders", 403, "Internal request contained invalid signature."),
        ({}, BODY, "nope", 400, UNSIGNED),
        (headers(b"k"), BODY, "nope", 403, "Internal request contained invalid signature."),
        (good, BODY, "nope", 404, "Connector nope not found"),
    ]
    for sent, body, name, status, message in cases:
        answer = await post(worker, sent, body, name)
        assert answer.status_code == answer.json()["error_code"] == status, (sent, body, name, answer.text)
        assert message in answer.json()["message"]
    assert (await worker.get("/connectors/orders/tasks")).json() == []
    assert (await post(worker, good)).status_code == 204


async def test_a_request_to_fence_tasks_needs_a_signature_and_is_refused(sessioned: ServedCluster) -> None:
    workers = [await sessioned.serve() for _ in range(2)]
    await workers[0].ask("POST", "/connectors", {"name": "orders", "initial_state": "PAUSED", "config": CONFIG})
    await until_key_is_read(sessioned)
    good = headers(sessioned.session_key(), b"")
    cases: list[tuple[Mapping[str, str], str, int, str]] = [
        ({}, "orders", 400, UNSIGNED),
        (headers(b"k", b""), "orders", 403, "Internal request contained invalid signature."),
        (good, "nope", 404, "Connector nope not found"),
        (good, "orders", 400, "The tasks of connector orders cannot be fenced by a request"),
    ]
    for worker in workers:
        for sent, name, status, message in cases:
            answer = await worker.ask("PUT", f"/connectors/{name}/fence", raw=b"", headers=sent)
            assert answer.status_code == answer.json()["error_code"] == status, (sent, name, answer.text)
            assert message in answer.json()["message"]


async def test_a_leader_without_a_session_key_returns_503(sessioned: ServedCluster) -> None:
    sessioned.config_log.broken = True
    worker = await sessioned.serve()
    answer = await post(worker, headers(b"k"))
    assert answer.status_code == 503
    assert "has not been able to read a session key from the config topic yet" in answer.json()["message"]
    sessioned.config_log.broken = False
    await until_key_is_read(sessioned)
    assert (await post(worker, headers(sessioned.session_key()))).status_code == 404


async def test_a_follower_forwards_a_signed_request_unchanged(sessioned: ServedCluster) -> None:
    workers = [await sessioned.serve() for _ in range(2)]
    follower = next(worker for worker in workers if worker.running is not sessioned.leader)
    await follower.ask("POST", "/connectors", {"name": "orders", "initial_state": "PAUSED", "config": CONFIG})
    await until_key_is_read(sessioned)
    odd = b'[ {"share" : "0 of 1"} ]'  # Encoding the parsed body again gives other bytes.
    assert (await post(follower, headers(sessioned.session_key(), odd), odd)).status_code == 204
    assert len((await follower.get("/connectors/orders/tasks")).json()) == 1
    assert (await post(follower, {})).json()["message"] == UNSIGNED


async def test_older_protocols_require_no_signature(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    await worker.ask("POST", "/connectors", {"name": "orders", "initial_state": "PAUSED", "config": CONFIG})
    answer = await post(worker, {})
    assert answer.status_code == (204 if cluster.protocol < ConnectProtocol.SESSIONED else 400)
    assert (b"session-key" in cluster.config_log.latest()) is (cluster.protocol >= ConnectProtocol.SESSIONED)


async def test_session_keys_are_renewed_without_a_rebalance_or_a_restart(sessioned: ServedCluster) -> None:
    sessioned.session_keys = SessionKeySettings(ttl_ms=40)
    begun_ms = time.time_ns() // 1_000_000
    workers = [await sessioned.serve() for _ in range(2)]
    await workers[0].ask("POST", "/connectors", {"name": "orders", "config": CONFIG})
    await until(lambda: sessioned.running_tasks() == ["orders-0", "orders-1"])
    rounds, renewed = sessioned.group.rounds, len(written_keys(sessioned))
    await until(lambda: len(written_keys(sessioned)) >= renewed + 5)
    keys, made_ms = zip(*written_keys(sessioned), strict=True)
    assert len(set(keys)) == len(keys)
    assert list(made_ms) == sorted(made_ms)
    assert begun_ms <= made_ms[0] <= made_ms[-1] <= time.time_ns() // 1_000_000 + 1_000
    assert sessioned.group.rounds == rounds
    assert set(sessioned.starts().values()) == {1}


@pytest.mark.parametrize("receiver", ["leader", "follower"])
async def test_late_task_configs_of_a_deleted_connector_are_not_those_of_its_successor(
    sessioned: ServedCluster, receiver: str
) -> None:
    """The request was delayed while the connector was deleted and created again."""
    workers = [await sessioned.serve() for _ in range(2)]
    leader = next(worker for worker in workers if worker.running is sessioned.leader)
    asked = leader if receiver == "leader" else next(worker for worker in workers if worker is not leader)
    created = {"name": "orders", "initial_state": "PAUSED", "config": CONFIG}

    def incarnation() -> str:
        value = sessioned.config_log.latest()[b"connector-orders"]
        assert value is not None
        return str(json.loads(value)["incarnation"])

    assert (await leader.ask("POST", "/connectors", created)).status_code == 201
    former = incarnation()
    assert (await leader.ask("DELETE", "/connectors/orders")).status_code == 204
    assert (await leader.ask("POST", "/connectors", created)).status_code == 201
    await until_key_is_read(sessioned)
    signed = headers(sessioned.session_key())
    late = await post(asked, {**signed, INCARNATION_HEADER: former})
    assert late.status_code == 404
    assert "was deleted and created again after these task configs were made" in late.json()["message"]
    assert (await leader.get("/connectors/orders/tasks")).json() == []
    assert (await post(asked, {**signed, INCARNATION_HEADER: incarnation()})).status_code == 204
    assert (await post(asked, signed)).status_code == 204, "a worker of Kafka Connect sends no incarnation"


async def test_a_worker_sends_the_incarnation_beside_connects_own_request() -> None:
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(204)

    key = SigningKey(key=b"key", algorithm="HmacSHA256")
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        await HttpLeaderClient(client).publish_task_configs(
            WorkerUrl("http://h:1/"), ConnectorName("orders"), Incarnation("at 1/ü"), [{"share": "0"}], key
        )
    (request,) = sent
    body = b'[{"share": "0"}]'
    assert (request.method, request.url.path, request.content) == ("POST", "/connectors/orders/tasks", body)
    assert request.headers[INCARNATION_HEADER] == "at%201%2F%C3%BC"
    assert {name: request.headers[name] for name in (SIGNATURE, ALGORITHM)} == headers(b"key", body)


class BlockableLeaderClient(HttpLeaderClient):
    """Delays signed requests until ``unblock`` is set."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        super().__init__(client)
        self.blocked, self.unblock = asyncio.Event(), asyncio.Event()
        self.signed_with: list[bytes] = []

    async def publish_task_configs(
        self,
        leader_url: WorkerUrl,
        connector: ConnectorName,
        incarnation: Incarnation,
        configs: Sequence[Mapping[str, str]],
        signing_key: SigningKey | None,
    ) -> None:
        assert signing_key is not None
        self.signed_with.append(signing_key.key)
        self.blocked.set()
        await self.unblock.wait()
        await super().publish_task_configs(leader_url, connector, incarnation, configs, signing_key)


class BlockableCluster(ServedCluster):
    async def __aenter__(self) -> "BlockableCluster":
        await super().__aenter__()
        self.held = BlockableLeaderClient(self.client)
        return self

    def leader_client(self) -> LeaderClient:
        return self.held


async def test_a_key_renewed_during_a_request_causes_one_retry_without_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with BlockableCluster(protocol=ConnectProtocol.SESSIONED) as cluster:
        workers = [await cluster.serve() for _ in range(2)]
        for name in ("a", "b"):  # One for each worker; the follower's needs the leader.
            await workers[0].ask("POST", "/connectors", {"name": name, "config": CONFIG})
        await cluster.held.blocked.wait()
        older = cluster.session_key()
        newer = SessionKey(key=b"newer newer newer newer newer ne", algorithm="HmacSHA256", created_at_ms=2**42)
        await cluster.config_log.append([config_records.session_key_line(newer)])
        await until_key_is_read(cluster)
        cluster.held.unblock.set()
        await until(lambda: cluster.running_tasks() == ["a-0", "a-1", "b-0", "b-1"])
        assert cluster.held.signed_with == [older, newer.key]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not any("are sent to the leader again" in record.message for record in caplog.records), (
        "the retry was logged"
    )
    for key in (older, newer.key):
        assert base64.b64encode(key).decode() not in caplog.text
        assert repr(key)[2:-1] not in caplog.text
