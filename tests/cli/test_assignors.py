"""Assignors are found by entry point; a plug-in that cannot be used is named with its reason."""

import threading
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from typing import ClassVar

import pytest

from coterie.assignors.connect.cooperative import CooperativeAssignor
from coterie.assignors.connect.interface import AssignorMetadata
from coterie.assignors.members import RebalancePolicy
from coterie.cli import assignors
from coterie.nouns.errors import ConfigError, WorldError
from coterie.nouns.ids import ConfigOffset, GroupEpoch
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.target_assignments import ComputedTarget, GroupSnapshot

KEY = "group.local.assignors"
EMPTY_GROUP = GroupSnapshot(
    group_epoch=GroupEpoch(1), assignor="x", members=(), config_offset=ConfigOffset(0), configured=NO_JOBS
)


class Named(CooperativeAssignor):
    """An assignor with another name; remembers the thread of its calls."""

    name = "named"
    threads: ClassVar[list[threading.Thread]] = []

    def assign(self, group: GroupSnapshot) -> ComputedTarget:
        self.threads.append(threading.current_thread())
        return super().assign(group)


class Raises(CooperativeAssignor):
    name = "raises"

    def __init__(self, policy: RebalancePolicy) -> None:
        raise OSError("no file")


class Offering(CooperativeAssignor):
    """An assignor with metadata that a test chooses."""

    def __init__(self, offered: AssignorMetadata | None) -> None:
        super().__init__(RebalancePolicy())
        self.offered = offered

    def metadata(self) -> AssignorMetadata:
        return self.offered  # type: ignore[return-value]


class ReturnsNothing(CooperativeAssignor):
    name = "nothing"

    def assign(self, group: GroupSnapshot) -> ComputedTarget:
        return None  # type: ignore[return-value]


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def entries_of(*entries: tuple[str, str]) -> None:
        found = EntryPoints(EntryPoint(name, f"{__name__}:{cls}", "coterie.assignors") for name, cls in entries)
        monkeypatch.setattr(assignors, "entry_points", lambda group: found)

    return entries_of


def error_of(*names: str) -> str:
    with pytest.raises(ConfigError) as raised:
        assignors.load_assignors(names, RebalancePolicy(), key=KEY)
    return str(raised.value)


def test_the_built_in_assignor_is_registered_as_any_other() -> None:
    (assignor,) = assignors.load_assignors(["cooperative"], RebalancePolicy(), key=KEY)
    assert isinstance(assignor, CooperativeAssignor)
    offered = assignors.read_and_check_offered_assignor(assignor)
    assert (offered.name, offered.metadata) == ("cooperative", b"")


def test_an_unknown_assignor_is_refused_with_the_installed_ones(register: Callable[..., None]) -> None:
    register(("named", "Named"))
    assert "no assignor has this name; installed: named" in error_of("absent")


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (("raises", "Raises"), "cannot be created: OSError: no file"),
        (("absent", "Absent"), "cannot be created: AttributeError"),
        (("other", "Named"), "has the name named"),
    ],
)
def test_an_assignor_that_cannot_be_used_is_refused(
    register: Callable[..., None], entry: tuple[str, str], reason: str
) -> None:
    register(entry)
    assert reason in error_of(entry[0])


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (AssignorMetadata(version=4), r"its versions must satisfy .* version of the metadata \(4\) <= .* \(3\)"),
        (AssignorMetadata(version=-1), "its versions must satisfy"),
        (AssignorMetadata(version=3, reason=128), "the reason of its metadata is 128; it must be from 0 to 127"),
        (AssignorMetadata(version=3, reason=-1), "the reason of its metadata is -1"),
        (None, "its metadata cannot be read: AttributeError"),
    ],
)
def test_invalid_metadata_are_refused(metadata: AssignorMetadata | None, reason: str) -> None:
    with pytest.raises(WorldError, match=reason):
        assignors.read_and_check_offered_assignor(Offering(metadata))


def test_two_packages_with_one_name_are_refused(register: Callable[..., None]) -> None:
    register(("named", "Named"), ("named", "Raises"))
    assert "several packages register it" in error_of("named")


def test_the_broker_starts_without_an_assignor_that_cannot_be_used(
    register: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    register(("named", "Named"), ("raises", "Raises"))
    assert [one.name for one in assignors.load_usable_installed_assignors(RebalancePolicy())] == ["named"]
    assert "The assignor raises cannot be used" in caplog.text


async def test_an_assignor_computes_on_a_thread_of_its_own(register: Callable[..., None]) -> None:
    register(("named", "Named"))
    loaded = assignors.load_assignors(["named"], RebalancePolicy(), key=KEY)
    assert await assignors.assign_functions_by_name(loaded)["named"](EMPTY_GROUP) == ComputedTarget(members={})
    assert Named.threads[-1] is not threading.current_thread()


async def test_an_assignor_that_returns_something_else_has_failed(register: Callable[..., None]) -> None:
    register(("nothing", "ReturnsNothing"))
    loaded = assignors.load_assignors(["nothing"], RebalancePolicy(), key=KEY)
    with pytest.raises(TypeError, match="NoneType instead of a ComputedTarget"):
        await assignors.assign_functions_by_name(loaded)["nothing"](EMPTY_GROUP)
