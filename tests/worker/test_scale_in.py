"""Drains and restarts over a real broker and real REST: what moves, what does not, and how a worker ends."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from coterie.cli.workers import commands
from coterie.nouns.errors import WorldError
from coterie.wire.connect import ConnectProtocol
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.worker.lives import Lived, Lives
from tests.worker.simulated import until

pytestmark = pytest.mark.processes

TASKS = 6


@pytest.fixture
async def lives(embedded_broker: EmbeddedBroker) -> AsyncIterator[Lives]:
    async with Lives(embedded_broker.bootstrap_servers, group=f"lives-{uuid.uuid4().hex[:8]}", properties={}) as lives:
        yield lives


async def order(lives: Lives, asked: Lived, method: str, worker: str, what: str) -> Any:
    return await lives.client.request(method, f"{asked.url}/coterie/workers/{worker}/{what}")


async def leader_of(lives: Lives) -> Lived:
    shown = await lives.group()
    assert shown is not None
    # By its address: names travel with v3 only.
    return next(one for one in lives.workers if one.url == f"http://{shown['leader']['worker_id']}")


def stops(one: Lived) -> int:
    return sum(len(runtime.stops) for runtime in one.runtimes)


@pytest.mark.parametrize("who", ["a follower", "the leader"])
async def test_a_drain_moves_everything_without_a_delay_and_the_worker_ends_with_code_0(lives: Lives, who: str) -> None:
    everybody = await lives.start("anna", "bert", "cleo")
    await lives.create("orders", TASKS)
    before = lives.starts()
    leader = await leader_of(lives)
    drained = leader if who == "the leader" else next(one for one in everybody if one is not leader)
    others = [one for one in everybody if one is not drained]
    moved = drained.running
    assert moved

    # Asked through another worker, which knows neither leader nor drained worker by anything but the group.
    await asyncio.to_thread(commands.drain, others[0].url, drained.name)

    assert drained.run is not None
    async with asyncio.timeout(60):
        assert await drained.run == 0
    await until(lives.is_quiet, within_s=60)
    assert len(lives.running()) == TASKS
    grown = lives.starts() - before
    assert grown == dict.fromkeys(moved, 1), "what moved was started once, elsewhere; nothing else was"
    assert [stops(one) for one in others] == [0, 0]
    shown = await lives.group()
    assert shown is not None
    assert [member["name"] for member in shown["members"]] == sorted(one.name for one in others)
    assert (shown["deferred"], shown["unassigned"]) == ([], [])


async def test_a_static_worker_that_is_drained_is_not_waited_for(embedded_broker: EmbeddedBroker) -> None:
    """Its session is as long as it may be: were it not to leave, its place would stand in the group for minutes."""
    group = f"lives-{uuid.uuid4().hex[:8]}"
    async with Lives(embedded_broker.bootstrap_servers, group=group, properties={}) as lives:
        session = {"session.timeout.ms": "300000", "rebalance.timeout.ms": "300000"}
        (static,) = await lives.start("anna", properties={**session, "group.instance.id": "place-of-anna"})
        (other,) = await lives.start("bert")
        await lives.create("orders", 2)
        answer = await order(lives, other, "POST", "place-of-anna", "drain")
        assert answer.status_code == 202
        assert static.run is not None
        async with asyncio.timeout(60):
            assert await static.run == 0

        async def only_one_is_left() -> bool:
            shown = await lives.group()
            return shown is not None and [member["name"] for member in shown["members"]] == ["bert"]

        await until(only_one_is_left, within_s=60)
        assert len(other.running) == 2


async def test_the_last_workers_drain_waits_says_why_and_can_be_called_back(
    lives: Lives, capsys: pytest.CaptureFixture[str]
) -> None:
    (anna,) = await lives.start("anna")
    await lives.create("orders", 2)
    assert (await order(lives, anna, "POST", "anna", "drain")).status_code == 202

    async def waits() -> bool:
        shown = await lives.group()
        return shown is not None and shown["members"][0]["drain_waits"] is not None

    await until(waits, within_s=60)
    shown = await lives.group()
    assert shown is not None
    assert shown["members"][0]["drain_waits"] == "every worker is draining"
    assert (len(anna.running), stops(anna)) == (2, 0), "it goes on with what nobody else takes"
    await asyncio.to_thread(commands.show_group, anna.url, as_json=False)
    said = " ".join(capsys.readouterr().out.split())
    assert "(static), led by anna" in said
    assert "The drain of anna waits: every worker is draining." in said
    assert "STABLE, draining 1 2 2 running" in said

    await asyncio.to_thread(commands.uncordon, anna.url, "anna")

    async def takes_work_again() -> bool:
        shown = await lives.group()
        return shown is not None and not shown["members"][0]["draining"]

    await until(takes_work_again, within_s=60)
    (bert,) = await lives.start("bert")
    await until(lambda: len(bert.running) == 1, within_s=60)
    assert len(anna.running) == 1, "and it takes its share, as before"


async def test_a_drain_waits_while_its_group_speaks_an_older_protocol_and_says_so(
    lives: Lives, capsys: pytest.CaptureFixture[str]
) -> None:
    (anna,) = await lives.start("anna")
    await lives.create("orders", 2)
    assert (await order(lives, anna, "POST", "anna", "drain")).status_code == 202
    (older,) = await lives.start("bert", properties={"connect.protocol": "sessioned"})
    why = "the group uses protocol sessioned, which cannot announce a drain; set connect.protocol=static on all workers"

    async def is_told() -> bool:
        shown, word = await lives.group(), await lives.view(anna)
        of_anna = [member for member in shown["members"] if member["draining"]] if shown is not None else []
        return word is not None and word["drain_waits"] == why and [one["drain_waits"] for one in of_anna] == [why]

    await until(is_told, within_s=60)
    await until(lives.is_quiet, within_s=60)
    await asyncio.to_thread(commands.show_group, anna.url, as_json=False)
    at = anna.url.removeprefix("http://")
    assert f"The drain of {at} waits: {why}." in " ".join(capsys.readouterr().out.split())
    assert len(lives.running()) == 2
    await lives.start("cleo")
    assert older.worker is not None
    assert older.run is not None
    older.worker.order_shutdown("the test has seen it")
    await older.run
    assert anna.run is not None
    async with asyncio.timeout(60):
        assert await anna.run == 0, "and it goes on when they all speak static"


async def test_workers_that_are_all_drained_at_once_go_on_with_everything_until_somebody_comes(lives: Lives) -> None:
    everybody = await lives.start("anna", "bert", "cleo")
    await lives.create("orders", TASKS)
    ordered = await asyncio.gather(*(order(lives, one, "POST", one.name, "drain") for one in everybody))
    assert {answer.status_code for answer in ordered} == {202}

    async def all_wait() -> bool:
        shown = await lives.group()
        return (
            shown is not None
            and [member["drain_waits"] for member in shown["members"]]
            == ["every worker is draining"] * len(lives.living)
            and not shown["unassigned"]
            and len(lives.running()) == TASKS
            and await lives.is_quiet()
        )

    await until(all_wait, within_s=60)
    (dora,) = await lives.start("dora")
    for one in everybody:
        assert one.run is not None
        async with asyncio.timeout(60):
            assert await one.run == 0
    await until(lambda: len(dora.running) == TASKS, within_s=60)


async def test_a_drain_that_waits_goes_on_when_somebody_comes(lives: Lives) -> None:
    (anna,) = await lives.start("anna")
    await lives.create("orders", 2)
    assert (await order(lives, anna, "POST", "anna", "drain")).status_code == 202
    (bert,) = await lives.start("bert")
    assert anna.run is not None
    async with asyncio.timeout(60):
        assert await anna.run == 0
    await until(lambda: len(bert.running) == 2, within_s=60)


async def test_a_group_that_speaks_an_older_protocol_says_that_it_cannot_drain_and_what_to_do(
    embedded_broker: EmbeddedBroker,
) -> None:
    group = f"lives-{uuid.uuid4().hex[:8]}"
    async with Lives(embedded_broker.bootstrap_servers, group=group, properties={}) as lives:
        (anna,) = await lives.start("anna")
        await lives.start("bert", properties={"connect.protocol": "compatible"})
        at = anna.url.removeprefix("http://")  # Names do not travel with it.
        answer = await order(lives, anna, "POST", at, "drain")
        assert answer.status_code == 409
        assert "uses protocol compatible" in answer.json()["message"]
        assert "connect.protocol=static" in answer.json()["message"]
        with pytest.raises(WorldError, match="uses protocol compatible"):
            await asyncio.to_thread(commands.drain, anna.url, at)
        assert len(lives.living) == 2


async def test_a_rolling_restart_starts_every_task_once_more_on_its_own_worker(lives: Lives) -> None:
    everybody = await lives.start("anna", "bert", "cleo")
    await lives.create("orders", TASKS)
    owned = {one.name: one.running for one in everybody}
    before, last = lives.starts(), await leader_of(lives)
    order_of_ends: list[str] = []
    for one in everybody:

        async def noted(name: str = one.name) -> None:
            order_of_ends.append(name)

        one.between = noted
    generation = await _generation(lives)

    await asyncio.to_thread(commands.restart_rolling, everybody[0].url, timeout_s=60)

    assert lives.starts() - before == dict.fromkeys(before, 1), "each task was started once, and no more"
    assert {one.name: one.running for one in everybody} == owned, "on the worker that had it"
    assert [len(one.runtimes) for one in everybody] == [2, 2, 2]
    assert order_of_ends[-1] == last.name, "the leader goes last"
    assert await _generation(lives) <= generation + 1, "only the leader's new life asks for a round"


async def test_a_followers_restart_makes_no_round_whatever_the_group_speaks(
    embedded_broker: EmbeddedBroker, protocol: ConnectProtocol
) -> None:
    group, properties = f"lives-{uuid.uuid4().hex[:8]}", {"connect.protocol": protocol.setting}
    async with Lives(embedded_broker.bootstrap_servers, group=group, properties=properties) as lives:
        everybody = await lives.start("anna", "bert")
        await lives.create("orders", 4)
        leader = await leader_of(lives)
        follower = next(one for one in everybody if one is not leader)
        owned, before, generation = follower.running, lives.starts(), await _generation(lives)
        worker_id = follower.url.removeprefix("http://")
        assert (await order(lives, leader, "POST", worker_id, "restart")).status_code == 202
        await until(lambda: len(follower.runtimes) == 2 and follower.running == owned, within_s=60)
        assert await _generation(lives) == generation
        assert lives.starts() - before == dict.fromkeys(owned, 1)


async def _generation(lives: Lives) -> int:
    await until(lives.is_quiet, within_s=60)
    shown = await lives.group()
    assert shown is not None
    generation: int = shown["generation"]
    return generation
