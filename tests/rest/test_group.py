"""The group and orders to its workers over real HTTP, with simulated workers."""

from typing import Any

import pytest

from coterie.wire.connect import ConnectProtocol
from tests.rest.recording_leader import RecordingLeader
from tests.rest.served import ServedCluster, ServedWorker
from tests.worker.simulated import until

CONFIG = {"connector.class": "SimulatedSource", "tasks.max": "2"}


async def group(worker: ServedWorker) -> dict[str, Any]:
    response = await worker.get("/coterie/group")
    assert response.status_code == 200, response.text
    shown: dict[str, Any] = response.json()
    return shown


async def test_every_worker_shows_the_leaders_view_of_the_group(cluster: ServedCluster) -> None:
    workers = [await cluster.serve() for _ in range(3)]
    created = await workers[0].ask("POST", "/connectors", {"name": "a", "config": CONFIG})
    assert created.status_code == 201

    async def is_assigned() -> bool:
        members = (await group(workers[0]))["members"]
        return sum(len(member["owned"]["tasks"]) for member in members) == 2

    await until(is_assigned)
    await cluster.settle()
    shown = [await group(worker) for worker in workers]
    assert shown[0] == shown[1] == shown[2]
    one = shown[0]
    assert one["configured"] == {
        "connectors": ["a"],
        "tasks": [{"connector": "a", "task": 0}, {"connector": "a", "task": 1}],
    }
    assert one["leader"]["worker_id"] in {worker.running.worker.settings.worker_id for worker in workers}
    assert [member["state"] for member in one["members"]] == ["STABLE"] * 3
    assert {member["life"] for member in one["members"]} == {worker.running.worker.boot_id for worker in workers}
    assert sum(member["phases"].get("running", 0) for member in one["members"]) == 2
    assert (one["deferred"], one["unassigned"], one["next_round_ms"]) == ([], [], None)
    assert one["policy"]["scheduled.rebalance.max.delay.ms"] == 0


async def test_a_follower_names_a_leader_that_cannot_be_reached(classic_cluster: ServedCluster) -> None:
    workers = [await classic_cluster.serve() for _ in range(2)]
    follower = next(worker for worker in workers if worker.running is not classic_cluster.leader)
    follower.running.simulated_membership.set_stale_leader_url("http://127.0.0.1:1/")

    async def has_stale_leader() -> bool:
        view = (await follower.get("/coterie/worker")).json()
        return bool(view["group"]["leader_url"] == "http://127.0.0.1:1/")

    await until(has_stale_leader)
    answer = await follower.get("/coterie/group")
    assert answer.status_code == 503
    assert "The leader at http://127.0.0.1:1/ cannot be reached" in answer.json()["message"]


async def test_a_worker_that_does_not_respond_is_shown_as_unreachable(cluster: ServedCluster) -> None:
    workers = [await cluster.serve() for _ in range(2)]
    leader = next(worker for worker in workers if worker.running is cluster.leader)
    other = next(worker for worker in workers if worker.running is not cluster.leader)
    leave = other.running.membership.leave

    async def stay(reason: str, *, is_permanent: bool = False) -> None:
        return None

    other.running.membership.leave = stay  # type: ignore[method-assign]
    other.running.worker.order_shutdown("it ends without leaving the group")
    await other.running.run
    states = {member["url"]: member["state"] for member in (await group(leader))["members"]}
    assert states[other.running.worker.settings.url] == "UNREACHABLE"
    assert states[leader.running.worker.settings.url] == "STABLE"
    await leave("the test is over")


async def test_an_order_to_an_unknown_worker_lists_all_workers(cluster: ServedCluster) -> None:
    workers = [await cluster.serve() for _ in range(2)]
    for worker in workers:
        for method, path in (("POST", "drain"), ("DELETE", "drain"), ("POST", "restart")):
            answer = await worker.ask(method, f"/coterie/workers/unknown/{path}")
            assert answer.status_code == 404
            assert all(one.running.worker.settings.worker_id in answer.json()["message"] for one in workers)


async def test_an_order_reaches_its_worker_through_any_worker(cluster: ServedCluster) -> None:
    workers = [await cluster.serve() for _ in range(3)]
    for via in workers:
        for target in workers:
            worker_id = target.running.worker.settings.worker_id
            answer = await via.ask("DELETE", f"/coterie/workers/{worker_id}/drain")
            assert answer.status_code == 202, answer.text
            assert answer.json()["life"] == target.running.worker.boot_id


async def test_a_drain_is_shown_as_soon_as_it_is_ordered(cluster: ServedCluster) -> None:
    workers = [await cluster.serve() for _ in range(2)]
    worker_id = workers[0].running.worker.settings.worker_id
    other = workers[1]
    assert (await other.ask("DELETE", f"/coterie/workers/{worker_id}/drain")).status_code == 202
    ordered = await other.ask("POST", f"/coterie/workers/{worker_id}/drain")
    if cluster.protocol < ConnectProtocol.STATIC:
        assert ordered.status_code == 409
        assert f"The group uses protocol {cluster.protocol.setting}" in ordered.json()["message"]
        return
    assert ordered.status_code == 202

    responses: list[dict[str, Any]] = []

    async def is_group_shown() -> bool:
        # The drained worker has no jobs: it may be leaving, and the leader. So the next request may fail again.
        response = await other.get("/coterie/group")
        responses.extend([response.json()] if response.status_code == 200 else [])
        return bool(responses)

    await until(is_group_shown)
    shown = {member["worker_id"]: member["draining"] for member in responses[0]["members"]}
    assert shown.get(worker_id, True), "the drain is not shown (a worker that has left is not listed)"


async def test_a_worker_name_may_contain_a_slash(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    answer = await worker.ask("POST", "/coterie/workers/a%2Fb/drain")
    assert (answer.status_code, answer.json()["message"].startswith("No worker is called a/b.")) == (404, True)


@pytest.mark.parametrize(("method", "path"), [("POST", "drain"), ("DELETE", "drain"), ("POST", "restart")])
async def test_an_order_whose_response_is_lost_is_500_with_the_reason_that_it_may_have_been_accepted(
    follower: ServedWorker, leader: RecordingLeader, method: str, path: str
) -> None:
    leader.broken_connections = 1
    answer = await follower.ask(method, f"/coterie/workers/two/{path}")
    assert (answer.status_code, answer.headers.get("retry-after")) == (500, None)
    assert answer.json()["message"].startswith(
        f"No response came after the order was sent to the leader at {leader.url}: the order may have been accepted; "
        "read GET /coterie/group to find out"
    )
    assert len(leader.requests) == 1


async def test_a_read_of_the_group_whose_response_is_lost_is_503(
    follower: ServedWorker, leader: RecordingLeader
) -> None:
    leader.broken_connections = 1
    answer = await follower.get("/coterie/group")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
