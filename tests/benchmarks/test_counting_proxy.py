"""The proxy of a benchmark counts what the members of a group count themselves."""

from pathlib import Path

import pytest

from benchmarks import counting_proxy
from benchmarks.brokers import MeasuredBroker
from benchmarks.counting_proxy import CONNECT_GROUP_HEARTBEAT, HEARTBEAT, JOIN_GROUP, Frame
from benchmarks.light_groups import LightConnectGroup, LightGroup
from coterie.cli.processes import Children
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.processes.proxy import FIND_COORDINATOR

pytestmark = pytest.mark.processes


def test_frames_are_counted_from_the_first_to_the_last_moment() -> None:
    frames = [
        Frame(at_ms=10, key=HEARTBEAT, is_request=True, size=50),
        Frame(at_ms=11, key=FIND_COORDINATOR, is_request=False, size=30),
        Frame(at_ms=12, key=JOIN_GROUP, is_request=True, size=200),
        Frame(at_ms=20, key=HEARTBEAT, is_request=False, size=20),
        Frame(at_ms=21, key=HEARTBEAT, is_request=True, size=50),
    ]
    assert counting_proxy.cost(frames, 11, 20) == {"requests": 1, "bytes": 250}
    assert counting_proxy.first_join_ms(frames) == 12
    assert counting_proxy.first_join_ms(frames[3:]) is None


async def test_requests_and_bytes_of_a_classic_group_are_counted(mortal_broker: EmbeddedBroker, tmp_path: Path) -> None:
    with Children(tmp_path) as children, counting_proxy.counted("classic", mortal_broker.port, children) as traffic:
        group = LightGroup(MeasuredBroker(port=traffic.port, pid=mortal_broker.pid))
        try:
            await group.connect(3)
            await group.form()
            await group.pace(0.2)
            counted = counting_proxy.cost(frames := traffic.frames(0), 0, frames[-1].at_ms)
            assert counted == {
                "requests": sum(member.requests for member in group.members),
                "bytes": sum(member.sent_bytes + member.received_bytes for member in group.members),
            }
        finally:
            group.close()


async def test_held_heartbeats_that_are_overtaken_are_counted(mortal_broker: EmbeddedBroker, tmp_path: Path) -> None:
    with Children(tmp_path) as children, counting_proxy.counted("connect", mortal_broker.port, children) as traffic:
        group = LightConnectGroup(MeasuredBroker(port=traffic.port, pid=mortal_broker.pid), 30)
        try:
            await group.connect(3)
            await group.form()
            group.members[-1].drain()  # while its heartbeat is held
            await group.until(lambda: not group.members[-1].owned)
            await group.stop()
            frames = traffic.frames(0)
            counted = counting_proxy.cost(frames, 0, frames[-1].at_ms)
            assert counted == {
                "requests": sum(member.requests for member in group.members),
                "bytes": sum(member.sent_bytes + member.received_bytes for member in group.members),
            }
            requests = [frame.key for frame in frames if frame.is_request]
            assert requests.count(CONNECT_GROUP_HEARTBEAT) == sum(member.heartbeats for member in group.members)
        finally:
            group.close()
