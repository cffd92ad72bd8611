"""Jobs that no worker has, as Connect's REST API shows them."""

from tests.rest.served import ServedCluster
from tests.worker.simulated import until

CONFIG = {"connector.class": "SimulatedSource", "tasks.max": "2"}


async def test_jobs_of_a_departed_worker_are_shown_as_unassigned_with_the_reason() -> None:
    async with ServedCluster(rebalance_delay_max_ms=600_000) as cluster:
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
