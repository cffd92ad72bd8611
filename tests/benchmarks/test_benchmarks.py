"""The benchmarks run, and print only values that their page explains; no test checks the speed."""

import argparse
import os
from pathlib import Path

import pytest

from benchmarks import bench_group, bench_log, counting_proxy, fleets, group_events
from benchmarks.bench_rebalance import Bench, medians
from benchmarks.brokers import MeasuredBroker, allow_files, ratios
from benchmarks.fleets import ConnectGroupWorkers, CoterieWorkers
from benchmarks.light_groups import LightConnectGroup, LightGroup
from coterie.cli.processes import Children
from coterie.nouns.errors import WorldError
from tests.kafka.embedded_broker import EmbeddedBroker

pytestmark = pytest.mark.processes

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


@pytest.fixture
def measured(mortal_broker: EmbeddedBroker) -> MeasuredBroker:
    return MeasuredBroker(port=mortal_broker.port, pid=mortal_broker.pid)


def unexplained(figures: dict[str, float]) -> list[str]:
    page = PAGE.read_text()
    return [key for key in figures if f"`{key}`" not in page]


async def test_light_members_form_a_group_and_send_heartbeats(measured: MeasuredBroker) -> None:
    group = LightGroup(measured)
    try:
        await group.connect(9)
        figures = await group.form()
        figures |= await group.measure_join()
        figures |= await group.saturate(0.2)
        figures |= await group.pace(0.2)
    finally:
        group.close()
    assert figures["heartbeats_per_s"] > 0
    assert not unexplained(figures)


async def test_light_members_form_a_connect_group_and_send_heartbeats(measured: MeasuredBroker) -> None:
    group = LightConnectGroup(measured, 30)
    try:
        await group.connect(9)
        figures = await group.form()
        figures |= await group.measure_settled(1.2)
        figures |= await group.measure_join()
        await group.stop()
        figures |= await group.saturate(0.2)
        figures |= await group.pace(0.2)
        figures |= await group.hold(0.2)
    finally:
        group.close()
    assert figures["heartbeats_per_s"] > 0
    assert figures["one_more_computations"] == 1
    assert figures["settled_bytes"] < 200
    assert not unexplained(figures)


async def test_heartbeats_of_a_classic_and_a_connect_group_are_measured_in_turn(
    measured: MeasuredBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_group, "ROUND_S", 0.1)
    monkeypatch.setattr(bench_group, "WARM_UP_S", 0.1)
    options = argparse.Namespace(members=5, jobs=None, heartbeats_in_turn=2)
    figures = await bench_group.heartbeats_in_turn(measured, options)
    assert figures["rounds"] == 2
    assert figures["classic"]["heartbeats_per_cpu_s"] > 0
    assert figures["connect"]["heartbeats_per_cpu_s"] > 0
    assert not unexplained(figures)


@pytest.mark.parametrize("system", group_events.SYSTEMS)
def test_each_event_of_a_group_stops_as_few_jobs_as_possible(system: str) -> None:
    figures = group_events.measure_system(system, 3, 40, core=min(os.sched_getaffinity(0)), idle_s=0.2)
    assert list(figures) == list(group_events.EVENTS)
    for event, one in figures.items():
        assert (one["stopped"], one["others_stopped"]) == (one["optimum"], 0), event
        assert one["requests"] > 0, event
        assert not unexplained(one)
    assert (figures["join"]["moved"], figures["join"]["stopped"]) == (10, 10)
    assert (figures["leave"]["moved"], figures["crash"]["moved"], figures["drain"]["moved"]) == (10, 10, 10)
    assert (figures["bounce"]["moved"], figures["roll"]["moved"]) == (0, 0)
    # A leader of a classic group that has restarted starts a rebalance, to receive its members' metadata again.
    assert (figures["bounce"]["computations"], figures["roll"]["computations"]) == (0, int(system == "classic"))


def test_records_are_produced_fetched_and_written_one_by_one(measured: MeasuredBroker) -> None:
    options = argparse.Namespace(records=2_000, size=100, singles=5)
    figures = bench_log.measure_system(measured, "embedded", options)
    assert figures["fetched_records_per_s"] > 0
    assert not unexplained(figures)


def test_the_result_of_several_runs_has_the_median_of_each_key() -> None:
    runs = [{"down": 0.3, "rounds": 2}, {"down": 0.1, "rounds": 4, "stall": 9}, {"down": 0.2, "rounds": 3}]
    assert medians(runs) == {"down": 0.2, "rounds": 3, "stall": 9}
    assert medians(runs[:2]) == {"down": 0.1, "rounds": 2, "stall": 9}


def test_a_fleet_of_light_tasks_is_created_grown_and_shrunk(tmp_path: Path) -> None:
    home = tmp_path / "light"
    home.mkdir()
    with Children(tmp_path / "logs") as children, fleets.broker(tmp_path / "broker", children) as broker:
        workers = CoterieWorkers(home, children, port=broker.port, protocol="static", delay_ms=0)
        bench = Bench(workers, 20, idle_s=0)
        workers.start()
        bench.settle_group()
        created, joined, left = bench.create(), bench.join(), bench.lose(workers.drain)
        workers.end()
    assert fleets.heartbeat_gap_ms(tmp_path / "broker", workers.group_id) > 0
    assert workers.longest_stall_ms() > 0
    assert (created["restarted"], joined["stopped"], joined["optimum"], left["stopped"]) == (0, 10, 10, 0)
    assert (joined["moved"], left["moved"]) == (10, 10)
    assert joined["rounds"] == 2, "one rebalance that revokes, and one that assigns"
    assert not unexplained(created | joined | left)


def test_a_fleet_in_a_connect_group_is_created_grown_restarted_and_shrunk(tmp_path: Path) -> None:
    home = tmp_path / "light"
    home.mkdir()
    with (
        Children(tmp_path / "logs") as children,
        fleets.broker(tmp_path / "broker", children) as broker,
        counting_proxy.counted("light", broker.port, children) as traffic,
    ):
        workers = ConnectGroupWorkers(
            home, children, port=broker.port, protocol="client", delay_ms=0, workers_port=traffic.port
        )
        bench = Bench(workers, 20, idle_s=0, traffic=traffic)
        workers.start()
        bench.settle_group()
        events = {"create": bench.create(), "join": bench.join(), "add": bench.add(), "remove": bench.remove()}
        events |= {"bounce": bench.bounce(), "lose": bench.lose(workers.drain)}
        workers.end()
    assert (events["join"]["moved"], events["join"]["stopped"], events["join"]["rounds"]) == (10, 10, 1)
    assert (events["bounce"]["moved"], events["bounce"]["others_stopped"]) == (0, 10)
    assert events["lose"]["moved"] == 10
    assert events["join"]["computations"] == 1
    assert all(figures["requests"] > 0 for figures in events.values())
    assert (events["remove"]["stopped"], events["remove"]["optimum"]) == (0, 0)
    assert not [key for figures in events.values() for key in unexplained(figures)]


def test_a_too_low_limit_of_open_files_is_reported() -> None:
    with pytest.raises(WorldError, match="1000000000 open files are needed"):
        allow_files(1_000_000_000)


def test_a_ratio_is_our_value_divided_by_theirs() -> None:
    assert ratios({"a": 3.0, "b": 1.0}, {"a": 2.0, "b": 0.0}) == {"a": 1.5}
