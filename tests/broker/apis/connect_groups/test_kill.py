"""The broker is killed -9 at each kind of record of a connect group, and after each record of K848C's case studies, and
started again on the same port and data.

The members only repeat their requests, with what they own. No job is ever assigned to two of them, and the group
settles.
"""

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from coterie.nouns.jobs import NO_JOBS
from tests.broker.apis.connect_groups.case_study import TRANSCRIPTS, CaseStudy
from tests.broker.apis.connect_groups.worker import JOBS, Worker, settle
from tests.broker.conftest import RawClient, raw_client
from tests.broker.dying import NEVER, CrashingBroker

pytestmark = pytest.mark.processes

LEAVE_BRIEFLY = -2
RECORDS_MAX = 200
"""No case study has so many records."""
KILLS_MIN = 8
"""The shortest case study has so many records."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[CrashingBroker]:
    """A broker that is not started yet."""
    broker = CrashingBroker(tmp_path / "data")
    yield broker
    broker.stop()


def play(workers: list[Worker]) -> None:
    """One worker joins, another one joins, gets jobs and leaves for a short time."""
    settle(workers[:1], JOBS)
    settle(workers, JOBS)
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
        settle(workers, JOBS)
        assert workers[0].describe().departed == ()


def returned(workers: list[Worker], client: RawClient) -> None:
    """Let the workers use a new connection. The one that was leaving has stopped its jobs, and joins."""
    for worker in workers:
        worker.client = client
    if not workers[1].owned:
        workers[1].epoch = 0


@pytest.mark.parametrize("name", sorted(path.stem for path in TRANSCRIPTS.glob("*.txt")))
def test_workers_of_a_case_study_settle_after_a_kill_of_the_broker_after_any_record(tmp_path: Path, name: str) -> None:
    for count in range(1, RECORDS_MAX):
        folder = tmp_path / str(count)
        folder.mkdir()
        if not is_killed_and_settles(folder, name, count):
            assert count > KILLS_MIN, "the broker was killed after too few records"
            return
    raise AssertionError(f"the case study has {RECORDS_MAX} records")


def is_killed_and_settles(folder: Path, name: str, count: int) -> bool:
    """Play a case study on a broker that is killed after ``count`` records, and let its workers settle on the next one.
    False if the case study has fewer records."""
    broker = CrashingBroker(folder / "data")
    broker.start(f"record {count}")
    try:
        with closing(CaseStudy(name, broker.port)) as study:
            try:
                study.play()
            except OSError:
                assert broker.wait_ended() == -signal.SIGKILL
            else:
                return False
            broker.start(NEVER)
            study.continue_after_restart()
            study.settle()
            assert study.describe().departed == (), f"after {count} records"
    finally:
        broker.stop()
    return True
