"""The API of simulated workers over real HTTP: what the recorded calls do not cover."""

import asyncio
import json

import pytest
from starlette.requests import Request

from coterie.herder.requests.refusals import Problem, RequestRefused
from coterie.herder.seams import PluginThreadsLost
from coterie.rest.problems import STATUS_BY_PROBLEM, HerderRefusal, error_response
from tests.rest.served import ServedCluster
from tests.worker.simulated import SimulatedRuntime, until

CONFIG = {"connector.class": "SimulatedSource", "tasks.max": "2"}


async def test_any_worker_accepts_any_write_and_every_worker_shows_it_at_once(cluster: ServedCluster) -> None:
    workers = [await cluster.serve() for _ in range(3)]
    for number, writer in enumerate(workers):
        name = f"c{number}"
        created = await writer.ask("POST", "/connectors", {"name": name, "config": CONFIG})
        assert created.status_code == 201
        assert created.headers["location"] == f"/connectors/{name}"
        for reader in workers:
            assert (await reader.get(f"/connectors/{name}/config")).json() == {**CONFIG, "name": name}
    for number, writer in enumerate(reversed(workers)):
        assert (await writer.ask("PUT", f"/connectors/c{number}/stop")).status_code == 204
        assert (await writer.ask("DELETE", f"/connectors/c{number}")).status_code == 204
        for reader in workers:
            assert (await reader.get(f"/connectors/c{number}")).status_code == 404


async def test_the_tasks_of_a_followers_connector_are_published_through_the_leader(cluster: ServedCluster) -> None:
    workers = [await cluster.serve() for _ in range(2)]
    for name in ("a", "b"):
        await workers[0].ask("POST", "/connectors", {"name": name, "config": CONFIG})
    for name in ("a", "b"):
        await workers[1].until_running(name, 2)
    listed = (await workers[1].get("/connectors?expand=info&expand=status")).json()
    owners = {listed[name]["status"]["connector"]["worker_id"] for name in ("a", "b")}
    assert len(owners) == 2, "each worker has one connector"


async def test_a_request_is_forwarded_at_most_twice(cluster: ServedCluster) -> None:
    workers = [await cluster.serve() for _ in range(2)]
    follower = next(worker for worker in workers if worker.running is not cluster.leader)
    refused = await follower.ask("POST", "/connectors?forward=false", {"name": "a", "config": CONFIG})
    assert (refused.status_code, refused.json()["error_code"]) == (503, 503)
    assert refused.headers["retry-after"] == "1"
    assert (await follower.ask("POST", "/connectors?forward=true", {"name": "a", "config": CONFIG})).is_success


@pytest.mark.parametrize("body", [{"name": "x"}, {}, {"name": "x", "config": None}])
async def test_a_new_connector_without_config_is_refused_with_the_name_of_the_field(
    cluster: ServedCluster, body: dict[str, str | None]
) -> None:
    worker = await cluster.serve()
    answer = await worker.ask("POST", "/connectors", body)
    message = (
        'Missing field "config", the object with the keys of the connector: a connector has name, config, '
        "initial_state and initial_offsets"
    )
    assert answer.json() == {"error_code": answer.status_code, "message": message}


async def test_an_unreachable_source_is_a_500_and_no_config_error(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    config = {**CONFIG, "unreachable": "the database at db:5432 refuses connections"}
    answer = await worker.ask("POST", "/connectors", {"name": "a", "config": config})
    assert answer.status_code == 500
    message = "Failed to validate the config: the database at db:5432 refuses connections"
    assert answer.json() == {"error_code": 500, "message": message}
    assert (await worker.get("/connectors")).json() == []


async def test_only_a_duplicate_or_an_impossible_order_is_a_409(cluster: ServedCluster) -> None:
    conflicts = {problem for problem, status in STATUS_BY_PROBLEM.items() if status == 409}
    assert conflicts == {Problem.ALREADY_EXISTS, Problem.NOT_POSSIBLE}, "Connect has no 409 for the latter"
    assert set(STATUS_BY_PROBLEM) == set(Problem)
    workers = [await cluster.serve() for _ in range(2)]
    for worker in workers:
        answer = await worker.ask("POST", "/connectors", {"name": "a", "config": CONFIG})
    assert answer.status_code == 409
    assert answer.json() == {"error_code": 409, "message": "Connector a already exists"}


async def test_a_write_during_a_rebalance_waits_for_its_end(classic_cluster: ServedCluster) -> None:
    worker = await classic_cluster.serve()
    classic_cluster.group.members.clear()  # Without members, the rebalance that begins now does not end.
    worker.running.simulated_membership.begin_endless_rebalance()
    write = asyncio.create_task(worker.ask("POST", "/connectors", {"name": "a", "config": CONFIG}))
    assert (await worker.get("/connectors")).json() == [], "a read waited for the rebalance"
    assert not write.done()
    worker.running.simulated_membership.enter()
    answer = await write
    assert answer.status_code == 201, answer.text


BAD_BODIES = [
    (b"", 400),
    (b"{", 400),
    (b"[]", 400),
    (b'"a"', 400),
    (b'{"name":"a"}', 400),
    (b'{"name":"a","config":[]}', 400),
    (b'{"name":"a","config":{"a":{}}}', 400),
    (b'{"name":"a","config":{"a":"\\ud800"}}', 400),
    (b'{"name":"a","config":{},"initial_state":"HIBERNATING"}', 400),
    (b'{"name":"a","config":{},"colour":"red"}', 400),
    (b'{"name":"a","config":{"a":NaN}}', 400),
    (b"[" * 100_000, 400),
    (b"\xff\xfe", 400),
    (b'{"name":"a","config":{"a":null}}', 400),
    (b'{"name":"a","config":{"name":"b"}}', 400),
    (b'{"name":"a","config":{"tasks.max":"1"}}', 400),
    (b'{"config":{"connector.class":"X"}}', 400),
    (b'{"name":"a/b","config":{"connector.class":"X"}}', 400),
    (b'{"name":"' + b"n" * 40_000 + b'","config":{"connector.class":"X"}}', 400),
    (b'{"name":"a\\nb","config":{"connector.class":"X"}}', 400),
]


async def test_bad_bodies_get_errors_in_connects_format(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    for raw, status in BAD_BODIES:
        answer = await worker.ask("POST", "/connectors", raw=raw)
        assert answer.status_code == status, (raw[:80], answer.text)
        assert answer.json().keys() == {"error_code", "message"}
        assert answer.json()["error_code"] == status
    assert (await worker.get("/connectors")).json() == []


async def test_every_wrong_key_is_named(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    answer = await worker.ask("PUT", "/connectors/a/config", {"connector.class": "X", "tasks.max": "0"})
    assert answer.status_code == 400
    assert answer.json()["message"] == (
        "Connector configuration is invalid and contains the following 1 error(s):\n"
        "Invalid value 0 for configuration tasks.max: Value must be at least 1\n"
        "You can also find the above list of errors at the endpoint "
        "`/connector-plugins/{connectorType}/config/validate`"
    )


async def test_numbers_and_booleans_become_strings_as_written(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    raw = b'{"connector.class": "SimulatedSource", "tasks.max": 1, "ratio": 1.50, "fast": true}'
    put = await worker.ask("PUT", "/connectors/a/config", raw=raw)
    assert put.status_code == 201
    assert (await worker.get("/connectors/a/config")).json() == {
        "connector.class": "SimulatedSource",
        "tasks.max": "1",
        "ratio": "1.50",
        "fast": "true",
        "name": "a",
    }


async def test_the_name_null_in_a_config_becomes_the_name_of_the_connector(cluster: ServedCluster) -> None:
    """Clients that write all fields of an object, also those without a value, send it."""
    worker = await cluster.serve()
    config = {"connector.class": "SimulatedSource", "name": None}
    post = await worker.ask("POST", "/connectors", {"name": "a", "config": config})
    put = await worker.ask("PUT", "/connectors/b/config", config)
    again = await worker.ask("PUT", "/connectors/b/config", config)
    assert [response.status_code for response in (post, put, again)] == [201, 201, 200]
    assert [response.json()["config"]["name"] for response in (post, put, again)] == ["a", "b", "b"]


UNUSUAL_NAMES = [
    "größe",
    "a b",
    "100%",
    "a%2Fb",
    "a;b",
    "a?b#c",
    "a\\b",
    "..",
    ".",
    "😀",
    "ü" * 127,
    "n" * 255,
    "a\xa0",
]


async def test_a_name_that_can_be_created_can_be_read_changed_and_deleted_at_every_worker(
    cluster: ServedCluster,
) -> None:
    workers = [await cluster.serve() for _ in range(2)]
    for number, name in enumerate(UNUSUAL_NAMES):
        writer, reader = workers[number % 2], workers[(number + 1) % 2]
        created = await writer.ask("POST", "/connectors", {"name": name, "config": CONFIG})
        assert created.status_code == 201, created.text
        path = created.headers["location"]
        assert (await reader.get(path)).json()["name"] == name
        await reader.until_running(path.removeprefix("/connectors/"), 2)
        assert (await reader.ask("PUT", f"{path}/config", {**CONFIG, "other": "1"})).status_code == 200
        assert (await writer.get(f"{path}/config")).json() == {**CONFIG, "other": "1", "name": name}
        assert (await reader.ask("DELETE", path)).status_code == 204
        assert (await writer.get(path)).status_code == 404
    assert (await workers[0].get("/connectors")).json() == []


async def test_the_characters_around_a_name_that_java_trims_are_removed(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    created = await worker.ask("POST", "/connectors", {"name": "\x01\t a \r\n", "config": CONFIG})
    assert (created.status_code, created.json()["name"]) == (201, "a"), created.text


async def test_a_read_while_the_worker_starts_is_503_and_may_be_sent_again(cluster: ServedCluster) -> None:
    runtime = SimulatedRuntime()
    runtime.opens.clear()
    worker = await cluster.serve(runtime=runtime, wait=False)
    for path in ("/connectors", "/connectors/a/status", "/connectors/a/offsets"):
        refused = await worker.get(path)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1"), path
    runtime.opens.set()


@pytest.mark.parametrize("problem", [problem for problem, status in STATUS_BY_PROBLEM.items() if status == 503])
def test_every_503_has_a_retry_after(problem: Problem) -> None:
    error = HerderRefusal(RequestRefused(problem=problem, message="later"))
    response = error_response(Request({"type": "http", "method": "GET", "headers": []}), error)
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert json.loads(bytes(response.body)) == {"error_code": 503, "message": "later"}


async def test_the_health_of_a_starting_worker_is_503(cluster: ServedCluster) -> None:
    runtime = SimulatedRuntime()
    runtime.opens.clear()
    worker = await cluster.serve(runtime=runtime, wait=False)
    health = await worker.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "starting")
    assert health.headers["retry-after"] == "1"
    assert (await worker.get("/connectors")).status_code == 503
    assert (await worker.get("/")).status_code == 200
    runtime.opens.set()

    async def is_healthy() -> bool:
        return (await worker.get("/health")).status_code == 200

    await until(is_healthy)


async def test_a_worker_with_too_many_lost_threads_is_unhealthy_and_names_the_reason(cluster: ServedCluster) -> None:
    runtime = SimulatedRuntime()
    worker = await cluster.serve(runtime=runtime)
    assert (await worker.get("/health")).status_code == 200
    runtime.emit(PluginThreadsLost(lost_threads_total=64))
    runtime.emit(PluginThreadsLost(lost_threads_total=65))

    async def is_unhealthy() -> bool:
        return (await worker.get("/health")).status_code == 500

    await until(is_unhealthy)
    health = (await worker.get("/health")).json()
    assert health["status"] == "unhealthy"
    assert "65 of its threads hang in plug-ins, more than plugin.lost.threads.max=64" in health["message"]
    view = (await worker.get("/coterie/worker")).json()
    assert view["plugin_threads"] == {"lost": 65, "no_new_jobs": health["message"]}
    await cluster.settle()


async def test_a_worker_shows_its_own_view(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    await worker.ask("POST", "/connectors", {"name": "a", "config": CONFIG})
    await worker.until_running("a", 2)
    view = (await worker.get("/coterie/worker")).json()
    assert view["assigned"] == {
        "connectors": ["a"],
        "tasks": [{"connector": "a", "task": 0}, {"connector": "a", "task": 1}],
    }
    assert view["group"]["is_leader"]
    assert view["tasks"][0] == {
        "connector": "a",
        "task": 0,
        "phase": "running",
        "last_batch_id": 0,
        "input_rows": 10,
        "bad_records": 0,
        "starts": 1,
    }
    assert view["missing_jars"] == {"kafka": "There are no jars for Kafka here"}
    assert view["event_loop"]["longest_stall_ms"] >= 0


MISSING = [
    ("PATCH", "/connectors", 405),
    ("GET", "/connectors/a/tasks/x/status", 404),
    ("GET", "/connectors/a/nope", 404),
    ("GET", "/favicon.ico", 404),
    ("GET", "/connectors/a/status", 404),
    ("PUT", "/connectors/a/resume", 404),
    ("PUT", "/connectors/a/stop", 404),
]


async def test_missing_resources_get_errors_in_connects_format(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    for method, path, status in MISSING:
        answer = await worker.ask(method, path)
        assert (answer.status_code, answer.json()["error_code"]) == (status, status), (method, path)


async def test_a_body_above_the_size_limit_is_413(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    answer = await worker.ask("POST", "/connectors", raw=b" " * (9 * 1024 * 1024))
    assert answer.status_code == 413


@pytest.mark.parametrize(
    ("leader_url", "message"),
    [
        ("http://127.0.0.1:1/", "Request timed out. The worker is currently sending the request to the leader at http"),
        ("http://h:abc/", "IO Error trying to forward REST request"),
    ],
)
async def test_an_unreachable_leader_is_a_500_with_a_message(
    classic_cluster: ServedCluster, leader_url: str, message: str
) -> None:
    classic_cluster.request_timeout_ms = 1_000
    workers = [await classic_cluster.serve() for _ in range(2)]
    follower = next(worker for worker in workers if worker.running is not classic_cluster.leader)
    follower.running.simulated_membership.set_stale_leader_url(leader_url)

    async def has_stale_leader() -> bool:
        view = (await follower.get("/coterie/worker")).json()
        return bool(view["group"]["leader_url"] == leader_url)

    await until(has_stale_leader)
    answer = await follower.ask("POST", "/connectors", {"name": "a", "config": CONFIG})
    assert answer.status_code == 500
    assert answer.json()["message"].startswith(message)
