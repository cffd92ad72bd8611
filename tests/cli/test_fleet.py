"""The startup status of a fleet's workers, the settings of its processes, and the members of its group."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.broker.settings import BrokerSettings
from coterie.cli.fleet import GROUP_ID, Fleet, FleetSettings
from coterie.cli.processes import Children
from coterie.cli.workers.settings_file import read_properties
from coterie.nouns.membership import GroupProtocolName
from tests.broker.apis.connect_groups.worker import Worker
from tests.broker.conftest import ThreadedBroker, raw_client
from tests.cli.waiting import wait_until
from tests.ports import free_port

pytestmark = pytest.mark.processes


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    with Children(tmp_path / "logs") as children:
        yield children


def test_a_worker_whose_process_has_ended_is_not_shown_as_starting(tmp_path: Path, children: Children) -> None:
    lines: list[str] = []
    fleet = Fleet(
        FleetSettings(data_folder=tmp_path, broker_port=free_port(), first_rest_port=free_port()),
        children,
        print_line=lines.append,
    )
    worker = children.start_python("worker-0", ["-c", "input()"])
    fleet.workers[0] = children.start_python("worker-0", ["-c", "import time; time.sleep(600)"])
    assert fleet.worker_unready_reason(0) == "its process is starting"
    fleet.workers[0] = worker
    wait_until(lambda: not worker.is_running, "the worker has ended")
    assert fleet.worker_unready_reason(0) == "its process has ended (exit code 1)"
    assert not fleet.is_worker_ready(0)
    fleet.handle_ended_children()
    assert fleet.worker_unready_reason(0) == "its process has ended"
    fleet.close()


def test_a_workers_settings_file_has_a_data_folder_with_unusual_characters(tmp_path: Path, children: Children) -> None:
    data_folder = tmp_path / "a\nlisteners=x\r\\n = : ä#"
    fleet = Fleet(
        FleetSettings(data_folder=data_folder, broker_port=free_port(), first_rest_port=free_port()),
        children,
        print_line=lambda line: None,
    )
    fleet.start_worker(0)
    fleet.close()
    properties = read_properties(data_folder / "workers" / "worker-0.properties")
    assert properties["checkpoint.location"] == str(data_folder / "checkpoints")
    assert properties["listeners"] == fleet.settings.rest_url(0)


def test_the_members_timeouts_are_settings_of_workers_or_of_the_broker(tmp_path: Path) -> None:
    def settings(group_protocol: GroupProtocolName) -> FleetSettings:
        return FleetSettings(
            data_folder=tmp_path,
            broker_port=1,
            first_rest_port=2,
            extra_worker_settings={"worker.key": "value"},
            initial_rebalance_delay_ms=7,
            group_protocol=group_protocol,
            session_timeout_ms=8,
            heartbeat_interval_ms=9,
        )

    classic = settings(GroupProtocolName.CLASSIC)
    assert classic.broker_timing_options == ["--initial-delay-ms", "7"]
    assert classic.protocol_and_extra_worker_properties == {
        "group.protocol": "classic",
        "session.timeout.ms": "8",
        "heartbeat.interval.ms": "9",
        "worker.key": "value",
    }
    connect = settings(GroupProtocolName.CONNECT)
    assert connect.broker_timing_options == [
        "--initial-delay-ms", "7",
        "--config", "group.connect.initial.rebalance.delay.ms=7",
        "--config", "group.connect.session.timeout.ms=8",
        "--config", "group.connect.heartbeat.interval.ms=9",
    ]  # fmt: skip
    assert connect.protocol_and_extra_worker_properties == {"group.protocol": "connect", "worker.key": "value"}


def test_a_connect_group_has_members_until_the_last_one_leaves(tmp_path: Path, children: Children) -> None:
    broker = ThreadedBroker(BrokerSettings(data_path=tmp_path / "broker", port=free_port()))
    broker.start()
    settings = FleetSettings(data_folder=tmp_path, broker_port=broker.port, first_rest_port=free_port())
    fleet = Fleet(settings, children, print_line=lambda line: None)
    try:
        assert not fleet.may_group_have_members()
        with raw_client(broker.port) as client:
            worker = Worker(client, "w0", GROUP_ID)
            worker.beat()
            assert fleet.may_group_have_members()
            worker.beat(member_epoch=-1)
        assert not fleet.may_group_have_members()
    finally:
        broker.stop()
    assert fleet.may_group_have_members(), "a broker that does not respond may have members"
    fleet.close()
