"""`coterie plan`, as somebody types it: of a group that was saved to a file."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Protocol

import pytest

from coterie.__main__ import main
from coterie.assignors.members import Policy
from coterie.cli.group.shown import read_group
from coterie.cli.plan.preview import known_of
from coterie.herder.requests import DeferredJobs
from coterie.lab.scenario.notation import parse_jobs
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import InstanceId
from tests.cli.command import ENVIRONMENT, coterie
from tests.cli.group import as_json, member, view


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


def test_what_rest_tells_of_a_group_is_all_that_a_plan_needs() -> None:
    waits = DeferredJobs(jobs=parse_jobs("AT1"), left_ms=5, worker="gone", instance_id=InstanceId("i"))
    shown = view(
        members=(member("one", "AC0", parse_jobs("AC0 AT1")),), deferred=(waits,), policy=Policy(max_delay_ms=9)
    )
    picture = known_of(read_group(as_json(shown), source="it"), source="it").picture
    assert picture.configured == shown.configured
    assert picture.policy == shown.policy
    assert [(one.jobs, one.deadline_ms, one.instance_id) for one in picture.waiting] == [(waits.jobs, 5, "i")]
    (one,) = picture.members.values()
    assert (one.owned, one.claims, one.instance_id) == (parse_jobs("AC0"), parse_jobs("AC0 AT1"), "place-of-one")


@pytest.mark.parametrize("called", ["two", "two:8083", "place-of-two"])
def test_it_tells_where_the_jobs_of_a_worker_that_leaves_would_go_and_when(plan: Plan, file: Path, called: str) -> None:
    told = plan(file, "--remove", called).stdout
    assert [line.split()[:3] for line in told.splitlines()[1:3]] == [["B", "two", "three"], ["A-1", "two", "three"]]
    assert "0 of 5 jobs would be stopped, 2 wait for a worker that has left; 2 rounds, with 300 s of waiting." in told


def test_json_has_the_same_for_programs(plan: Plan, file: Path) -> None:
    told = json.loads(plan(file, "--drain", "one", "--add", "four", "--json").stdout)
    assert {(move["connector"], move["task"]) for move in told["moves"] if move["why"] == "drain"} == {
        ("A", None),
        ("A", 0),
    }
    assert told["after"]["one"] == {"connectors": [], "tasks": []}
    assert told["stopped"] == 2
    assert told["unassigned"] == []


def test_claims_are_given_as_the_settings_give_them(plan: Plan, file: Path) -> None:
    told = plan(file, "--claim-tasks", "one=B-0", "--claim-connectors", "one=").stdout
    assert any(line.split()[:3] == ["B-0", "three", "one"] for line in told.splitlines())
    assert "static assignments" in told


def test_without_a_change_nothing_would_move(file: Path) -> None:
    assert coterie("plan", "--file", str(file)).stdout.startswith("Nothing would move.")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--remove", "five"), "The group has no worker five; it has one, three, two"),
        (("--add", "two"), "The group has a worker two already; give the new one another name"),
        (("--add", "two:8083"), "The group has a worker two:8083 already; give the new one another name"),
        (("--add", "id-of-two"), "The group has a worker id-of-two already; give the new one another name"),
        (("--add", "x", "--add", "x"), "The group has a worker x already; give the new one another name"),
        (("--add", ""), "--add: a worker needs a name"),
        (("--create", "orders"), "--create orders: use NAME=TASKS, for example orders=4; 1 to 1000 tasks"),
        (("--create", "C=1001"), "--create C=1001: use NAME=TASKS, for example orders=4; 1 to 1000 tasks"),
        (("--create", "C=0"), "--create C=0: use NAME=TASKS, for example orders=4; 1 to 1000 tasks"),
        (("--create", "C=1", "--create", "C=2"), "A connector can be created or deleted only once at a time"),
        (("--create", "A=1", "--delete", "A"), "A connector can be created or deleted only once at a time"),
        (("--delete", "C"), "There is no connector C"),
        (("--claim-tasks", "one=B"), "--claim-tasks of one: 'B' is not <connector>-<task number>"),
        (
            ("--claim-tasks", "one=B-01"),
            "--claim-tasks of one: 'B-01' is not a task id: its number is 0 to 2147483647, without leading zeros",
        ),
        (
            ("--claim-connectors", "one=A,,B"),
            "--claim-connectors of one: a name is missing between two commas, or after the last comma",
        ),
        (("--claim-connectors", "A"), "--claim-connectors A: use WORKER=NAMES, for example worker-1=orders,payments"),
        (("--remove", "one", "--drain", "one"), "one cannot be removed and also drained or given claims"),
        (("--remove", "one", "--drain", "one:8083"), "one cannot be removed and also drained or given claims"),
        (("--remove", "one", "--claim-tasks", "id-of-one="), "one cannot be removed and also drained or given claims"),
    ],
)
def test_what_makes_no_sense_is_one_clear_line(
    plan: Plan, file: Path, options: tuple[str, ...], complaint: str
) -> None:
    assert plan(file, *options, check=1).stderr == f"coterie: {complaint}\n"


_ALL_NOWHERE = "0 of 5 jobs would be stopped, 5 would be unassigned; 0 rounds."


@pytest.mark.parametrize(
    ("options", "sums_up"),
    [
        (("--delete", "A", "--delete", "B"), "5 of 5 jobs would be stopped; 1 round."),
        (("--create", "A=1"), "1 of 5 jobs would be stopped; 1 round."),
        (("--remove", "one", "--remove", "two", "--remove", "three"), _ALL_NOWHERE),
        (("--create", "C=1"), "0 of 5 jobs would be stopped; 1 round."),
    ],
)
def test_what_stops_is_counted_of_what_there_is_now(
    plan: Plan, file: Path, options: tuple[str, ...], sums_up: str
) -> None:
    assert sums_up in plan(file, *options).stdout.splitlines()


def test_another_number_of_tasks_is_planned_with_a_warning(plan: Plan, file: Path) -> None:
    assert plan(file, "--create", "A=1").stderr == (
        "A has 2 tasks: once they have been started, a config that gives the connector 1 task is refused (HTTP 400). "
        "Delete the connector first, or create one with another name.\n"
    )
    assert plan(file, "--create", "A=2").stderr == ""


def test_one_job_that_waits_is_told_of_in_the_singular(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "group.json"
    path.write_text(as_json(view(configured=parse_jobs("AC0"), members=(member("one", ""), member("two", "AC0")))))
    told = plan(path, "--remove", "two").stdout
    assert "0 of 1 job would be stopped, 1 waits for a worker that has left; 2 rounds, with 300 s of waiting." in told


def test_two_workers_of_one_name_are_told_apart_by_their_addresses(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "group.json"
    twins = (member("one", "AC0 AT0"), replace(member("two", "AT1 BC0 BT0"), name="one"))
    path.write_text(as_json(view(members=twins)))
    refused = plan(path, "--drain", "one", check=1).stderr
    assert refused == "coterie: 2 workers are called one; name one of one:8083, two:8083\n"
    told = json.loads(plan(path, "--drain", "two:8083", "--json").stdout)
    assert {name: len(jobs["tasks"]) for name, jobs in told["after"].items()} == {"one:8083": 3, "two:8083": 0}


def test_a_drain_that_would_wait_says_why(plan: Plan, file: Path) -> None:
    everybody = ("--drain", "one", "--drain", "two", "--drain", "three")
    told = plan(file, *everybody).stdout
    assert [line for line in told.splitlines() if "would wait" in line] == [
        f"The drain of {name} would wait: every worker is draining." for name in ("one", "three", "two")
    ]
    assert "would wait" not in plan(file, *everybody[:4]).stdout


def test_a_claim_of_what_is_not_there_is_planned_with_a_warning(plan: Plan, file: Path) -> None:
    told = plan(file, "--claim-tasks", "two=A-1,A-7", "--claim-connectors", "two=D,B")
    assert told.stderr.splitlines() == [
        "two would claim D, but there is no connector D now",
        "two would claim A-7, but there is no task A-7 now",
    ]
    told = plan(file, "--claim-tasks", "two=D-0", "--create", "D=1")
    assert told.stderr == "", "it is there then"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nonsense", "Invalid JSON"),
        ("{}", "at protocol: Field required"),
        (as_json(view(protocol="latest")), "unknown protocol 'latest'"),
    ],
)
def test_a_file_that_holds_no_group_is_named(text: str, complaint: str) -> None:
    with pytest.raises(WorldError, match=f"group.json is not a valid group description.*{complaint}"):
        known_of(read_group(text, source="group.json"), source="group.json")


def test_an_older_protocol_knows_neither_drains_nor_claims_and_eager_keeps_nothing(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "group.json"
    path.write_text(as_json(view(protocol="sessioned")))
    assert "which supports neither drains" in plan(path, "--drain", "one", check=1).stderr
    path.write_text(as_json(view(protocol="eager")))
    assert "every job is stopped" in plan(path, check=1).stderr
