"""How fast a group coordinator is: Coterie's embedded broker, and for comparison Apache Kafka in the same run.

``python -m benchmarks.bench_group --members 1000`` prints one JSON line; `docs/benchmarks.md` explains its keys.
"""

import argparse
import asyncio
import gc
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import brokers
from benchmarks.brokers import MeasuredBroker, print_progress
from benchmarks.light_member import LightMember
from coterie.nouns.errors import WorldError
from coterie.wire.errors import ErrorCode
from tests.kafka.real_kafka import ProgramUnavailableError

GROUP = "bench"
HEARTBEAT_INTERVAL_S = 3.0
IN_FLIGHT_MAX = 256
"""Heartbeats in flight at once while the coordinator's throughput is measured."""
WARM_UP_S = 3
"""How long heartbeats are not counted: a JVM still compiles during this time."""
CONNECTING_MAX = 200
FILES_BESIDE_MEMBERS = 200

KAFKA_PROPERTIES = """\
message.max.bytes=20000000
replica.fetch.max.bytes=20000000
"""
"""A group is one record of __consumer_offsets: with the default of 1 MB, a few thousand members are too many."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_group", description=__doc__)
    parser.add_argument("--members", type=int, default=1_000, help="members of the group (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=6, help="for each heartbeat test (default: %(default)s)")
    parser.add_argument("--core", type=int, default=0, help="the broker's core (default: %(default)s)")
    parser.add_argument("--no-peer", action="store_true", help="leave Apache Kafka out")
    parser.add_argument("--only-peer", action="store_true", help="leave the embedded broker out")
    options = parser.parse_args(arguments)
    try:
        result = measure(options)
    except (WorldError, ProgramUnavailableError) as reason:
        print_progress(f"bench_group: {reason}")
        return 1
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    gc.disable()  # a pause of this process would be counted as a pause of the broker
    brokers.allow_files(options.members + FILES_BESIDE_MEMBERS)
    result: dict[str, Any] = {
        "benchmark": "group",
        "members": options.members,
        "heartbeat_interval_s": HEARTBEAT_INTERVAL_S,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
    }
    client_core = brokers.other_core(options.core)
    with tempfile.TemporaryDirectory(prefix="bench-group-") as folder, brokers.pinned_to_core(client_core):
        if not options.only_peer:
            connections_max = options.members + FILES_BESIDE_MEMBERS
            with brokers.embedded(Path(folder), core=options.core, connections_max=connections_max) as broker:
                result["embedded"] = asyncio.run(measure_system(broker, "embedded", options))
        if not options.no_peer:
            (Path(folder) / "kafka").mkdir()
            with brokers.kafka(Path(folder) / "kafka", core=options.core, properties=KAFKA_PROPERTIES) as broker:
                result["kafka"] = asyncio.run(measure_system(broker, "kafka", options))
    result["load_after"] = os.getloadavg()[0]
    if "embedded" in result and "kafka" in result:
        result["embedded_to_kafka"] = brokers.ratios(result["embedded"], result["kafka"])
    return result


async def measure_system(broker: MeasuredBroker, name: str, options: argparse.Namespace) -> dict[str, float]:
    """Measure all figures of one broker; ``name`` is printed with the progress."""
    group = LightGroup(broker)
    try:
        print_progress(f"{name}: {options.members} members form a group ...")
        await group.connect(options.members - 1)
        figures = await group.form()
        print_progress(f"{name}: one more joins ...")
        figures |= await group.measure_join()
        print_progress(f"{name}: heartbeats, as many as possible ...")
        await group.saturate(WARM_UP_S)
        figures |= await group.saturate(options.seconds)
        print_progress(f"{name}: heartbeats, one per member every {HEARTBEAT_INTERVAL_S:g} s ...")
        figures |= await group.pace(max(options.seconds, 2 * HEARTBEAT_INTERVAL_S))
    finally:
        group.close()
    figures["resident_mb"] = round(broker.resident_mb, 1)
    return figures


class LightGroup:
    """The members of one group, all in this process."""

    def __init__(self, broker: MeasuredBroker) -> None:
        self._broker = broker
        self._members: list[LightMember] = []
        self._last_join_s = 0.0

    async def connect(self, count: int) -> None:
        room = asyncio.Semaphore(CONNECTING_MAX)

        async def connect_one() -> None:
            async with room:
                await self._connect()

        await all_of([connect_one() for _ in range(count)])
        await self._members[0].find_coordinator()

    async def form(self) -> dict[str, float]:
        """Let all members join at once; the returned figures include the initial rebalance delay."""
        started_s = time.monotonic()
        cpu_s = self._broker.cpu_s
        await all_of([member.join_and_sync(self._note_join) for member in self._members])
        ended_s = time.monotonic()
        return {
            "form_s": round(ended_s - started_s, 3),
            "form_after_last_join_s": round(ended_s - self._last_join_s, 3),
            "form_cpu_s": round(self._broker.cpu_s - cpu_s, 3),
        }

    async def measure_join(self) -> dict[str, float]:
        """Let one more member join while the others send heartbeats at their interval. Returns when all members are in
        the same generation."""
        cpu_s = self._broker.cpu_s
        await self._connect()
        *others, newcomer = self._members
        started_s = time.monotonic()
        await all_of([newcomer.join_and_sync(), *(self._rejoin_on_rebalance(member) for member in others)])
        ended_s = time.monotonic()
        generations = {member.generation for member in self._members}
        assert len(generations) == 1, f"the group has not settled: generations {generations}"
        return {
            "one_more_s": round(ended_s - started_s, 3),
            "one_more_after_last_join_s": round(ended_s - self._last_join_s, 3),
            "one_more_cpu_s": round(self._broker.cpu_s - cpu_s, 3),
        }

    async def saturate(self, seconds: float) -> dict[str, float]:
        """Send heartbeats for ``seconds`` in a closed loop: after each response the next member, in cyclic order, sends
        a heartbeat."""
        loop = asyncio.get_running_loop()
        idle = deque(self._members)
        latencies_s: list[float] = []
        done: asyncio.Future[None] = loop.create_future()
        started_s = time.monotonic()
        until_s = started_s + seconds

        def send() -> None:
            member = idle.popleft()
            sent_s = time.monotonic()
            member.send_heartbeat(lambda error: on_response(member, error, sent_s))

        def on_response(member: LightMember, error: int, sent_s: float) -> None:
            now_s = time.monotonic()
            latencies_s.append(now_s - sent_s)
            idle.append(member)
            if error and not done.done():
                done.set_exception(AssertionError(f"the response to a heartbeat has error {error}"))
            elif now_s < until_s:
                send()
            elif len(idle) == len(self._members) and not done.done():
                done.set_result(None)

        cpu_s = self._broker.cpu_s
        for _ in range(min(IN_FLIGHT_MAX, len(idle))):
            send()
        await done
        took_s = time.monotonic() - started_s
        cpu_s = self._broker.cpu_s - cpu_s
        return {
            "heartbeats_per_s": round(len(latencies_s) / took_s),
            "heartbeats_p50_ms": milliseconds(latencies_s, 0.5),
            "heartbeats_p99_ms": milliseconds(latencies_s, 0.99),
            "heartbeats_per_cpu_s": brokers.per_cpu_s(len(latencies_s), cpu_s),
        }

    async def pace(self, seconds: float) -> dict[str, float]:
        """Let every member send heartbeats at the interval, for ``seconds``. Latency is measured from the time at which
        a heartbeat was due, not from the time at which this process sent the heartbeat."""
        latencies_s: list[float] = []
        cpu_s = self._broker.cpu_s
        started_s = time.monotonic()

        async def beat(member: LightMember, first_s: float) -> None:
            due_s = first_s
            while due_s < started_s + seconds:
                await asyncio.sleep(due_s - time.monotonic())
                error = await member.heartbeat()
                assert error == ErrorCode.none, f"the response to a heartbeat has error {error}"
                latencies_s.append(time.monotonic() - due_s)
                due_s += HEARTBEAT_INTERVAL_S

        spread = [started_s + HEARTBEAT_INTERVAL_S * n / len(self._members) for n in range(len(self._members))]
        await all_of([beat(member, first_s) for member, first_s in zip(self._members, spread, strict=True)])
        took_s = time.monotonic() - started_s
        return {
            "paced_p50_ms": milliseconds(latencies_s, 0.5),
            "paced_p99_ms": milliseconds(latencies_s, 0.99),
            "paced_core_share": round((self._broker.cpu_s - cpu_s) / took_s, 3),
        }

    def close(self) -> None:
        for member in self._members:
            member.close()

    # -- helpers ------------------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        number = len(self._members)
        _, member = await loop.create_connection(lambda: LightMember(GROUP, number), "127.0.0.1", self._broker.port)
        self._members.append(member)

    def _note_join(self) -> None:
        self._last_join_s = time.monotonic()

    async def _rejoin_on_rebalance(self, member: LightMember) -> None:
        # Heartbeats of members are spread over the interval, as if the members had joined at different times.
        pause_s = random.uniform(0, HEARTBEAT_INTERVAL_S)
        error: int = ErrorCode.none
        while error != ErrorCode.rebalance_in_progress:
            await asyncio.sleep(pause_s)
            pause_s = HEARTBEAT_INTERVAL_S
            error = await member.heartbeat()
        await member.join_and_sync(self._note_join)


async def all_of(doing: Sequence[Awaitable[None]]) -> None:
    async def run(one: Awaitable[None]) -> None:
        await one

    async with asyncio.TaskGroup() as tasks:
        for one in doing:
            tasks.create_task(run(one))


def milliseconds(latencies_s: Sequence[float], quantile: float) -> float:
    ordered = sorted(latencies_s)
    return round(1000 * ordered[min(len(ordered) - 1, int(quantile * len(ordered)))], 2)


if __name__ == "__main__":
    sys.exit(main())
