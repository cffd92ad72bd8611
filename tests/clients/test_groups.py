"""Consumer groups of unmodified clients, each story on the embedded broker and on Apache Kafka."""

import asyncio
import uuid
from collections.abc import Callable

import pytest

from tests.broker.conftest import raw_client
from tests.clients.conftest import STRATEGIES, Client, Host, OpenHost, Topic

pytestmark = pytest.mark.interop

MakeTopic = Callable[[int], Topic]


def fresh_group() -> str:
    return f"g-{uuid.uuid4()}"


def share(*clients: Client, partitions: int) -> bool:
    """Every partition is read by exactly one of them, and nobody has two more than another."""
    counts = [len(client.partitions) for client in clients]
    together = sorted(partition for client in clients for partition in client.partitions)
    return together == list(range(partitions)) and max(counts) - min(counts) <= 1


async def test_members_share_the_partitions_as_they_come_and_go_with_every_strategy(
    host: Host, make_topic: MakeTopic
) -> None:
    topic = make_topic(4)
    everything = topic.write(0, 20)

    async def story(strategy: str) -> None:
        group = fresh_group()
        first = await host.start(f"{strategy}-1", group, topic.name, strategy=strategy)
        await host.until(lambda: share(first, partitions=4), f"{strategy}: one member has everything")
        second = await host.start(f"{strategy}-2", group, topic.name, strategy=strategy)
        await host.until(lambda: share(first, second, partitions=4), f"{strategy}: two members share")
        await host.until(lambda: first.values | second.values == everything, f"{strategy}: all is read")
        await host.stop(second)
        await host.until(lambda: share(first, partitions=4), f"{strategy}: who stays has everything again")
        await host.stop(first)

    async with asyncio.TaskGroup() as stories:
        for strategy in STRATEGIES[host.kind]:
            stories.create_task(story(strategy))


async def test_a_crashed_members_partitions_go_to_the_others_once_its_session_is_over(
    host: Host, open_host: OpenHost, make_topic: MakeTopic
) -> None:
    topic, group = make_topic(4), fresh_group()
    survivor = await host.start("survivor", group, topic.name, strategy="range")
    doomed_host = await open_host(host.kind)
    doomed = await doomed_host.start("doomed", group, topic.name, strategy="range", session_timeout_ms=2_000)
    await doomed_host.until(lambda: len(doomed.partitions) == 2, "the doomed one has its share")
    await host.until(lambda: share(survivor, doomed, partitions=4), "both have their share")
    written = topic.write(0, 12)
    await doomed_host.kill()
    await host.until(lambda: share(survivor, partitions=4), "the survivor has everything")
    # The doomed one has committed nothing, so what it may have read is read again.
    await host.until(lambda: survivor.values == written, "the survivor reads everything")


async def test_who_comes_back_reads_on_where_the_group_had_committed(host: Host, make_topic: MakeTopic) -> None:
    topic, group = make_topic(3), fresh_group()
    before = topic.write(0, 30)
    first = await host.start("first", group, topic.name, strategy="roundrobin")
    await host.until(lambda: first.values == before, "everything is read")
    assert topic.lag(group) == 30
    await host.commit(first)
    assert topic.lag(group) == 0
    await host.stop(first)
    after = topic.write(30, 9)
    assert topic.lag(group) == 9
    second = await host.start("second", group, topic.name, strategy="roundrobin")
    await host.until(lambda: second.values >= after, "what came meanwhile is read")
    assert second.values == after
    assert len(second.read) == 9


async def test_partitions_that_are_added_are_shared_too(host: Host, make_topic: MakeTopic) -> None:
    topic, group = make_topic(2), fresh_group()
    # A leader of kafka-python 3.0 that sees new partitions and whose sync is answered between two polls forgets its
    # own assignment for good, on either broker: its polls must not end before.
    first = await host.start("first", group, topic.name, strategy="range", poll_ms=60_000)
    second = await host.start("second", group, topic.name, strategy="range", poll_ms=60_000)
    await host.until(lambda: share(first, second, partitions=2), "two members share two partitions")
    topic.grow(6)
    written = topic.write(0, 12)
    await host.until(lambda: share(first, second, partitions=6), "they share six")
    if host.kind != "aiokafka":  # 0.14 was seen never to read partitions that it heard of before Kafka led them
        await host.until(lambda: first.values | second.values == written, "the new ones are read from their beginning")


async def test_a_static_member_that_starts_again_has_its_own_partitions_without_a_rebalance(
    host: Host, open_host: OpenHost, make_topic: MakeTopic
) -> None:
    topic, group = make_topic(4), fresh_group()
    stays = await host.start("stays", group, topic.name, strategy="range", instance_id="stays")
    # One that is stopped in good order, and one that is killed: neither says farewell.
    stopped = await host.start("stopped", group, topic.name, strategy="range", instance_id="stopped")
    killed_host = await open_host(host.kind)
    killed = await killed_host.start("killed", group, topic.name, strategy="range", instance_id="killed")
    await killed_host.until(lambda: bool(killed.partitions), "the one that will be killed has its share")
    await host.until(lambda: share(stays, stopped, killed, partitions=4), "three members share")
    generation = generation_of(host, group, stays)
    told = stays.assignments

    await host.stop(stopped)
    again = await host.start("again", group, topic.name, strategy="range", instance_id="stopped")
    await host.until(lambda: again.partitions == stopped.partitions, "who was stopped has its own again")
    await killed_host.kill()
    risen = await host.start("risen", group, topic.name, strategy="range", instance_id="killed")
    await host.until(lambda: risen.partitions == killed.partitions, "who was killed has its own again")

    assert generation_of(host, group, stays) == generation
    assert stays.assignments == told
    assert again.member_id != stopped.member_id


# -- small hands ------------------------------------------------------------------------------------------------------


def generation_of(host: Host, group: str, client: Client) -> int:
    """The only generation in which the member's heartbeat is taken; clients do not tell it."""
    port = int(host.bootstrap.rpartition(":")[2])
    with raw_client(port) as raw:
        for generation in range(1, 50):
            answer = raw.ask(
                12, 4, group_id=group, generation_id=generation, member_id=client.member_id,
                group_instance_id=client.name,
            )  # fmt: skip
            if answer.error_code == 0:
                return generation
            assert answer.error_code == 22, answer  # ILLEGAL_GENERATION
    raise AssertionError(f"{client.name} is in no generation")
