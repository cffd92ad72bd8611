"""`coterie plan`, for a group that was saved to a file."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Protocol

import pytest

from coterie.__main__ import main
from coterie.assignors.members import RebalancePolicy
from coterie.cli.group.descriptions import parse_group_description
from coterie.cli.plan import preview
from coterie.cli.plan.preview import to_group_with_member_names
from coterie.herder.requests.views import DeferredJobs
from coterie.lab.scenario.notation import parse_jobs
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import InstanceId
from coterie.spark.plugins import source_by_name
from tests.cli.answers import http_server
from tests.cli.command import ENVIRONMENT, coterie
from tests.cli.group import as_json, member, view

_NAMED_TWICE = (
    "The options --create, --resize and --delete name a connector twice; name each connector in only one of them, and "
    "once"
)


class Plan(Protocol):
    def __call__(self, file: Path, *options: str, check: int = 0) -> "CompletedProcess[str]": ...


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "group.json"
    path.write_text(as_json(view()))
    return path


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Plan:
    """`coterie plan --file` with further options, in this process: a process for each run takes half a second."""

    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)

    def run(file: Path, *options: str, check: int = 0) -> "CompletedProcess[str]":
        arguments = ["coterie", "plan", "--file", str(file), *options]
        monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert ended.value.code == check, err
        return CompletedProcess(arguments, check, out, err)

    return run


def test_the_rest_view_of_a_group_contains_all_that_a_plan_needs() -> None:
    deferred = DeferredJobs(jobs=parse_jobs("AT1"), time_left_ms=5, worker="gone", instance_id=InstanceId("i"))
    shown = view(
        members=(member("one", "AC0", parse_jobs("AC0 AT1")),),
        deferred=(deferred,),
        policy=RebalancePolicy(max_delay_ms=9),
    )
    snapshot = to_group_with_member_names(parse_group_description(as_json(shown), source="it"), source="it").snapshot
    assert snapshot.configured_jobs == shown.configured
    assert snapshot.policy == shown.policy
    assert [(entry.jobs, entry.deadline_ms, entry.instance_id) for entry in snapshot.deferrals] == [
        (deferred.jobs, 5, "i")
    ]
    (entry,) = snapshot.members.values()
    assert (entry.owned, entry.claims, entry.instance_id) == (parse_jobs("AC0"), parse_jobs("AC0 AT1"), "place-of-one")


@pytest.mark.parametrize("worker", ["two", "two:8083", "place-of-two"])
def test_a_removal_prints_where_and_when_the_jobs_of_the_worker_move(plan: Plan, file: Path, worker: str) -> None:
    output = plan(file, "--remove", worker).stdout
    assert [line.split()[:3] for line in output.splitlines()[1:3]] == [["B", "two", "three"], ["A-1", "two", "three"]]
    assert "0 of 5 jobs would be stopped, 2 wait for a worker that has left; 2 rounds, with 300 s of waiting." in output


def test_in_a_connect_group_no_rounds_are_counted_and_the_jobs_of_the_leader_wait_too(
    plan: Plan, tmp_path: Path
) -> None:
    classic, connect = tmp_path / "classic.json", tmp_path / "connect.json"
    classic.write_text(as_json(view()))
    connect.write_text(as_json(view(protocol="connect")))
    assert "2 wait for a worker" not in plan(classic, "--remove", "one").stdout
    output = plan(connect, "--remove", "one").stdout
    assert "0 of 5 jobs would be stopped, 2 wait for a worker that has left, with 300 s of waiting." in output


def test_a_group_with_an_assignor_of_a_plug_in_has_no_plan(plan: Plan, tmp_path: Path) -> None:
    file = tmp_path / "group.json"
    file.write_text(as_json(view(protocol="connect", assignor="cooperative")))
    plan(file, "--remove", "one")
    file.write_text(as_json(view(protocol="connect", assignor="rendezvous")))
    refused = plan(file, "--remove", "one", check=1)
    assert "the group uses the assignor rendezvous, and a plan can only be computed for the assignor cooperative" in (
        " ".join(refused.stderr.split())
    )


def test_json_contains_the_same_moves(plan: Plan, file: Path) -> None:
    output = json.loads(plan(file, "--drain", "one", "--add", "four", "--json").stdout)
    assert {(move["connector"], move["task"]) for move in output["moves"] if move["why"] == "drain"} == {
        ("A", None),
        ("A", 0),
    }
    assert output["after"]["one"] == {"connectors": [], "tasks": []}
    assert output["stopped"] == 2
    assert output["unassigned"] == []


def test_claims_are_given_in_the_syntax_of_the_settings(plan: Plan, file: Path) -> None:
    output = plan(file, "--claim-tasks", "one=B-0", "--claim-connectors", "one=").stdout
    assert any(line.split()[:3] == ["B-0", "three", "one"] for line in output.splitlines())
    assert "static assignments" in output


def test_without_a_change_nothing_would_move(file: Path) -> None:
    assert coterie("plan", "--file", str(file)).stdout.startswith("Nothing would move.")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--remove", "five"), "The group has no worker five; it has one, three, two"),
        (("--add", "two"), "The group has a worker two already; give the new worker another name"),
        (("--add", "two:8083"), "The group has a worker two:8083 already; give the new worker another name"),
        (("--add", "id-of-two"), "The group has a worker id-of-two already; give the new worker another name"),
        (("--add", "x", "--add", "x"), "--add x is given twice; give each new worker another name"),
        (("--add", ""), "--add: the worker's name is blank; use a name, for example --add worker-4"),
        (("--create", "orders"), "--create orders: use NAME=TASKS, for example orders=4; 1 to 1000 tasks"),
        (("--create", "C=1001"), "--create C=1001: use NAME=TASKS, for example orders=4; 1 to 1000 tasks"),
        (("--create", "C=0"), "--create C=0: use NAME=TASKS, for example orders=4; 1 to 1000 tasks"),
        (("--create", "C=1", "--create", "C=2"), _NAMED_TWICE),
        (("--create", "A=1", "--delete", "A"), _NAMED_TWICE),
        (("--create", "A=1", "--resize", "A=2"), _NAMED_TWICE),
        (("--resize", "B=1", "--delete", "B"), _NAMED_TWICE),
        (("--resize", "A"), "--resize A: use NAME=TASKS, for example orders=4; 1 to 1000 tasks"),
        (("--resize", "C=2"), "--resize C=2: the group has no connector C; for a new connector use --create C=2"),
        (("--delete", "C"), "--delete C: the group has no connector C"),
        (("--claim-tasks", "one=B"), "--claim-tasks of one: 'B' is not <connector>-<task number>"),
        (
            ("--claim-tasks", "one=B-01"),
            "--claim-tasks of one: 'B-01' is not a task id <connector>-<number> with a number from 0 to 2147483647,"
            " without leading zeros",
        ),
        (
            ("--claim-connectors", "one=A,,B"),
            "--claim-connectors of one: a name is missing before or after a comma",
        ),
        (("--claim-connectors", "A"), "--claim-connectors A: use WORKER=NAMES, for example worker-1=orders,payments"),
        (("--remove", "two", "--remove", "two"), "--remove two is given twice; name each worker only once"),
        (
            ("--drain", "two", "--drain", "two:8083"),
            "--drain two:8083 and --drain two name the same worker; name each worker only once",
        ),
        (("--remove", "one", "--drain", "one"), "one cannot be removed and also drained or given claims"),
        (("--remove", "one", "--drain", "one:8083"), "one cannot be removed and also drained or given claims"),
        (("--remove", "one", "--claim-tasks", "id-of-one="), "one cannot be removed and also drained or given claims"),
    ],
)
def test_an_invalid_change_prints_one_line(plan: Plan, file: Path, options: tuple[str, ...], error: str) -> None:
    assert plan(file, *options, check=1).stderr == f"coterie: {error}\n"


_ALL_UNASSIGNED = "0 of 5 jobs would be stopped, 5 would be unassigned; 0 rounds."


@pytest.mark.parametrize(
    ("options", "summary"),
    [
        (("--delete", "A", "--delete", "B"), "5 of 5 jobs would be stopped; 1 round."),
        (("--create", "A=1"), "2 of 5 jobs would be stopped; 1 round."),
        (("--resize", "A=1"), "2 of 5 jobs would be stopped; 1 round."),
        (("--resize", "B=1"), "Nothing would move."),
        (("--remove", "one", "--remove", "two", "--remove", "three"), _ALL_UNASSIGNED),
        (("--create", "C=1"), "0 of 5 jobs would be stopped; 1 round."),
    ],
)
def test_stopped_jobs_are_counted_among_the_current_jobs(
    plan: Plan, file: Path, options: tuple[str, ...], summary: str
) -> None:
    assert summary in plan(file, *options).stdout.splitlines()


def test_another_number_of_tasks_prints_each_task_that_stops_and_starts_again(plan: Plan, file: Path) -> None:
    output = plan(file, "--resize", "A=3").stdout
    restarts = [line.split() for line in output.splitlines() if "its connector is split again" in line]
    assert [line[:3] for line in restarts] == [["A-0", "one", "one"], ["A-1", "two", "two"]]
    assert "2 of 5 jobs would be stopped; 1 round." in output
    described = json.loads(plan(file, "--resize", "A=3", "--json").stdout)
    assert described["stopped"] == 2
    assert {"connector": "A", "task": 1, "from": "two", "to": "two", "why": "resplit"}.items() <= (
        described["moves"][1].items()
    )
    assert described["moves"][1]["stops_in_round"] is None


def test_without_the_sources_each_changed_number_of_tasks_has_a_warning(plan: Plan, file: Path) -> None:
    assert plan(file, "--create", "A=1").stderr == (
        "A has 2 tasks. If it is a RateSource or PythonSource whose tasks have been started, a config with 1 task is "
        "refused (HTTP 400): delete the connector first, or create one with another name.\n"
    )
    assert plan(file, "--create", "A=2").stderr == ""


@pytest.mark.parametrize(
    ("config", "source"),
    [
        ({"connector.class": "FileSource"}, None),
        ({"connector.class": "FileSink"}, None),
        ({"connector.class": "coterie.spark.sources.rate.RateSource"}, "RateSource"),
        ({"connector.class": "RateSource", "source.class": "FileSource"}, "RateSource"),
        ({"connector.class": "FileSink", "source.class": "PythonSource"}, "PythonSource"),
    ],
)
def test_a_refusal_of_another_number_of_tasks_is_predicted_only_for_a_source_with_a_fixed_split(
    config: dict[str, str], source: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    paths: list[str] = []

    def answer(method: str, path: str) -> tuple[int, bytes]:
        paths.append(path)
        return 200, (json.dumps(config) if path.startswith("/connectors/") else as_json(view())).encode()

    with http_server(answer) as url:
        options = preview.ChangeOptions(resize=("A=1", "B=1"), create=("C=1",))
        preview.show_plan(options, url=url, file=None, as_json=False)
    assert paths == ["/coterie/group", "/connectors/A/config"], "only the connector whose number of tasks changes"
    assert capsys.readouterr().err == (
        ""
        if source is None
        else f"A is a {source} with 2 tasks. If its tasks have been started, a config with 1 task is refused (HTTP "
        "400): delete the connector first, or create one with another name.\n"
    )


def test_the_plan_knows_every_source_with_a_fixed_split() -> None:
    assert set(preview.SOURCES_WITH_FIXED_SPLIT) == {
        source.__name__
        for source in source_by_name().values()
        if source.has_fixed_split and source.__module__.startswith("coterie.")
    }


def test_one_waiting_job_is_reported_in_the_singular(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "group.json"
    path.write_text(as_json(view(configured=parse_jobs("AC0"), members=(member("one", ""), member("two", "AC0")))))
    output = plan(path, "--remove", "two").stdout
    assert "0 of 1 job would be stopped, 1 waits for a worker that has left; 2 rounds, with 300 s of waiting." in output


def test_two_workers_with_one_name_are_distinguished_by_their_addresses(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "group.json"
    same_name = (member("one", "AC0 AT0"), replace(member("two", "AT1 BC0 BT0"), name="one"))
    path.write_text(as_json(view(members=same_name)))
    refused = plan(path, "--drain", "one", check=1).stderr
    assert refused == "coterie: 2 workers are called one; name one of one:8083, two:8083\n"
    output = json.loads(plan(path, "--drain", "two:8083", "--json").stdout)
    assert {name: len(jobs["tasks"]) for name, jobs in output["after"].items()} == {"one:8083": 3, "two:8083": 0}


def test_a_drain_that_would_wait_is_printed_with_the_reason(plan: Plan, file: Path) -> None:
    all_drains = ("--drain", "one", "--drain", "two", "--drain", "three")
    output = plan(file, *all_drains).stdout
    assert [line for line in output.splitlines() if "would wait" in line] == [
        f"The drain of {name} would wait: every worker is draining." for name in ("one", "three", "two")
    ]
    assert "would wait" not in plan(file, *all_drains[:4]).stdout


def test_a_claim_of_a_nonexistent_job_is_planned_with_a_warning(plan: Plan, file: Path) -> None:
    output = plan(file, "--claim-tasks", "two=A-1,A-7", "--claim-connectors", "two=D,B")
    assert output.stderr.splitlines() == [
        "two would claim D, but there is no connector D now",
        "two would claim A-7, but there is no task A-7 now",
    ]
    output = plan(file, "--claim-tasks", "two=D-0", "--create", "D=1")
    assert output.stderr == "", "the plan creates the job"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("nonsense", "Invalid JSON"),
        ("{}", "at protocol: Field required"),
        (as_json(view(protocol="latest")), "unknown protocol 'latest'"),
    ],
)
def test_a_file_without_a_valid_group_is_refused_with_its_name(text: str, error: str) -> None:
    with pytest.raises(WorldError, match=f"group.json is not a valid group description.*{error}"):
        to_group_with_member_names(parse_group_description(text, source="group.json"), source="group.json")


def test_an_older_protocol_refuses_drains_and_claims_and_eager_refuses_any_plan(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "group.json"
    path.write_text(as_json(view(protocol="sessioned")))
    assert "which supports neither drains" in plan(path, "--drain", "one", check=1).stderr
    path.write_text(as_json(view(protocol="eager")))
    assert "every job is stopped" in plan(path, check=1).stderr
