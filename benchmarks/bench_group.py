"""How fast a group coordinator is: Coterie's embedded broker, and for comparison Apache Kafka in the same run.

``python -m benchmarks.bench_group --members 1000`` prints one JSON line; `docs/benchmarks.md` explains its keys.
"""

import argparse
import asyncio
import gc
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import brokers, group_events
from benchmarks.brokers import MeasuredBroker, print_progress
from benchmarks.light_groups import HEARTBEAT_INTERVAL_S, LightConnectGroup, LightGroup
from coterie.nouns.errors import WorldError
from tests.kafka.real_kafka import ProgramUnavailableError

JOBS_PER_MEMBER = 3
MORE_JOBS_PER_MEMBER = 30
MORE_JOBS_MEMBERS_MAX = 100
MORE_JOBS_GROUP = "bench-more-30"
"""As long as the id of the other connect group: the ids are in every heartbeat."""
SETTLED_S = 5.0
"""How long settled members are measured."""
WARM_UP_S = 3
"""How long heartbeats are not counted: a JVM still compiles during this time."""
FILES_BESIDE_MEMBERS = 200
ROUND_S = 2.0
"""How long the heartbeats of one group are counted in each round of ``--heartbeats-in-turn``."""

KAFKA_PROPERTIES = """\
message.max.bytes=20000000
replica.fetch.max.bytes=20000000
"""
"""A group is one record of __consumer_offsets: with the default of 1 MB, a few thousand members are too many."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_group", description=__doc__)
    parser.add_argument("--members", type=int, default=1_000, help="members of the group (default: %(default)s)")
    parser.add_argument("--jobs", type=int, help="jobs of the connect group (default: three for each member)")
    parser.add_argument("--seconds", type=float, default=6, help="for each heartbeat test (default: %(default)s)")
    parser.add_argument("--core", type=int, default=0, help="the broker's core (default: %(default)s)")
    parser.add_argument("--no-peer", action="store_true", help="leave Apache Kafka out")
    parser.add_argument("--only-peer", action="store_true", help="leave the embedded broker out")
    parser.add_argument(
        "--events", action="store_true", help="measure instead events of groups with jobs, one line for each"
    )
    parser.add_argument(
        "--heartbeats-in-turn",
        type=int,
        metavar="ROUNDS",
        help="measure instead the heartbeats of a classic and a connect group on one broker, in turn",
    )
    options = parser.parse_args(arguments)
    if options.heartbeats_in_turn is not None and options.heartbeats_in_turn < 1:
        parser.error("--heartbeats-in-turn: at least one round")
    if options.events:
        results: Iterable[dict[str, Any]] = measure_events(options)
    elif options.heartbeats_in_turn is not None:
        results = [measure_heartbeats_in_turn(options)]
    else:
        results = [measure(options)]
    try:
        for result in results:
            sys.stdout.write(json.dumps(result) + "\n")
            sys.stdout.flush()
    except (WorldError, ProgramUnavailableError) as reason:
        print_progress(f"bench_group: {reason}")
        return 1
    return 0


def measure_events(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield one line for each event, with the figures of a classic group, of a connect group whose leader computes, and
    of one whose coordinator computes."""
    brokers.allow_files(options.members + FILES_BESIDE_MEMBERS)
    load_before = os.getloadavg()[0]
    jobs = options.jobs or JOBS_PER_MEMBER * options.members
    figures = group_events.measure(options.members, jobs, core=options.core)
    for event in group_events.EVENTS:
        yield {
            "benchmark": "group_events",
            "event": event,
            "members": options.members,
            "jobs": jobs,
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "load_before": load_before,
            "load_after": os.getloadavg()[0],
            **{system: events[event] for system, events in figures.items()},
        }


def measure_heartbeats_in_turn(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the heartbeats of a classic and of a connect group, each with ``--members`` members, on one broker. The
    groups alternate, so that other load on the machine affects both alike."""
    gc.disable()  # a pause of this process would be counted as a pause of the broker
    connections = 2 * options.members + FILES_BESIDE_MEMBERS
    brokers.allow_files(connections)
    load_before = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory(prefix="bench-group-") as folder,
        brokers.pinned_to_core(brokers.other_core(options.core)),
        brokers.embedded(Path(folder), core=options.core, connections_max=connections) as broker,
    ):
        figures = asyncio.run(heartbeats_in_turn(broker, options))
    return {
        "benchmark": "group_heartbeats_in_turn",
        "members": options.members,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
        **figures,
    }


async def heartbeats_in_turn(broker: MeasuredBroker, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of both groups by name, and the median of the ratios of the rounds."""
    classic = LightGroup(broker)
    connect = LightConnectGroup(broker, options.jobs or JOBS_PER_MEMBER * options.members)
    groups: dict[str, LightGroup | LightConnectGroup] = {"classic": classic, "connect": connect}
    per_cpu_s: dict[str, list[float]] = {name: [] for name in groups}
    try:
        for name, group in groups.items():
            print_progress(f"{name}: {options.members} members form a group ...")
            await group.connect(options.members)
            await group.form()
        await connect.stop()
        for group in groups.values():
            await group.saturate(WARM_UP_S)
        for number in range(1, options.heartbeats_in_turn + 1):
            print_progress(f"round {number} of {options.heartbeats_in_turn} ...")
            for name, group in groups.items():
                per_cpu_s[name].append((await group.saturate(ROUND_S))["heartbeats_per_cpu_s"])
    finally:
        for group in groups.values():
            group.close()
    ratios = [ours / classics for ours, classics in zip(per_cpu_s["connect"], per_cpu_s["classic"], strict=True)]
    return {
        "rounds": options.heartbeats_in_turn,
        **{name: {"heartbeats_per_cpu_s": statistics.median(values)} for name, values in per_cpu_s.items()},
        "connect_to_classic": round(statistics.median(ratios), 3),
    }


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
            (Path(folder) / "connect").mkdir()
            with brokers.embedded(
                Path(folder) / "connect", core=options.core, connections_max=connections_max
            ) as broker:
                result["connect"] = asyncio.run(measure_connect_group(broker, options))
            result["connect_to_embedded"] = brokers.ratios(result["connect"], result["embedded"])
        if not options.no_peer:
            (Path(folder) / "kafka").mkdir()
            with brokers.kafka(Path(folder) / "kafka", core=options.core, properties=KAFKA_PROPERTIES) as broker:
                result["kafka"] = asyncio.run(measure_system(broker, "kafka", options))
    result["load_after"] = os.getloadavg()[0]
    if "embedded" in result and "kafka" in result:
        result["embedded_to_kafka"] = brokers.ratios(result["embedded"], result["kafka"])
    return result


async def measure_connect_group(broker: MeasuredBroker, options: argparse.Namespace) -> dict[str, float]:
    """Measure all figures of a connect group on the embedded broker."""
    jobs = options.jobs or JOBS_PER_MEMBER * options.members
    group = LightConnectGroup(broker, jobs)
    try:
        print_progress(f"connect: {options.members} members form a group with {jobs} jobs ...")
        await group.connect(options.members - 1)
        figures = await group.form()
        print_progress("connect: settled members ...")
        figures |= await group.measure_settled(SETTLED_S)
        print_progress("connect: one more joins ...")
        figures |= await group.measure_join()
        await group.stop()
        print_progress("connect: heartbeats, as many as possible ...")
        await group.saturate(WARM_UP_S)
        figures |= await group.saturate(options.seconds)
        print_progress(f"connect: heartbeats, one per member every {HEARTBEAT_INTERVAL_S:g} s ...")
        figures |= await group.pace(max(options.seconds, 2 * HEARTBEAT_INTERVAL_S))
        print_progress(f"connect: heartbeats, each held for {HEARTBEAT_INTERVAL_S:g} s ...")
        figures |= await group.hold(max(options.seconds, 2 * HEARTBEAT_INTERVAL_S))
    finally:
        group.close()
    figures["resident_mb"] = round(broker.resident_mb, 1)
    print_progress(f"connect: settled members with {MORE_JOBS_PER_MEMBER} jobs each ...")
    figures["settled_bytes_more_jobs"] = await settled_bytes_more_jobs(broker, options.members)
    return figures | {"jobs": jobs}


async def settled_bytes_more_jobs(broker: MeasuredBroker, members: int) -> float:
    """``settled_bytes`` of another group, whose members have ten times as many jobs as by default."""
    count = min(members, MORE_JOBS_MEMBERS_MAX)
    group = LightConnectGroup(broker, MORE_JOBS_PER_MEMBER * count, group_id=MORE_JOBS_GROUP)
    try:
        await group.connect(count)
        await group.form()
        return (await group.measure_settled(SETTLED_S))["settled_bytes"]
    finally:
        group.close()


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


if __name__ == "__main__":
    sys.exit(main())
