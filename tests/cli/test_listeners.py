"""Listeners of rebalances: found by entry point, called in order on a thread; one that fails or blocks harms none."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from coterie.assignors.connect.cooperative import CooperativeAssignor
from coterie.assignors.connect.interface import LISTENER_ENTRY_POINTS, ConnectAssignor
from coterie.assignors.members import RebalancePolicy
from coterie.cli import listeners
from coterie.cli.assignors import assign_functions_by_name
from coterie.cli.listeners import NamedListener, RebalanceListenerThread
from coterie.herder.seams import JobsAssigned, JobsLost, JobsRevoked
from coterie.nouns.errors import ConfigError
from coterie.nouns.ids import ConfigOffset, GroupEpoch
from coterie.nouns.jobs import NO_JOBS, ConnectorName, Jobs
from coterie.nouns.target_assignments import ComputedTarget, GroupSnapshot, TargetOfMember
from tests.worker.simulated import until

KEY = "rebalance.listeners"
ORDERS, STOCK = (Jobs.of([ConnectorName(name)]) for name in ("orders", "stock"))
BOTH = ORDERS | STOCK
ASSIGNED = JobsAssigned(
    jobs=STOCK, assignment_epoch=GroupEpoch(4), assignment=TargetOfMember(jobs=BOTH, version=2, metadata=b"hello")
)
EMPTY_GROUP = GroupSnapshot(
    group_epoch=GroupEpoch(1), assignor="cooperative", members=(), config_offset=ConfigOffset(0), configured=NO_JOBS
)


class Recording:
    """A listener that records its calls and their threads."""

    def __init__(self, calls: list[tuple[object, ...]] | None = None) -> None:
        self.calls: list[tuple[object, ...]] = [] if calls is None else calls
        self.threads: set[threading.Thread] = set()

    def on_revoked(self, jobs: Jobs) -> None:
        self.record("revoked", jobs)

    def on_assigned(self, jobs: Jobs, assignment_epoch: GroupEpoch) -> None:
        self.record("assigned", jobs, assignment_epoch)

    def on_lost(self, jobs: Jobs) -> None:
        self.record("lost", jobs)

    def record(self, *call: object) -> None:
        self.threads.add(threading.current_thread())
        self.calls.append(call)


class Raising(Recording):
    """A listener that raises the exception that a test chooses."""

    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__()
        self.error = error or ValueError("no")

    def record(self, *call: object) -> None:
        raise self.error


class Blocking(Recording):
    """A listener that returns when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.returns = threading.Event(), threading.Event()

    def record(self, *call: object) -> None:
        self.begun.set()
        assert self.returns.wait(60)
        super().record(*call)


class CannotBeCreated(Recording):
    def __init__(self) -> None:
        raise OSError("no file")


class LacksMethods:
    def on_revoked(self, jobs: Jobs) -> None:
        pass


class RecordingAssignor(CooperativeAssignor):
    """An assignor that records the targets of its worker."""

    def __init__(self, calls: list[tuple[object, ...]]) -> None:
        super().__init__(RebalancePolicy())
        self.calls = calls

    def on_assignment(self, assignment: TargetOfMember) -> None:
        self.calls.append(("assignment", assignment))


class BlockingAssignor(CooperativeAssignor):
    """An assignor whose `on_assignment` returns when the test says so."""

    def __init__(self, policy: RebalancePolicy) -> None:
        super().__init__(policy)
        self.begun, self.returns = threading.Event(), threading.Event()

    def on_assignment(self, assignment: TargetOfMember) -> None:
        self.begun.set()
        assert self.returns.wait(60)


class FailingAssignor(CooperativeAssignor):
    def on_assignment(self, assignment: TargetOfMember) -> None:
        raise ValueError("no")


def thread_of(
    *given: Recording, assignors: Sequence[ConnectAssignor] = (), slow_call_ms: int = 60_000
) -> RebalanceListenerThread:
    named = [NamedListener(name=f"listener-{number}", listener=one) for number, one in enumerate(given)]
    return RebalanceListenerThread(named, assignors, slow_call_ms=slow_call_ms, close_timeout_ms=60_000)


# -- loading ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def entries_of(*entries: tuple[str, str]) -> None:
        found = EntryPoints(EntryPoint(name, f"{__name__}:{cls}", LISTENER_ENTRY_POINTS) for name, cls in entries)
        monkeypatch.setattr(listeners, "entry_points", lambda group: found)

    return entries_of


def test_listeners_are_created_in_the_order_of_their_names(register: Callable[..., None]) -> None:
    register(("first", "Recording"), ("second", "Raising"))
    loaded = listeners.load_listeners(["second", "first"], key=KEY)
    assert [(one.name, type(one.listener).__name__) for one in loaded] == [
        ("second", "Raising"),
        ("first", "Recording"),
    ]


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        (
            [("other", "Recording")],
            "Invalid value mine for configuration rebalance.listeners: no rebalance listener has this name",
        ),
        ([("mine", "CannotBeCreated")], "cannot be created: OSError: no file"),
        ([("mine", "LacksMethods")], "cannot be created: TypeError: the rebalance listener has no method on_assigned"),
        ([("mine", "Absent")], "cannot be created: AttributeError"),
        ([("mine", "Recording"), ("mine", "Raising")], "several packages register it"),
    ],
)
def test_a_listener_that_cannot_be_used_is_refused(
    register: Callable[..., None], entries: list[tuple[str, str]], reason: str
) -> None:
    register(*entries)
    with pytest.raises(ConfigError) as raised:
        listeners.load_listeners(["mine"], key=KEY)
    assert reason in str(raised.value)


# -- calls ------------------------------------------------------------------------------------------------------------


async def test_all_news_reach_all_listeners_in_order_on_one_other_thread() -> None:
    first, second = Recording(), Recording()
    thread = thread_of(first, second)
    for news in (ASSIGNED, JobsRevoked(jobs=ORDERS), JobsLost(jobs=STOCK)):
        thread.notify(news)
    await thread.close()
    assert first.calls == second.calls == [("assigned", STOCK, 4), ("revoked", ORDERS), ("lost", STOCK)]
    assert first.threads == second.threads
    assert len(first.threads | {threading.current_thread()}) == 2


async def test_an_assignor_is_called_before_the_listeners_and_only_for_new_jobs() -> None:
    calls: list[tuple[object, ...]] = []
    thread = thread_of(Recording(calls), assignors=[RecordingAssignor(calls)])
    thread.notify(JobsRevoked(jobs=ORDERS))
    thread.notify(ASSIGNED)
    await thread.close()
    assert calls == [("revoked", ORDERS), ("assignment", ASSIGNED.assignment), ("assigned", STOCK, 4)]


@pytest.mark.parametrize("assignor", [RecordingAssignor([]), FailingAssignor(RebalancePolicy())])
async def test_after_the_call_of_an_assignor_its_metadata_are_read(assignor: ConnectAssignor) -> None:
    names: list[str] = []
    listening = Recording()
    thread = RebalanceListenerThread(
        [NamedListener(name="one", listener=listening)], [assignor], after_assignment=names.append
    )
    thread.notify(JobsRevoked(jobs=ORDERS))
    thread.notify(ASSIGNED)
    await thread.close()
    assert names == ["cooperative"]
    assert len(listening.calls) == 2


async def test_without_plugins_there_is_no_thread() -> None:
    before = threading.enumerate()
    thread = thread_of()
    thread.notify(ASSIGNED)
    assert threading.enumerate() == before
    await thread.close()


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), KeyboardInterrupt(), StopIteration()])
async def test_a_plugin_that_raises_is_logged_and_the_others_are_called(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    other = Recording()
    thread = thread_of(Raising(error), other, assignors=[FailingAssignor(RebalancePolicy())])
    thread.notify(ASSIGNED)
    thread.notify(JobsLost(jobs=STOCK))
    await thread.close()
    assert other.calls == [("assigned", STOCK, 4), ("lost", STOCK)]
    assert [(record.getMessage(), record.exc_info and record.exc_info[0]) for record in caplog.records] == [
        ("on_assignment of assignor cooperative has failed", ValueError),
        ("on_assigned of rebalance listener listener-0 has failed", type(error)),
        ("on_lost of rebalance listener listener-0 has failed", type(error)),
    ]


async def test_a_plugin_that_blocks_delays_later_calls_only_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    blocking, other = Blocking(), Recording()
    thread = thread_of(blocking, other, slow_call_ms=10)
    notified_s = asyncio.get_running_loop().time()
    for _ in range(3):
        thread.notify(JobsRevoked(jobs=ORDERS))
    assert asyncio.get_running_loop().time() - notified_s < 5, "notify has waited"
    await until(lambda: caplog.records)
    await asyncio.sleep(0.05)  # The timer fires five times more.
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("on_revoked of rebalance listener listener-0 has not returned within 0.01 s")
    assert other.calls == []
    blocking.returns.set()
    await thread.close()
    assert blocking.calls == other.calls == [("revoked", ORDERS)] * 3


async def test_an_assignor_that_blocks_in_on_assignment_still_computes() -> None:
    assignor = BlockingAssignor(RebalancePolicy())
    thread = thread_of(assignors=[assignor])
    thread.notify(ASSIGNED)
    assert await asyncio.to_thread(assignor.begun.wait, 60)
    assert await assign_functions_by_name([assignor])["cooperative"](EMPTY_GROUP) == ComputedTarget(members={})
    assignor.returns.set()
    await thread.close()


async def test_the_news_that_wait_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    blocking = Blocking()
    thread = thread_of(blocking)
    thread.notify(JobsRevoked(jobs=ORDERS))
    assert await asyncio.to_thread(blocking.begun.wait, 60)
    for _ in range(listeners.WAITING_NEWS_MAX + 2):
        thread.notify(JobsLost(jobs=BOTH))
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(lines) == 2
    assert (
        "JobsLost of 2 jobs: 1000 news wait already, because on_revoked of rebalance listener listener-0 has not"
        in lines[0]
    )
    blocking.returns.set()
    await thread.close()
    assert len(blocking.calls) == listeners.WAITING_NEWS_MAX + 1


async def test_the_end_of_a_worker_does_not_wait_for_a_plugin_that_blocks(caplog: pytest.LogCaptureFixture) -> None:
    blocking = Blocking()
    thread = RebalanceListenerThread([NamedListener(name="slow", listener=blocking)], [], close_timeout_ms=20)
    thread.notify(JobsRevoked(jobs=ORDERS))
    await thread.close()
    assert "on_revoked of rebalance listener slow has not returned; this worker ends now" in caplog.text
    blocking.returns.set()
