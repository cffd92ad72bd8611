"""The metadata of assignors: read on threads of their own, and reported when they change."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from coterie.assignors.connect.cooperative import CooperativeAssignor
from coterie.assignors.connect.interface import AssignorMetadata
from coterie.assignors.members import RebalancePolicy
from coterie.cli.assignor_watch import METADATA_SIZE_MAX, AssignorMetadataWatch
from coterie.member.connect.state import OfferedAssignor
from coterie.nouns.errors import ConfigError
from coterie.nouns.membership import UpdateAssignor
from tests.worker.simulated import until

LONG_MS = 60_000
"""Longer than a test."""


class Changing(CooperativeAssignor):
    """An assignor whose metadata a test changes."""

    def __init__(self, name: str = "changing", metadata: bytes = b"first", reason: int = 0) -> None:
        super().__init__(RebalancePolicy())
        self.name = name
        self.offers(metadata, reason)
        self.returns = threading.Event()
        self.returns.set()
        self.calls = 0
        self.threads: set[threading.Thread] = set()

    def offers(self, metadata: bytes, reason: int = 0, *, version: int = 3) -> None:
        self.offered: AssignorMetadata | BaseException = AssignorMetadata(
            version=version, metadata=metadata, reason=reason
        )

    def metadata(self) -> AssignorMetadata:
        self.threads.add(threading.current_thread())
        self.calls += 1
        assert self.returns.wait(60)
        if isinstance(self.offered, BaseException):
            raise self.offered
        return self.offered


class Watched:
    """A watch that runs, and what it has reported."""

    def __init__(self, watch: AssignorMetadataWatch, assignor: Changing) -> None:
        self.updates: list[UpdateAssignor] = []
        self._watch, self._assignor = watch, assignor

    async def look(self) -> list[UpdateAssignor]:
        """Let the metadata be read twice; the second call begins when the result of the first one was processed.
        Returns the updates since the last call."""
        for _ in range(2):
            await until(self._next_call())
        updates, self.updates = self.updates, []
        return updates

    def _next_call(self) -> Callable[[], bool]:
        """Let the metadata be read soon; whether the call has begun."""
        calls = self._assignor.calls
        self._watch.read_metadata_soon(self._assignor.name)
        return lambda: self._assignor.calls > calls


@asynccontextmanager
async def watching(*assignors: Changing, timeout_ms: int = LONG_MS) -> AsyncIterator[Watched]:
    """The watch of ``assignors``, after their first offers; looks are ordered, and are at the first assignor."""
    watch = AssignorMetadataWatch(assignors, interval_ms=LONG_MS, timeout_ms=timeout_ms)
    await watch.read_offered_assignors()
    watched = Watched(watch, assignors[0])
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(watch.run(lambda update: watched.updates.append(update)))
        yield watched
        running.cancel()


async def error_of(assignor: Changing, *, timeout_ms: int = LONG_MS) -> str:
    with pytest.raises(ConfigError) as raised:
        await AssignorMetadataWatch([assignor], timeout_ms=timeout_ms).read_offered_assignors()
    return str(raised.value)


# -- the start --------------------------------------------------------------------------------------------------------


async def test_the_first_offers_are_read_in_order_on_other_threads() -> None:
    assignors = [Changing("one", b"1", reason=2), Changing("two", b"2")]
    assert await AssignorMetadataWatch(assignors).read_offered_assignors() == (
        OfferedAssignor(name="one", minimum_version=0, maximum_version=3, metadata_version=3, metadata=b"1", reason=2),
        OfferedAssignor(name="two", minimum_version=0, maximum_version=3, metadata_version=3, metadata=b"2"),
    )
    assert threading.current_thread() not in assignors[0].threads | assignors[1].threads


async def test_an_assignor_that_does_not_return_in_time_is_one_error_with_its_name() -> None:
    assignor = Changing()
    assignor.returns.clear()
    assert await error_of(assignor, timeout_ms=10) == (
        "assignor changing: The assignor changing cannot be used: metadata of assignor changing did not return within "
        "0.01 s"
    )
    assignor.returns.set()


@pytest.mark.parametrize(
    ("offered", "why"),
    [
        (ValueError("no"), "its metadata cannot be read: ValueError: no"),
        (SystemExit(1), "SystemExit: 1"),
        (AssignorMetadata(version=4), "its versions must satisfy"),
        (AssignorMetadata(version=3, metadata=bytes(METADATA_SIZE_MAX + 1)), "32769 bytes; at most 32768"),
    ],
)
async def test_metadata_that_cannot_be_used_end_the_start(offered: AssignorMetadata | BaseException, why: str) -> None:
    assignor = Changing()
    assignor.offered = offered
    error = await error_of(assignor)
    assert error.startswith("assignor changing: The assignor changing cannot be used: ")
    assert why in error


async def test_without_assignors_nothing_is_offered_or_watched() -> None:
    watch = AssignorMetadataWatch([])
    assert await watch.read_offered_assignors() == ()
    await watch.run(lambda update: pytest.fail(str(update)))


# -- changes ----------------------------------------------------------------------------------------------------------


async def test_a_change_is_reported_once() -> None:
    assignor = Changing()
    async with watching(assignor) as watched:
        assert await watched.look() == []
        assignor.offers(b"second", version=2)
        assert await watched.look() == [UpdateAssignor(name="changing", metadata_version=2, metadata=b"second")]
        assert await watched.look() == []


async def test_a_reason_is_reported_when_something_differs_from_the_call_before() -> None:
    assignor = Changing(reason=1)

    async def reasons(metadata: bytes, reason: int) -> list[int]:
        assignor.offers(metadata, reason)
        return [update.reason for update in await watched.look()]

    async with watching(assignor) as watched:
        assert await reasons(b"first", 1) == [], "the join has had it"
        assert await reasons(b"first", 3) == [3]
        assert await reasons(b"first", 3) == []
        assert await reasons(b"other", 3) == [3]
        assert await reasons(b"other", 0) == []
        assert await reasons(b"other", 3) == [3]


async def test_metadata_are_read_at_each_interval() -> None:
    assignor = Changing()
    watch = AssignorMetadataWatch([assignor], interval_ms=1)
    await watch.read_offered_assignors()
    reported: list[UpdateAssignor] = []
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(watch.run(reported.append))
        await until(lambda: assignor.calls > 3)
        assert reported == []
        assignor.offers(b"second")
        await until(lambda: bool(reported))
        running.cancel()


@pytest.mark.parametrize(
    "break_",
    [
        lambda assignor: setattr(assignor, "offered", ValueError("no")),
        lambda assignor: setattr(assignor, "offered", SystemExit(1)),
        lambda assignor: assignor.offers(b"bad", version=4),
        lambda assignor: assignor.offers(b"bad", 1_000),
        lambda assignor: assignor.offers(bytes(METADATA_SIZE_MAX)),
        lambda assignor: setattr(assignor, "minimum_version", 1),
    ],
)
async def test_a_later_failure_is_logged_once_and_changes_nothing(
    break_: Callable[[Changing], None], caplog: pytest.LogCaptureFixture
) -> None:
    assignor = Changing()
    async with watching(assignor, Changing("other")) as watched:
        break_(assignor)
        assert await watched.look() == []
        assert await watched.look() == []
        (line,) = [record.getMessage() for record in caplog.records]
        assert line.startswith(
            "Assignor changing has returned no valid metadata, so the coordinator keeps those reported before, and "
        )
        assignor.minimum_version = 0
        assignor.offers(b"second")
        assert await watched.look() == [UpdateAssignor(name="changing", metadata_version=3, metadata=b"second")]
        break_(assignor)
        await watched.look()
        assert len(caplog.records) == 2


async def test_an_assignor_that_blocks_later_delays_no_other_one(caplog: pytest.LogCaptureFixture) -> None:
    blocking, other = Changing("blocking"), Changing("other")
    watch = AssignorMetadataWatch([blocking, other], interval_ms=1, timeout_ms=10)
    await watch.read_offered_assignors()
    reported: list[UpdateAssignor] = []
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(watch.run(reported.append))
        blocking.returns.clear()
        await until(lambda: bool(caplog.records))
        other.offers(b"second")
        blocking.offers(b"late")
        await until(lambda: bool(reported))
        calls = other.calls
        await until(lambda: other.calls > calls + 10)
        assert [update.name for update in reported] == ["other"]
        (line,) = [record.getMessage() for record in caplog.records]
        assert line.endswith("metadata of assignor blocking did not return within 0.01 s")
        blocking.returns.set()
        await until(lambda: [update.name for update in reported] == ["other", "blocking"])
        running.cancel()


def test_a_look_after_the_end_of_the_worker_does_nothing() -> None:
    watch = AssignorMetadataWatch([Changing()])
    watch.read_metadata_soon("changing")
    asyncio.run(watch.read_offered_assignors())
    watch.read_metadata_soon("changing")
