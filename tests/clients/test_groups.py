"""Consumer groups of unmodified clients, each test on the embedded broker and on Apache Kafka."""

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


def are_shared(*clients: Client, partitions: int) -> bool:
    """Whether every partition is assigned to exactly one of the clients, and their counts differ by at most one."""
    counts = [len(client.partitions) for client in clients]
    together = sorted(partition for client in clients for partition in client.partitions)
    return together == list(range(partitions)) and max(counts) - min(counts) <= 1


async def test_members_share_the_partitions_on_joins_and_leaves_with_every_strategy(
    host: Host, make_topic: MakeTopic
) -> None:
    topic = make_topic(4)
    everything = topic.write(0, 20)

    async def check_strategy(strategy: str) -> None:
        group = fresh_group()
        first = await host.start(f"{strategy}-1", group, topic.name, strategy=strategy)
        await host.until(lambda: are_shared(first, partitions=4), f"{strategy}: one member has all partitions")
        second = await host.start(f"{strategy}-2", group, topic.name, strategy=strategy)
        await host.until(
            lambda: are_shared(first, second, partitions=4), f"{strategy}: two members share the partitions"
        )
        await host.until(lambda: first.values | second.values == everything, f"{strategy}: all messages are read")
        await host.stop(second)
        await host.until(
            lambda: are_shared(first, partitions=4), f"{strategy}: the remaining member has all partitions again"
        )
        await host.stop(first)

    async with asyncio.TaskGroup() as checks:
        for strategy in STRATEGIES[host.kind]:
            checks.create_task(check_strategy(strategy))


async def test_a_crashed_members_partitions_go_to_the_others_after_its_session(
    host: Host, open_host: OpenHost, make_topic: MakeTopic
) -> None:
    topic, group = make_topic(4), fresh_group()
    survivor = await host.start("survivor", group, topic.name, strategy="range")
    lost_host = await open_host(host.kind)
    lost = await lost_host.start("lost", group, topic.name, strategy="range", session_timeout_ms=2_000)
    await lost_host.until(lambda: len(lost.partitions) == 2, "the member to be killed has its share")
    await host.until(lambda: are_shared(survivor, lost, partitions=4), "both members have their shares")
    written = topic.write(0, 12)
    await lost_host.kill()
    await host.until(lambda: are_shared(survivor, partitions=4), "the survivor has all partitions")
    # The killed member has committed nothing, so its messages are read again.
    await host.until(lambda: survivor.values == written, "the survivor reads all messages")


async def test_a_new_member_continues_at_the_groups_committed_offsets(host: Host, make_topic: MakeTopic) -> None:
    topic, group = make_topic(3), fresh_group()
    before = topic.write(0, 30)
    first = await host.start("first", group, topic.name, strategy="roundrobin")
    await host.until(lambda: first.values == before, "all messages are read")
    assert topic.lag(group) == 30
    await host.commit(first)
    assert topic.lag(group) == 0
    await host.stop(first)
    after = topic.write(30, 9)
    assert topic.lag(group) == 9
    second = await host.start("second", group, topic.name, strategy="roundrobin")
    await host.until(lambda: second.values >= after, "the messages written meanwhile are read")
    assert second.values == after
    assert len(second.read) == 9


async def test_added_partitions_are_shared_too(host: Host, make_topic: MakeTopic) -> None:
    topic, group = make_topic(2), fresh_group()
    # A leader of kafka-python 3.0 that sees new partitions and gets its sync response between two polls loses its
    # own assignment permanently, on either broker: its polls must not end before.
    first = await host.start("first", group, topic.name, strategy="range", poll_ms=60_000)
    second = await host.start("second", group, topic.name, strategy="range", poll_ms=60_000)
    await host.until(lambda: are_shared(first, second, partitions=2), "two members share the two partitions")
    topic.grow(6)
    written = topic.write(0, 12)
    await host.until(lambda: are_shared(first, second, partitions=6), "the two members share six partitions")
    if (
        host.kind != "aiokafka"
    ):  # 0.14 never read partitions that were in its metadata before Kafka had elected their leader
        await host.until(
            lambda: first.values | second.values == written, "the new partitions are read from their beginning"
        )


async def test_a_static_member_that_restarts_gets_its_own_partitions_without_a_rebalance(
    host: Host, open_host: OpenHost, make_topic: MakeTopic
) -> None:
    topic, group = make_topic(4), fresh_group()
    stays = await host.start("stays", group, topic.name, strategy="range", instance_id="stays")
    # One member that is stopped, and one that is killed: neither sends LeaveGroup.
    stopped = await host.start("stopped", group, topic.name, strategy="range", instance_id="stopped")
    killed_host = await open_host(host.kind)
    killed = await killed_host.start("killed", group, topic.name, strategy="range", instance_id="killed")
    await killed_host.until(lambda: bool(killed.partitions), "the member to be killed has its share")
    await host.until(lambda: are_shared(stays, stopped, killed, partitions=4), "three members share the partitions")
    generation = generation_of(host, group, stays)
    assignments_before = stays.assignments

    await host.stop(stopped)
    again = await host.start("again", group, topic.name, strategy="range", instance_id="stopped")
    await host.until(lambda: again.partitions == stopped.partitions, "the stopped member has its own partitions again")
    await killed_host.kill()
    restarted = await host.start("restarted", group, topic.name, strategy="range", instance_id="killed")
    await host.until(
        lambda: restarted.partitions == killed.partitions, "the killed member has its own partitions again"
    )

    assert generation_of(host, group, stays) == generation
    assert stays.assignments == assignments_before
    assert again.member_id != stopped.member_id


# -- helpers ----------------------------------------------------------------------------------------------------------


def generation_of(host: Host, group: str, client: Client) -> int:
    """The only generation in which the member's heartbeat is accepted; the clients do not report it."""
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
