"""The active topics of a connector at any worker, with the responses of a real Connect 4.3.1."""

import asyncio

from tests.rest.served import ServedCluster
from tests.worker.simulated import SimulatedRuntime, until

# One task: a second one that starts after the reset would make the topics active again.
CONFIG = {"connector.class": "SimulatedSource", "tasks.max": "1", "topics": "b,a"}


async def test_active_topics_are_the_same_at_all_workers(cluster: ServedCluster) -> None:
    workers = [await cluster.serve() for _ in range(2)]
    await workers[0].ask("POST", "/connectors", {"name": "c", "config": CONFIG})

    async def all_have_topics() -> bool:
        answers = [(await worker.get("/connectors/c/topics")).json() for worker in workers]
        return answers == [{"c": {"topics": ["a", "b"]}}] * 2

    await until(all_have_topics)
    reset = await workers[1].ask("PUT", "/connectors/c/topics/reset")
    assert (reset.status_code, reset.content) == (202, b"")
    assert (await workers[1].get("/connectors/c/topics")).json() == {"c": {"topics": []}}


async def test_topics_that_a_task_uses_after_a_reset_are_active_again(cluster: ServedCluster) -> None:
    runtimes = [SimulatedRuntime(), SimulatedRuntime()]
    workers = [await cluster.serve(runtime=runtime) for runtime in runtimes]
    runtimes[0].blocked["start c"] = asyncio.Event()
    await workers[0].ask("POST", "/connectors", {"name": "c", "config": {**CONFIG, "tasks.max": "2"}})

    async def all_have_topics() -> bool:
        answers = [(await worker.get("/connectors/c/topics")).json() for worker in workers]
        return answers == [{"c": {"topics": ["a", "b"]}}] * 2

    await until(all_have_topics)
    assert runtimes[0].running == {}
    assert (await workers[1].ask("PUT", "/connectors/c/topics/reset")).status_code == 202
    assert (await workers[1].get("/connectors/c/topics")).json() == {"c": {"topics": []}}
    runtimes[0].blocked["start c"].set()
    await until(all_have_topics)


async def test_an_unknown_connector_has_no_topics(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    topics = await worker.get("/connectors/nope/topics")
    assert (topics.status_code, topics.json()) == (200, {"nope": {"topics": []}})
    assert (await worker.ask("PUT", "/connectors/nope/topics/reset")).status_code == 202
    assert (await worker.get("/connectors/nope/topics/reset")).status_code == 405


async def test_switched_off_tracking_is_refused_in_connects_words(cluster: ServedCluster) -> None:
    worker = await cluster.serve(topic_tracking_enabled=False)
    for method, path in (("GET", "/connectors/c/topics"), ("PUT", "/connectors/c/topics/reset")):
        answer = await worker.ask(method, path)
        assert (answer.status_code, answer.json()["message"]) == (403, "Topic tracking is disabled.")


async def test_a_reset_waits_while_the_worker_starts(cluster: ServedCluster) -> None:
    runtime = SimulatedRuntime()
    runtime.opens.clear()
    worker = await cluster.serve(runtime=runtime, wait=False)
    reset = asyncio.create_task(worker.ask("PUT", "/connectors/c/topics/reset"))
    assert (await worker.get("/connectors/c/topics")).status_code == 503
    runtime.opens.set()
    assert (await reset).status_code == 202
