"""The simulator must find known bugs; `tools/planted_bugs/run.py` runs the whole list."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SEEDS = {"the lease of a member begins when the response arrives": "65-80"}
"""The seeds for a bug that few plays meet; the others are found soon in seeds 1 to 80."""
SOAK = {
    "a job has the same job epoch with its next owner (KAFKA-19974)",
    "a new round has the generation of the one before",
    "a static member's return is a round",
    "a worker says that it has released what it is still stopping",
    "all moves are made at once, whatever the pace",
    "every assignment is taken for the whole",
    "offsets are acknowledged and not written",
    "sessions are not armed again after a load",
    "the leader forgets one member",
    "a downgrade deals out while others still run",
    "a draining worker is given work",
    "a member's own revocation counts as a job of another member (KAFKA-19449)",
    "the lease of a member begins when the response arrives",
}
"""The bugs that `make soak` finds; `make test` finds at least two of each play."""
RUN = Path(__file__).parents[2] / "tools" / "planted_bugs" / "run.py"


@pytest.fixture(scope="module")
def planted() -> ModuleType:
    spec = importlib.util.spec_from_file_location("planted_bugs_run", RUN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_listed_bug_can_still_be_planted(planted: ModuleType) -> None:
    for bug in planted.read_bugs():
        source = (planted.SOURCES / "coterie" / bug.file).read_text()
        assert source.count(bug.search) == 1, f"{bug.name!r} no longer fits {bug.file}: correct bugs.toml"


def with_soak_marks(*names: str) -> list[object]:
    """The names as parameters; those of :data:`SOAK` belong to `make soak`."""
    return [pytest.param(name, marks=pytest.mark.soak) if name in SOAK else name for name in names]


@pytest.mark.timeout(600)  # A bug that appears only with some seeds takes hundreds of plays.
@pytest.mark.parametrize(
    "name",
    with_soak_marks(
        "effects leave before their records are durable",
        "sessions are not armed again after a load",
        "a new round has the generation of the one before",
        "the leader forgets one member",
        "the assignor hands out what another member runs",
        "a worker says that it has released what it is still stopping",
        "a draining worker is given work",
        "what a lost worker ran goes to others at once",
        "all moves are made at once, whatever the pace",
        "every assignment is taken for the whole",
        "a downgrade deals out while others still run",
        "an unsigned request is accepted",
        "a static member's return is a round",
        "offsets are acknowledged and not written",
        "offsets expire by their commit alone",
        "a heartbeat does not renew its session",
        "a transaction begins with its last batch",
        "a fenced producer goes on",
        "a member gets its whole target, also the jobs that others still have (crabka 521)",
        "a job has the same job epoch with its next owner (KAFKA-19974)",
        "a member's own revocation counts as a job of another member (KAFKA-19449)",
        "the rebalance timeout begins again with each heartbeat (KAFKA-16249)",
        "the lease of a member begins when the response arrives",
        "a new leader has the leader epoch of the one before",
    ),
)
def test_a_planted_bug_breaks_one_of_its_listed_invariants(planted: ModuleType, name: str) -> None:
    bug = next(bug for bug in planted.read_bugs() if bug.name == name)
    found, line = planted.try_bug(bug, SEEDS.get(name, "1-80"))
    assert found, line


def test_a_crash_does_not_count_as_a_found_bug(planted: ModuleType) -> None:
    bug = planted.SimulatedBug(
        name="a typing error",
        file="groups/classic/machine.py",
        search="turn = Turn(group, now_ms)",
        replace="turn = Trun(group, now_ms)",
        breaks=("settles",),
    )
    found, line = planted.try_bug(bug, "1")
    assert not found
    assert "NameError" in line
