"""The example package of plug-ins: its assignor's targets, and a group whose workers have installed it."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.assignors.members import RebalancePolicy
from coterie.broker.server import running_broker
from coterie.broker.settings import BrokerSettings
from coterie.config.properties import parse_properties
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.groups.connect.target_check import target_error
from coterie.nouns.ids import ConfigOffset, GroupEpoch, MemberEpoch, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.target_assignments import GroupSnapshot, SnapshotMember
from examples.rendezvous.coterie_rendezvous.assignor import RendezvousAssignor
from tests.worker.process_fleet import ProcessFleet
from tests.worker.simulated import until

PACKAGE = Path(__file__).parents[2] / "examples" / "rendezvous"
JOBS = Jobs.of(
    [ConnectorName("orders"), ConnectorName("stock")]
    + [ConnectorTaskId(ConnectorName(name), number) for name in ("orders", "stock") for number in range(8)]
)


def member(name: str, *, processors: int = 4, claims: Jobs | None = None, draining: bool = False) -> SnapshotMember:
    return SnapshotMember(
        member_id=MemberId(f"id-of-{name}"),
        member_epoch=MemberEpoch(3),
        url=WorkerUrl(f"http://{name}:8083/"),
        config_offset=ConfigOffset(9),
        version=1,
        metadata=str(processors).encode(),
        claims=claims,
        draining=draining,
    )


def group(*members: SnapshotMember, configured: Jobs = JOBS) -> GroupSnapshot:
    return GroupSnapshot(
        group_epoch=GroupEpoch(7),
        assignor="rendezvous",
        members=members,
        config_offset=ConfigOffset(9),
        configured=configured,
    )


def placed(snapshot: GroupSnapshot) -> dict[str, Jobs]:
    """The jobs of each member by its URL; the target is valid."""
    target = RendezvousAssignor(RebalancePolicy()).assign(snapshot)
    assert target_error(target, snapshot, frozenset(), NO_JOBS) is None
    return {
        one.url: target.members[one.member_id].jobs if one.member_id in target.members else NO_JOBS
        for one in snapshot.members
    }


# -- the assignor -----------------------------------------------------------------------------------------------------

SOME_JOBS = st.frozensets(st.sampled_from([*JOBS])).map(Jobs.of)
MEMBERS = st.lists(
    st.builds(
        member,
        st.sampled_from("abcdef"),
        processors=st.integers(1, 64),
        claims=st.none() | SOME_JOBS,
        draining=st.booleans(),
    ),
    unique_by=lambda one: one.member_id,
)


@given(MEMBERS, SOME_JOBS, st.randoms())
def test_the_target_is_valid_and_does_not_depend_on_the_order_of_the_members(
    members: list[SnapshotMember], configured: Jobs, rng: Any
) -> None:
    jobs = placed(group(*members, configured=configured))
    shuffled = rng.sample(members, len(members))
    assert placed(group(*shuffled, configured=configured)) == jobs
    for one in members:
        others = [other for other in members if other.claims is None and not other.draining]
        assert one.claims is None or jobs[one.url] <= one.claims
        assert not (one.draining and one.claims is None and others) or not jobs[one.url]


@given(MEMBERS, st.integers(1, 64))
def test_a_worker_that_joins_takes_jobs_only_for_itself(members: list[SnapshotMember], processors: int) -> None:
    members = [replace(one, claims=None, draining=False) for one in members]
    newcomer = member("newcomer", processors=processors)
    before, after = placed(group(*members)), placed(group(*members, newcomer))
    assert all(after[url] <= jobs for url, jobs in before.items())


def test_a_worker_with_more_processors_has_more_jobs_and_a_restart_moves_none() -> None:
    many = Jobs.of(ConnectorTaskId(ConnectorName("orders"), number) for number in range(1_000))
    snapshot = group(member("small", processors=2), member("large", processors=6), configured=many)
    jobs = placed(snapshot)
    assert 650 < len(jobs["http://large:8083/"]) < 850
    restarted = replace(snapshot.members[0], member_id=MemberId("another"))
    assert placed(group(restarted, snapshot.members[1], configured=many)) == jobs


# -- the installed package --------------------------------------------------------------------------------------------


def install(folder: Path) -> None:
    """Install the package into ``folder`` as its pyproject.toml says: the modules and the entry points. `pip install`
    would need a network for its build environment."""
    source = shutil.copytree(PACKAGE, folder.parent / "source")
    folder.mkdir()
    build = ["egg_info", "--egg-base", str(folder), "build_py", "--build-lib", str(folder)]
    command = [sys.executable, "-c", "import setuptools; setuptools.setup()", "--quiet", *build]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=60)


def properties_of_readme() -> Mapping[str, str]:
    (block,) = re.findall(r"```properties\n(.*?)```", (PACKAGE / "README.md").read_text(), re.DOTALL)
    return parse_properties(block)


@pytest.mark.processes
async def test_a_group_whose_workers_have_installed_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed, journal = tmp_path / "installed", tmp_path / "journal.jsonl"
    install(installed)
    monkeypatch.syspath_prepend(installed)
    monkeypatch.setenv("REBALANCE_JOURNAL", str(journal))
    groups = ConnectGroupSettings(initial_rebalance_delay_ms=300)
    settings = BrokerSettings(data_path=tmp_path / "broker", connect_groups=groups)
    async with (
        running_broker(settings) as broker,
        ProcessFleet(f"127.0.0.1:{broker.port}", group="workers", properties=properties_of_readme()) as fleet,
    ):
        (anna,) = await fleet.start("anna")
        await fleet.create("orders", 8)
        await until(lambda: "orders-7" in held_jobs(journal), within_s=60)
        (bert,) = await fleet.start("bert", properties={"rebalance.listeners": ""})
        members = [member_of(process.url) for process in (anna, bert)]
        expected = placed(group(*members, configured=Jobs.of(job for job in JOBS if "orders" in str(job))))
        anna_jobs, bert_jobs = (expected[one.url] for one in members)
        await until(lambda: held_jobs(journal) == set(map(str, anna_jobs)), within_s=60)
        await until(fleet.is_stable, within_s=60)
        assert (anna.running, bert.running) == (set(map(str, anna_jobs.tasks)), set(map(str, bert_jobs.tasks)))
        epochs = [line["assignment_epoch"] for line in lines_of(journal) if line["event"] == "assigned"]
        assert epochs == sorted(epochs)


def member_of(url: str) -> SnapshotMember:
    """A member of this machine with its URL."""
    return replace(member("here", processors=os.cpu_count() or 1), member_id=MemberId(url), url=WorkerUrl(f"{url}/"))


def lines_of(journal: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []


def held_jobs(journal: Path) -> set[str]:
    """The jobs of the journal's worker."""
    jobs: set[str] = set()
    for line in lines_of(journal):
        jobs = jobs | set(line["jobs"]) if line["event"] == "assigned" else jobs - set(line["jobs"])
    return jobs
