"""Restarts of connectors and tasks over HTTP, with the statuses that a real Connect 4.3.1 gave."""

import asyncio
from collections import Counter
from functools import partial

import pytest

from coterie.wire.connect import ConnectProtocol
from tests.rest.recording_leader import RecordingLeader, let_lead
from tests.rest.served import ServedCluster
from tests.worker.simulated import SimulatedRuntime, until

CONFIG = {"connector.class": "SimulatedSource", "tasks.max": "2"}


STATUS_BY_QUERY = {
    "": 204,
    "?includeTasks=false&onlyFailed=false": 204,
    "?includeTasks=yes": 204,
    "?includeTasks=": 204,
    "?unknown=1": 204,
    "?includeTasks=true": 202,
    "?includeTasks=TRUE": 202,
    "?includeTasks=true&includeTasks=false": 202,
    "?includeTasks=false&includeTasks=true": 204,
    "?onlyFailed=true": 202,
    "?includeTasks=true&onlyFailed=true": 202,
}


async def test_a_restart_has_the_recorded_status_at_any_worker(cluster: ServedCluster) -> None:
    workers = [await cluster.serve() for _ in range(2)]
    await workers[0].ask("POST", "/connectors", {"name": "a", "config": CONFIG})
    for query, status in STATUS_BY_QUERY.items():
        for worker in workers:
            await worker.until_running("a", 2)
            answer = await worker.ask("POST", f"/connectors/a/restart{query}")
            assert answer.status_code == status, query
            if status == 204:
                assert answer.content == b"", query
                continue
            restarted = "onlyFailed" not in query
            states = {answer.json()["connector"]["state"], *(task["state"] for task in answer.json()["tasks"])}
            assert states == ({"RESTARTING"} if restarted else {"RUNNING"}), query


async def test_every_worker_restarts_its_own_tasks_once(cluster: ServedCluster) -> None:
    workers = [await cluster.serve() for _ in range(3)]
    await workers[0].ask("POST", "/connectors", {"name": "a", "config": {**CONFIG, "tasks.max": "6"}})
    await workers[0].until_running("a", 6)
    await cluster.settle()
    before = cluster.starts()
    assert (await workers[1].ask("POST", "/connectors/a/restart?includeTasks=true")).status_code == 202
    await until(lambda: cluster.starts().total() == before.total() + 6)
    await workers[2].until_running("a", 6)
    assert cluster.starts() == {task: count + 1 for task, count in before.items()}


def has_started(cluster: ServedCluster, expected: Counter[str]) -> bool:
    return cluster.starts() == expected


async def test_a_task_is_restarted_by_a_request_to_any_worker(cluster: ServedCluster) -> None:
    workers = [await cluster.serve() for _ in range(3)]
    await workers[0].ask("POST", "/connectors", {"name": "a", "config": {**CONFIG, "tasks.max": "3"}})
    await workers[0].until_running("a", 3)
    await cluster.settle()
    for worker in workers:
        for number in range(3):
            expected = cluster.starts() + Counter({f"a-{number}": 1})
            assert (await worker.ask("POST", f"/connectors/a/tasks/{number}/restart")).status_code == 204
            await until(partial(has_started, cluster, expected))
            await worker.until_running("a", 3)
    for path, message in {
        "/connectors/nope/restart": "Unknown connector: nope",
        "/connectors/nope/tasks/0/restart": "Unknown connector: nope",
        "/connectors/a/tasks/9/restart": "Unknown task: a-9",
        "/connectors/a/tasks/-1/restart": "Unknown task: a--1",
        "/connectors/a/tasks/abc/restart": "HTTP 404 Not Found",
    }.items():
        refused = await workers[1].ask("POST", path)
        assert (refused.status_code, refused.json()) == (404, {"error_code": 404, "message": message})


@pytest.mark.parametrize("path", ["/connectors/a/tasks/0/restart", "/connectors/a/restart"])
async def test_a_restart_waits_while_the_worker_starts(cluster: ServedCluster, path: str) -> None:
    other, runtime = await cluster.serve(), SimulatedRuntime()
    await other.ask("POST", "/connectors", {"name": "a", "config": CONFIG})
    await other.until_running("a", 2)
    runtime.opens.clear()
    worker = await cluster.serve(runtime=runtime, wait=False)
    restart = asyncio.create_task(worker.ask("POST", path))
    assert (await worker.get("/connectors")).status_code == 503
    runtime.opens.set()
    assert (await restart).status_code == 204


@pytest.mark.parametrize("protocol", [ConnectProtocol.STATIC], indirect=True, ids=["static"])
async def test_a_restart_of_a_task_that_another_worker_answers_503_is_sent_again_until_the_time_limit(
    classic_cluster: ServedCluster, leader: RecordingLeader
) -> None:
    classic_cluster.request_timeout_ms = 2_000
    workers = [await classic_cluster.serve() for _ in range(2)]
    await workers[0].ask("POST", "/connectors", {"name": "a", "config": CONFIG})
    await workers[0].until_running("a", 2)
    await classic_cluster.settle()
    follower = next(worker for worker in workers if worker.running is not classic_cluster.leader)
    (task,) = {"a-0", "a-1"} - {str(task) for task in follower.running.runtime.running}
    await let_lead(leader, follower)
    path = f"/connectors/a/tasks/{task[-1]}/restart"
    leader.busy_responses = 2
    assert (await follower.ask("POST", path)).status_code == 204
    assert [request[1] for request in leader.requests] == [path.encode()] * 3
    leader.busy_responses = 100
    assert (await follower.ask("POST", path)).status_code == 503
    assert len(leader.requests) > 4
    leader.requests.clear()
    leader.busy_responses, leader.broken_connections = 0, 1
    answer = await follower.ask("POST", path)
    assert (answer.status_code, len(leader.requests)) == (500, 1), "the other worker may have restarted the task"
