"""The broker is killed -9 at each kind of record of a connect group, and started again on the same port and data.

The members only repeat their requests, with what they own. No job is ever assigned to two of them, and the group
settles.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.nouns.jobs import NO_JOBS
from tests.broker.apis.connect_groups.worker import COMPUTE_ASSIGNMENT, JOBS, Worker
from tests.broker.conftest import RawClient, raw_client
from tests.broker.dying import NEVER, CrashingBroker

pytestmark = pytest.mark.processes

LEAVE_BRIEFLY = -2


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[CrashingBroker]:
    """A broker that is not started yet."""
    broker = CrashingBroker(tmp_path / "data")
    yield broker
    broker.stop()


def settle(workers: list[Worker]) -> None:
    """Send heartbeats, and compute if asked, until each worker has its whole target, and all jobs are assigned."""
    for _ in range(50):
        for worker in workers:
            answer = worker.beat(full=True)
            assert answer.error_code in (0, COMPUTE_ASSIGNMENT), answer
            owned = [job for one in workers for job in one.owned]
            assert len(owned) == len(set(owned)), "a job is assigned to two workers"
            if answer.error_code == COMPUTE_ASSIGNMENT:
                worker.compute()
        group = workers[0].describe()
        if group.group_state == "Stable" and len(owned) == len(JOBS) and len(group.members) == len(workers):
            return
    raise AssertionError(group)


def play(workers: list[Worker]) -> None:
    """One worker joins, another one joins, gets jobs and leaves for a short time."""
    settle(workers[:1])
    settle(workers)
    workers[1].owned = NO_JOBS
    workers[1].beat(member_epoch=LEAVE_BRIEFLY)


@pytest.mark.parametrize("moment", ["before", "durable"])
@pytest.mark.parametrize("kind", ["member", "target", "current", "revoked", "departed", "left"])
def test_members_settle_after_a_kill_of_the_broker(broker: CrashingBroker, kind: str, moment: str) -> None:
    broker.start(f"{kind} {moment}")
    with raw_client(broker.port) as client:
        workers = [Worker(client, "w0"), Worker(client, "w1")]
        with pytest.raises(OSError, match=r"."):
            play(workers)
    broker.stop()
    broker.start(NEVER)
    with raw_client(broker.port) as again:
        returned(workers, again)
        settle(workers)
        assert workers[0].describe().departed == ()


def returned(workers: list[Worker], client: RawClient) -> None:
    """Let the workers use a new connection. The one that was leaving has stopped its jobs, and joins."""
    for worker in workers:
        worker.client = client
    if not workers[1].owned:
        workers[1].epoch = 0
