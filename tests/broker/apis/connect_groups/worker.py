"""A member of a connect group over TCP that follows the protocol (K848C), one request at a time."""

from collections.abc import Sequence
from typing import Any

from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.wire.connect_group_jobs import distinct_jobs_in_arrays, job_arrays
from coterie.wire.frames import RequestHeader
from tests.broker.conftest import RawClient
from tests.groups.connect import world

HEARTBEAT, PREPARE, INSTALL, DESCRIBE = range(10000, 10004)
COMPUTE_ASSIGNMENT = 10000
JOBS = world.jobs_of(2, 2)
ASSIGNOR = {
    "name": "even", "minimum_version": 0, "maximum_version": 0, "reason": 0, "version": 0, "metadata": b"",
}  # fmt: skip


class Worker:
    """One member. Its first heartbeat, and each one with ``full``, contains all fields; any other one only those that
    the caller gives."""

    def __init__(self, client: RawClient, member_id: str, group_id: str = "workers", **fields: Any) -> None:
        self.client = client
        self.member_id = member_id
        self.group_id = group_id
        self.fields = {
            "rebalance_timeout_ms": 60_000,
            "client_assignors": [ASSIGNOR],
            "url": f"http://{member_id}",
            "configured": {"value": {"config_offset": 5, **job_arrays(JOBS)}},
            "connection_grace_ms": 0,
        } | fields
        self.epoch = 0
        self.number = 0
        self.owned = NO_JOBS

    def send(self, *, full: bool = False, **fields: Any) -> RequestHeader:
        """Send a heartbeat."""
        self.number += 1
        values: dict[str, Any] = {"instance_id": None, "client_assignors": None, "connectors_and_tasks": None}
        if full or self.epoch == 0:
            values |= self.fields | {"connectors_and_tasks": job_arrays(self.owned)}
        common = {"group_id": self.group_id, "member_id": self.member_id, "member_epoch": self.epoch}
        return self.client.send(HEARTBEAT, 0, **(common | values | {"request_number": self.number} | fields))

    def take(self, answer: Any) -> Any:
        """Take over epoch and assignment of a response; return it."""
        if answer.error_code in (0, COMPUTE_ASSIGNMENT):
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.owned = distinct_jobs_in_arrays(answer.assignment.connectors_and_tasks)
        return answer

    def beat(self, **fields: Any) -> Any:
        """The response to a heartbeat."""
        return self.take(self.client.receive(self.send(**fields)))

    def acknowledge(self) -> Any:
        """The response to a heartbeat that lists the owned jobs."""
        return self.beat(connectors_and_tasks=job_arrays(self.owned))

    def prepare(self, **fields: Any) -> Any:
        common = {"group_id": self.group_id, "member_id": self.member_id, "member_epoch": self.epoch}
        return self.client.ask(PREPARE, 0, **(common | fields))

    def install(self, group_epoch: int, jobs_by_member: dict[str, Jobs], **fields: Any) -> Any:
        members = [
            {"member_id": one, "connectors_and_tasks": job_arrays(jobs), "version": 0, "metadata": b""}
            for one, jobs in jobs_by_member.items()
        ]
        common = {
            "group_id": self.group_id, "member_id": self.member_id, "member_epoch": self.epoch,
            "group_epoch": group_epoch, "error": 0, "members": members, "deferred": (), "unplaceable": (),
        }  # fmt: skip
        return self.client.ask(INSTALL, 0, **(common | fields))

    def compute(self) -> None:
        """Compute an even target, and install it. Jobs of departed members do not wait."""
        prepared = self.prepare()
        assert prepared.error_code == 0, prepared
        names = [one.member_id for one in prepared.members]
        jobs = list(distinct_jobs_in_arrays(prepared.configured.value))
        installed = self.install(
            prepared.group_epoch, {name: Jobs.of(jobs[number :: len(names)]) for number, name in enumerate(names)}
        )
        assert installed.error_code == 0, installed

    def settle(self) -> None:
        """Send heartbeats, and compute if asked, until this member has its whole target; the others must not owe it
        any job."""
        for _ in range(20):
            answer = self.beat(full=True)
            if answer.error_code == COMPUTE_ASSIGNMENT:
                self.compute()
            elif self.epoch and self.described_state() == "STABLE":
                return
        raise AssertionError(self.describe())

    def described_state(self) -> str:
        (state,) = (one.state for one in self.describe().members if one.member_id == self.member_id)
        return str(state)

    def describe(self) -> Any:
        return describe(self.client, self.group_id)


def describe(client: RawClient, group_id: str = "workers") -> Any:
    """The entry of the group in a response to ConnectGroupDescribe."""
    (group,) = client.ask(DESCRIBE, 0, group_ids=[group_id], include_authorized_operations=False).groups
    return group


def settle(workers: Sequence[Worker], jobs: Jobs) -> None:
    """Send heartbeats, and compute if asked, until each worker has its whole target, and all ``jobs`` are assigned."""
    for _ in range(50):
        for worker in workers:
            answer = worker.beat(full=True)
            assert answer.error_code in (0, COMPUTE_ASSIGNMENT), answer
            owned = [job for one in workers for job in one.owned]
            assert len(owned) == len(set(owned)), "a job is assigned to two workers"
            if answer.error_code == COMPUTE_ASSIGNMENT:
                worker.compute()
        group = workers[0].describe()
        if group.group_state == "Stable" and len(owned) == len(jobs) and len(group.members) == len(workers):
            return
    raise AssertionError(group)
