"""`coterie groups` against a broker: what each command prints and changes, and its errors."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie.broker.settings import BrokerSettings
from coterie.cli.groups import commands
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.nouns.errors import ConfigError, WorldError
from tests.broker.apis.connect_groups.worker import COMPUTE_ASSIGNMENT, Worker
from tests.broker.conftest import QUICK, ThreadedBroker, raw_client
from tests.broker.secured import PASSWORD, USER, secured_broker
from tests.cli.command import coterie
from tests.ports import free_port

SESSION = "connect.session.timeout.ms"


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadedBroker]:
    monkeypatch.setenv("COLUMNS", "200")
    settings = BrokerSettings(
        data_path=tmp_path / "broker",
        port=free_port(),
        group_limits=QUICK,
        connect_groups=ConnectGroupSettings(
            session_timeout_ms=60_000, assignment_interval_ms=0, initial_rebalance_delay_ms=0
        ),
    )
    threaded = ThreadedBroker(settings)
    threaded.start()
    yield threaded
    threaded.stop()


class Operator:
    """Runs commands against a broker, and returns what they print."""

    def __init__(self, broker: ThreadedBroker, printed: pytest.CaptureFixture[str]) -> None:
        self.admin = commands.make_group_admin(broker.bootstrap, None)
        self._printed = printed

    def list(self) -> str:
        commands.list_groups(self.admin, as_json=False)
        return self._printed.readouterr().out

    def describe(self, group: str = "workers") -> str:
        commands.describe_group(self.admin, group, as_json=False)
        return self._printed.readouterr().out

    def described(self, group: str = "workers") -> Any:
        commands.describe_group(self.admin, group, as_json=True)
        return json.loads(self._printed.readouterr().out)

    def config(self, *set_: str, delete: tuple[str, ...] = (), group: str = "workers") -> dict[str, tuple[str, bool]]:
        """The value of each config, and whether it is set on the group."""
        commands.change_and_print_configs(self.admin, group, set_=set_, delete=delete, as_json=True)
        configs = json.loads(self._printed.readouterr().out)["configs"]
        return {one["name"]: (one["value"], one["is_set"]) for one in configs}

    def remove(self, member: str, group: str = "workers") -> str:
        commands.remove_member(self.admin, group, member)
        return self._printed.readouterr().out


@pytest.fixture
def operator(broker: ThreadedBroker, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(broker, capsys)


@pytest.fixture
def anna(broker: ThreadedBroker) -> Iterator[Worker]:
    """A worker that has all jobs: c0 and c1 with two tasks each."""
    with raw_client(broker.port) as client:
        worker = Worker(client, "m-anna", name="anna", url="http://anna:8083/")
        worker.settle()
        yield worker


def joined(client: Any) -> Worker:
    """A second worker, for which no target is computed yet."""
    worker = Worker(client, "m-bert", name="bert", url="http://bert:8083/", instance_id="place-of-bert")
    worker.beat()
    return worker


def test_groups_are_listed_with_their_types_and_states(operator: Operator, anna: Worker) -> None:
    header, line = operator.list().splitlines()
    assert header.split() == ["group", "type", "state", "members", "are"]
    assert line.split() == ["workers", "connect", "Stable", "workers"]


def test_a_broker_without_groups_has_a_message_instead_of_a_table(operator: Operator) -> None:
    assert operator.list() == "There are no groups.\n"


def test_a_settled_group_is_described_by_epochs_and_numbers_of_jobs(operator: Operator, anna: Worker) -> None:
    title, header, line = operator.describe().splitlines()
    assert title == (
        "Connect group workers: Stable, group epoch 1, assignment epoch 1, assignor even, led by anna (leader epoch 1)"
    )
    assert header.split() == ["worker", "at", "state", "epoch", "current", "target", "to", "stop", "config", "offset"]
    assert line.split() == ["anna", "anna:8083", "STABLE", "1", "6", "6", "0", "-1"]


def test_each_wait_is_described_with_its_reason(operator: Operator, anna: Worker, broker: ThreadedBroker) -> None:
    with raw_client(broker.port) as client:
        bert = joined(client)
        assert anna.beat().error_code == COMPUTE_ASSIGNMENT
        assert "anna computes the target of group epoch 2." in operator.describe()
        anna.compute()
        moved = "3 jobs (c1, c0-1, c1-1)"
        bert.beat(full=True)
        assert (
            f"bert waits for {moved}: anna receives the order to stop them with the response to its next heartbeat."
        ) in operator.describe()
        anna.beat()
        lines = operator.describe()
        assert f"anna must stop {moved}, and has not reported the stop." in lines
        assert (
            f"bert waits for {moved}: anna has received the order to stop them, and has not reported the stop." in lines
        )
        described = operator.described()
        assert [(one["name"], one["state"]) for one in described["members"]] == [
            ("anna", "PREPARING_REBALANCE"), ("bert", "COMPLETING_REBALANCE"),
        ]  # fmt: skip
        assert described["members"][0]["to_stop"]["connectors"] == ["c1"]
        (wait,) = described["members"][1]["waits_for"]
        assert (wait["holder"], wait["jobs"]["connectors"]) == ("m-anna", ["c1"])


def test_the_error_of_a_computation_is_shown(operator: Operator, anna: Worker, broker: ThreadedBroker) -> None:
    with raw_client(broker.port) as client:
        joined(client)
        anna.beat()
        prepared = anna.prepare()
        assert anna.install(prepared.group_epoch, {}, error=7).error_code == 0
        (line,) = (one for one in operator.describe().splitlines() if one.startswith("The last computation has failed"))
        assert "7" in line


def test_a_removed_member_loses_its_place_and_its_jobs_stay_held(
    operator: Operator, anna: Worker, broker: ThreadedBroker
) -> None:
    with raw_client(broker.port) as client:
        joined(client)
        assert operator.remove("anna") == "Removed anna from group workers.\n"
        printed = operator.describe()
        assert (
            "anna:8083 has left without stopping its jobs: they may run there, and start on no other worker, for "
            in printed
        )
        assert [one["member_id"] for one in operator.described()["departed"]] == ["m-anna"]
        assert anna.beat().error_code == 25, "UNKNOWN_MEMBER_ID: it stops its jobs and joins again"
        operator.remove("bert")
        with pytest.raises(WorldError, match="group workers has no members"):
            operator.remove("anna")


@pytest.mark.parametrize("name", ["bert", "bert:8083", "m-bert", "place-of-bert"])
def test_a_member_is_found_by_each_of_its_names(
    operator: Operator, anna: Worker, broker: ThreadedBroker, name: str
) -> None:
    with raw_client(broker.port) as client:
        joined(client)
        assert operator.remove(name) == "Removed bert from group workers.\n"
        assert [one["name"] for one in operator.described()["members"]] == ["anna"]


@pytest.mark.parametrize("member", ["", "carl:8083"])
def test_an_empty_name_and_that_of_a_departed_worker_remove_no_member(
    operator: Operator, anna: Worker, broker: ThreadedBroker, member: str
) -> None:
    with raw_client(broker.port) as client:
        carl = Worker(client, "m-carl", name="", url="http://carl:8083/")
        carl.beat()
        operator.remove("m-carl")
        with pytest.raises(WorldError, match=r"MEMBER is empty: |no member carl:8083 in group workers; .* of: anna$"):
            operator.remove(member)
        assert [one["name"] for one in operator.described()["members"]] == ["anna"]


def test_a_name_that_is_not_unique_removes_no_member(operator: Operator, anna: Worker, broker: ThreadedBroker) -> None:
    with raw_client(broker.port) as client:
        Worker(client, "m-other", name="anna", url="http://other:8083/").beat()
        with pytest.raises(WorldError, match=r"2 members are called anna in group workers; .*: m-anna, m-other$"):
            operator.remove("anna")
        with pytest.raises(WorldError, match=r"there is no member carl in group workers; .*: m-anna, m-other$"):
            operator.remove("carl")
        assert len(operator.described()["members"]) == 2


def test_a_config_is_set_shown_and_deleted(operator: Operator, anna: Worker) -> None:
    assert operator.config()[SESSION] == ("60000", False)
    assert operator.config(f"{SESSION}=7000", "share.delivery.count.limit=7")[SESSION] == ("7000", True)
    assert anna.beat().session_timeout_ms == 7_000
    assert operator.config()["share.delivery.count.limit"] == ("7", True)
    changed = operator.config(delete=(SESSION, "share.delivery.count.limit"))
    assert changed[SESSION] == ("60000", False)
    assert "share.delivery.count.limit" not in changed


def test_the_configs_of_a_group_are_a_table(
    operator: Operator, anna: Worker, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.change_and_print_configs(operator.admin, "workers", set_=[f"{SESSION}=7000"], delete=(), as_json=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["config", "value", "set", "on"]
    assert [SESSION, "7000", "the", "group"] in lines
    assert ["connect.heartbeat.interval.ms", "3000", "the", "broker"] in lines


def test_a_config_of_a_group_that_does_not_exist_is_kept_with_a_warning(
    operator: Operator, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.change_and_print_configs(operator.admin, "later", set_=[f"{SESSION}=7000"], delete=(), as_json=True)
    printed = capsys.readouterr()
    assert printed.err == "There is no group later yet; its configs are kept for a connect group of this id.\n"
    assert operator.config(group="later")[SESSION] == ("7000", True)


@pytest.mark.parametrize(
    ("set_", "delete", "error"),
    [
        (["x"], [], "--set x: use KEY=VALUE"),
        (["=1"], [], "--set =1: use KEY=VALUE"),
        ([f"{SESSION}=7000", f"{SESSION}=8000"], [], f"{SESSION} is given twice"),
        ([f"{SESSION}=7000"], [SESSION], f"{SESSION} is given twice"),
        ([f"{SESSION}=5"], [], f"INVALID_CONFIG: Invalid value 5 for configuration {SESSION}"),
        (["connect.session=5"], [], "Unknown group config name: connect.session"),
    ],
)
def test_a_change_that_is_not_valid_changes_nothing(
    operator: Operator, anna: Worker, set_: list[str], delete: list[str], error: str
) -> None:
    with pytest.raises(WorldError, match=error):
        operator.config(*set_, delete=tuple(delete))
    assert operator.config()[SESSION] == ("60000", False)


def test_a_group_that_does_not_exist_is_named(operator: Operator) -> None:
    missing = r"there is no classic or connect group workers; .* coterie groups list"
    with pytest.raises(WorldError, match=missing):
        operator.describe()
    with pytest.raises(WorldError, match=missing):
        operator.remove("anna")


def test_the_client_logs_in_with_the_settings_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    file = tmp_path / "client.properties"
    rules = f"allow User:{USER} describe group:mine\n"
    with secured_broker(tmp_path, "SASL_PLAINTEXT", rules=rules) as broker:
        file.write_text(
            f"bootstrap.servers={broker.bootstrap}\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f"sasl.username={USER}\nsasl.password={PASSWORD}\ngroup.id=ignored\n"
        )
        admin = commands.make_group_admin(None, file)
        commands.list_groups(admin, as_json=True)
        assert json.loads(capsys.readouterr().out) == []
        with pytest.raises(WorldError, match="there is no classic or connect group mine"):
            commands.describe_group(admin, "mine", as_json=False)
        with pytest.raises(WorldError, match=r"GROUP_AUTHORIZATION_FAILED; the broker's access rules"):
            commands.describe_group(admin, "theirs", as_json=False)
        with pytest.raises(WorldError, match=r"GROUP_AUTHORIZATION_FAILED: .*; the broker's access rules"):
            commands.change_and_print_configs(admin, "mine", set_=(), delete=(), as_json=False)
        with pytest.raises(WorldError, match=r"cannot change the configs of group mine: GROUP_AUTHORIZATION_FAILED"):
            commands.change_and_print_configs(admin, "mine", set_=[f"{SESSION}=7000"], delete=(), as_json=False)
        with pytest.raises(WorldError, match=f"connection to the broker at {broker.bootstrap} broke"):
            commands.list_groups(commands.make_group_admin(broker.bootstrap, None), as_json=True)


def test_invalid_options_are_refused_with_the_file_or_option(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    with pytest.raises(WorldError, match=f"{file} cannot be read: No such file"):
        commands.make_group_admin(None, file)
    file.write_text("security.protocol=TLS\n")
    with pytest.raises(ConfigError, match=f"{file}: Invalid value TLS for configuration security.protocol"):
        commands.make_group_admin(None, file)
    file.write_text("bootstrap.servers=one\n")
    with pytest.raises(WorldError, match=f"{file}: one is not host:port"):
        commands.make_group_admin(None, file)
    with pytest.raises(WorldError, match="--bootstrap-servers: one is not host:port"):
        commands.make_group_admin("one", file)


def test_the_commands_of_a_terminal_show_a_group_and_its_errors(broker: ThreadedBroker, anna: Worker) -> None:
    servers = ("--bootstrap-servers", broker.bootstrap)
    assert "workers" in coterie("groups", "list", *servers).stdout
    assert "anna:8083" in coterie("groups", "describe", "workers", *servers).stdout
    assert "7000" in coterie("groups", "config", "workers", "--set", f"{SESSION}=7000", *servers).stdout
    assert coterie("groups", "remove-member", "workers", "anna", *servers).stdout == (
        "Removed anna from group workers.\n"
    )
    failed = coterie("groups", "describe", "nothing", *servers, check=1)
    assert failed.stderr == (
        "coterie: there is no classic or connect group nothing; to list all groups: coterie groups list\n"
    )
    port = free_port()
    unreachable = coterie("groups", "list", "--bootstrap-servers", f"127.0.0.1:{port}", check=1).stderr
    assert unreachable.startswith(f"coterie: cannot reach the broker at 127.0.0.1:{port}: ")
    assert unreachable.count("\n") == 1
