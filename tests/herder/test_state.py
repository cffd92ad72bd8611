"""A herder's state: each field is assigned in one module, and derived values are not stored."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import coterie.herder
from coterie.herder.messages import StopTask
from coterie.herder.state import (
    Herder,
    InRound,
    LostMembership,
    MembershipPhase,
    NeverJoined,
    RoundCompleted,
    RoundFailed,
)
from coterie.nouns.ids import MemberId
from coterie.nouns.member_state import MemberState
from tests.herder.builders import BOTH_TASKS, working
from tests.herder.herder_driver import HerderDriver, lease_renewed

HOME = Path(coterie.herder.__file__).parent
PARTS = (
    "place",
    "rounds",
    "leader_state",
    "targets",
    "work",
    "requests",
    "lifecycle",
    "rotation",
    "leader_log",
    "run",
    "local_connector",
    "write",
    "read",
    "herder",
)
"""The names of the parts wherever one of their fields is assigned."""


MUTATORS = frozenset(
    ("add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update")
)
"""Methods by which dicts, lists and sets change."""
STEP = "turn"
"""The working set of one step: it is not part of a herder's state, and several modules write to it."""


def written_fields(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Part and field of each assignment to a field or to its entries, and of each call that changes a field in place;
    except in constructors."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for function in functions:
        aliases = dict(_aliases(function))
        for node in ast.walk(function):
            match node:
                case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                    for element in targets:
                        yield from _fields_of(element, aliases)
                case ast.AugAssign(target=target) | ast.AnnAssign(target=target) | ast.For(target=target):
                    yield from _fields_of(target, aliases)
                case ast.Call(func=ast.Attribute(value=target, attr=method)) if method in MUTATORS:
                    yield from _changed_in_place(target, aliases)
                case _:
                    pass


def _aliases(function: ast.FunctionDef) -> Iterator[tuple[str, ast.Attribute]]:
    """The local names of a function that stand for attributes."""
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                pairs = zip(names, values, strict=True)
            case ast.Assign(targets=[name], value=value) | ast.NamedExpr(target=name, value=value):
                pairs = zip([name], [value], strict=True)
            case _:
                continue
        for name, value in pairs:
            if isinstance(name, ast.Name) and isinstance(value, ast.Attribute):
                yield name.id, value


def _fields_of(target: ast.expr, aliases: Mapping[str, ast.Attribute]) -> Iterator[tuple[str, str]]:
    match target:
        case ast.Tuple(elts=targets):
            for element in targets:
                yield from _fields_of(element, aliases)
        case ast.Subscript(value=value):
            yield from _changed_in_place(value, aliases)
        case ast.Attribute(value=ast.Name(id=part) | ast.Attribute(attr=part), attr=field) if part not in (
            "self",
            STEP,
        ):
            yield part, field
        case _:
            pass


def _changed_in_place(target: ast.expr, aliases: Mapping[str, ast.Attribute]) -> Iterator[tuple[str, str]]:
    match target:
        case ast.Name(id=name) if name in aliases:
            yield from _fields_of(aliases[name], aliases)
        case _:
            yield from _fields_of(target, aliases)


@pytest.fixture(scope="module")
def writers() -> dict[tuple[str, str], set[str]]:
    found: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for module in sorted(HOME.rglob("*.py")):
        for part_and_field in written_fields(ast.parse(module.read_text())):
            found[part_and_field].add(str(module.relative_to(HOME)))
    return found


def test_each_field_is_written_in_one_module(writers: dict[tuple[str, str], set[str]]) -> None:
    assert len(writers) > 40, "the parts must be found"
    assert {field: modules for field, modules in writers.items() if len(modules) > 1} == {}


def test_fields_are_written_only_through_the_names_of_their_parts(writers: dict[tuple[str, str], set[str]]) -> None:
    """Otherwise two names of one part could hide two writers."""
    assert {part for part, _ in writers} <= set(PARTS)


@pytest.mark.parametrize(
    "line",
    [
        "turn.herder.work.runs = {}",
        "herder.work.runs[task] = run",
        "del work.runs[task]",
        "work.runs |= more",
        "work.runs: Runs = {}",
        "first, work.runs = runs",
        "for work.runs in several: pass",
        "work.runs.pop(task)",
        "work.runs[task].append(run)",
        "runs = turn.herder.work.runs; runs[task] = run",
        "herder, runs = turn.herder, turn.herder.work.runs; del runs[task]",
        "runs = herder.work.runs; runs.update(more)",
        "if (runs := work.runs): runs.clear()",
    ],
)
def test_each_way_to_write_a_field_is_detected(line: str) -> None:
    assert list(written_fields(ast.parse(f"def change(turn):\n    {line}"))) == [("work", "runs")]


@pytest.mark.parametrize("line", ["runs = work.runs", "runs = dict(work.runs); runs[task] = run", "self.runs = {}"])
def test_an_assignment_to_a_local_variable_is_not_detected(line: str) -> None:
    assert not list(written_fields(ast.parse(f"def change(turn):\n    {line}")))


def in_round(*, is_lost: bool = False) -> InRound:
    return InRound(member_state=MemberState.COMPLETING_REBALANCE, follows_membership_loss=is_lost)


@pytest.mark.parametrize(
    ("phase", "member_id", "state", "is_lost", "is_leader_with_current_assignment"),
    [
        (NeverJoined(), "", MemberState.UNJOINED, False, False),
        (in_round(), "me", MemberState.COMPLETING_REBALANCE, False, False),
        (in_round(is_lost=True), "", MemberState.COMPLETING_REBALANCE, True, False),
        (RoundFailed(), "me", MemberState.STABLE, False, False),
        (RoundCompleted(), "me", MemberState.STABLE, False, True),
        (LostMembership(), "", MemberState.UNJOINED, True, False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_a_completed_rebalance_makes_a_leader_and_a_loss_lasts_until_a_rebalance_ends(
    phase: MembershipPhase, member_id: str, state: MemberState, is_lost: bool, is_leader_with_current_assignment: bool
) -> None:
    place = Herder(HerderDriver().herder.settings).place
    place.phase = phase
    place.member_id = place.leader = MemberId(member_id)
    assert (place.member_state, place.is_lost, place.is_leader_with_current_assignment) == (
        state,
        is_lost,
        is_leader_with_current_assignment,
    )


def test_a_stop_ordered_late_in_the_lease_ends_within_the_session() -> None:
    herder = working()
    herder.feed(lease_renewed(sent_at_ms=herder.now_ms))
    herder.now_ms += 6_500
    herder.assign(revoked=BOTH_TASKS)
    assert {stop.grace_ms for stop in herder.pop_effects(StopTask)} == {2_166}, (
        "13/15 of the session, counted from the response"
    )
