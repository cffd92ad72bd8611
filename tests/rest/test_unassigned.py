"""Jobs that no worker has, as Connect's REST API shows them."""

from pathlib import Path

import pytest

from coterie.nouns.membership import GroupProtocolName
from tests.rest.served import ServedCluster, ServedConnectCluster
from tests.worker.simulated import until

CONFIG = {"connector.class": "SimulatedSource", "tasks.max": "2"}
DELAY_MS = 600_000


def cluster_of(group_protocol: GroupProtocolName, folder: Path) -> ServedCluster:
    if group_protocol is GroupProtocolName.CONNECT:
        return ServedConnectCluster(folder, rebalance_delay_max_ms=DELAY_MS)
    return ServedCluster(rebalance_delay_max_ms=DELAY_MS)


@pytest.mark.parametrize("group_protocol", list(GroupProtocolName))
async def test_a_restart_of_a_task_that_no_worker_has_is_attempted_less_and_less_often(
    group_protocol: GroupProtocolName, tmp_path: Path
) -> None:
    """Each attempt reads the end offset of the config log, and in a connect group also the group's description."""
    async with cluster_of(group_protocol, tmp_path) as cluster:
        cluster.request_timeout_ms = 4_000
        workers = [await cluster.serve() for _ in range(2)]
        await workers[0].ask("POST", "/connectors", {"name": "a", "config": CONFIG})
        await workers[0].until_running("a", 2)
        await cluster.settle()
        leader = next(worker for worker in workers if worker.running is cluster.leader)
        other = next(worker for worker in workers if worker is not leader)
        (task,) = other.running.runtime.running
        other.running.worker.order_shutdown("it leaves the group")
        await other.running.run
        await until(lambda: cluster.running_tasks() == [str(one) for one in leader.running.runtime.running])
        await cluster.settle()
        lookups = cluster.config_log.end_lookups
        answer = await leader.ask("POST", f"/connectors/a/tasks/{task.task}/restart")
        assert answer.status_code == 503
        assert answer.json()["message"] == f"Task {task} is assigned to no worker now; retry the request"
        # After 0, 250, 750, 1750 and 3750 ms at the earliest.
        assert 2 <= cluster.config_log.end_lookups - lookups <= 5


@pytest.mark.parametrize("group_protocol", list(GroupProtocolName))
async def test_jobs_of_a_departed_worker_are_shown_as_unassigned_with_the_reason(
    group_protocol: GroupProtocolName, tmp_path: Path
) -> None:
    async with cluster_of(group_protocol, tmp_path) as cluster:
        workers = [await cluster.serve() for _ in range(2)]
        assert (await workers[0].ask("POST", "/connectors", {"name": "a", "config": CONFIG})).status_code == 201
        leader = next(worker for worker in workers if worker.running is cluster.leader)
        other = next(worker for worker in workers if worker is not leader)

        async def states() -> list[tuple[str, str, str | None]]:
            shown = (await leader.get("/connectors/a/status")).json()
            return [(one["state"], one["worker_id"], one.get("trace")) for one in shown.get("tasks", [])]

        async def all_run() -> bool:
            shown = await states()
            return len(shown) == 2 and {state for state, _, _ in shown} == {"RUNNING"}

        async def one_waits() -> bool:
            return [shown for shown in await states() if shown[0] == "UNASSIGNED" and shown[2]] != []

        await until(all_run)
        other.running.worker.order_shutdown("it leaves the group")
        await other.running.run
        await until(one_waits)
        gone, here = (worker.running.worker.settings.worker_id for worker in (other, leader))
        reason = f"{gone} has left the group and may rejoin: the job waits for scheduled.rebalance.max.delay.ms"
        assert [shown for shown in await states() if shown[0] != "RUNNING"] == [("UNASSIGNED", here, reason)]
