"""The recipe of the file sink in a model so small that every interleaving of its steps can be visited.

Starts of one task, each a process that may stand still for ever after any step, run two batches. A batch has two rows;
a copy of it has two files, and every start puts the rows into them in another order, as Spark may: files of two copies
of a batch do not go together. The same holds where bad records go to a folder: one file has the row that is good in the
evaluation of that start, the other file the row that is bad. ``visit`` goes through every state that any order of steps
can reach.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TypeAlias

BATCHES = 2
ROWS = ("a", "b")
FILES = (0, 1)

File: TypeAlias = tuple[int, int]
"""The number of the file, and the start that wrote it."""


class Fault(Enum):
    """What a careless version of the recipe leaves out."""

    NONE = auto()
    NO_MARK = auto()
    """A committed copy whose files are moved out is an empty folder."""
    NO_LOOK_AT_THE_MARK = auto()
    """A copy that was swept while it was written is put in place."""
    ENOENT_ENDS_THE_MOVE = auto()
    """A file that another owner has moved is taken for the last one."""
    COMMIT_BEFORE_THE_MOVE = auto()
    """The batch is committed to the checkpoint before its files are moved."""
    MARKS_GO_WITH_THE_NEXT_BATCH = auto()
    RETIRED_NAME_IS_FREE = auto()
    """No plain file takes the place of a retired lineage's folder."""
    GOOD_AND_BAD_ROWS_BY_TWO_STEPS = auto()
    """Each of the two files is put where readers look by a step of its own, unless one of that number stands there."""


class At(Enum):
    """What a start does next."""

    TAKE_OVER = auto()
    SWEEP = auto()
    PLAN = auto()
    BEGIN = auto()
    WRITE_FIRST = auto()
    WRITE_SECOND = auto()
    LOOK_AT_MARK = auto()
    RENAME = auto()
    RENAME_SECOND = auto()
    LIST = auto()
    MOVE = auto()
    COMMIT = auto()
    ENDED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    at: At = At.TAKE_OVER
    batch: int = 0
    listed: tuple[File, ...] = ()
    """Files that it has seen in the committed copy, and has yet to move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedCopy:
    start: int
    batch: int
    has_mark: bool
    files: tuple[File, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    starts: tuple[Start, ...]
    holder: int = -1
    planned: int = -1
    committed: int = -1
    staged: frozenset[StagedCopy] = frozenset()
    decided: tuple[tuple[File, ...] | None, ...] = (None,) * BATCHES
    """Of each batch the files that the committed copy still has; None where none was put there."""
    out: tuple[tuple[int, File], ...] = field(default=())
    """What readers see: batch and file, sorted."""
    is_retired: bool = False
    is_blocked: bool = False
    """A plain file stands at the name of the lineage's folder."""


def rows(file: File) -> str:
    number, start = file
    return ROWS[(number + start) % len(ROWS)]


def wrong(world: World) -> str | None:
    """What a reader must never see."""
    seen = Counter((batch, rows(file)) for batch, file in world.out)
    if doubled := sorted(row for row, count in seen.items() if count > 1):
        return f"doubled: {doubled}"
    if lost := [(batch, row) for batch in range(world.committed + 1) for row in ROWS if not seen[batch, row]]:
        return f"lost: {lost}"
    return None


def visit(starts: int, fault: Fault = Fault.NONE) -> tuple[int, str | None]:
    """How many states there are, up to the first in which a reader sees what is wrong, and what that is."""
    first = World(starts=(Start(),) * starts)
    seen, waiting = {first}, [first]
    while waiting:
        world = waiting.pop()
        if found := wrong(world):
            return len(seen), found
        successors = [after for number in range(starts) for after in step(world, number, fault)]
        if not world.is_retired and world.committed == BATCHES - 1:
            successors.append(retired(world, fault))
        if not successors and world.committed < BATCHES - 1:
            return len(seen), f"the last start does not come to an end: {world}"
        for after in successors:
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    return len(seen), None


def retired(world: World, fault: Fault) -> World:
    """The generation of the checkpoints is retired: no start holds them any more, and the marks go."""
    is_blocked = fault is not Fault.RETIRED_NAME_IS_FREE
    return replace(world, is_retired=True, is_blocked=is_blocked, decided=(None,) * BATCHES, holder=-1)


def step(world: World, number: int, fault: Fault) -> Iterator[World]:
    """The world after the next step of a start; none when the start has ended."""
    me = world.starts[number]
    match me.at:
        case At.TAKE_OVER | At.SWEEP:
            yield from take_over(world, number)
        case At.PLAN:
            yield from plan(world, number)
        case At.BEGIN | At.WRITE_FIRST | At.WRITE_SECOND:
            yield write(world, number)
        case At.LOOK_AT_MARK:
            copy = staged_by(world, number)
            is_whole = copy is not None and (copy.has_mark or fault is Fault.NO_LOOK_AT_THE_MARK)
            yield goes(world, number, At.RENAME) if is_whole else fenced(world, number)
        case At.RENAME:
            if fault is Fault.GOOD_AND_BAD_ROWS_BY_TWO_STEPS:
                yield show_alone(world, number, 1, At.RENAME_SECOND)
            else:
                yield rename(world, number, fault)
        case At.RENAME_SECOND:
            yield show_alone(world, number, 0, At.COMMIT)
        case At.LIST | At.MOVE:
            yield move(world, number, fault)
        case At.COMMIT:
            yield commit(world, number, fault)
        case At.ENDED:
            pass


def take_over(world: World, number: int) -> Iterator[World]:
    if world.starts[number].at is At.TAKE_OVER:
        # Later starts have higher numbers. None takes a retired checkpoint.
        if not world.is_retired and number == world.holder + 1:
            yield goes(replace(world, holder=number), number, At.SWEEP)
        return
    for copy in world.staged:
        yield replace(world, staged=world.staged - {copy})
    if not world.staged:
        yield goes(world, number, At.PLAN)


def plan(world: World, number: int) -> Iterator[World]:
    """A query that has lost its checkpoint dies here at the latest."""
    if world.holder != number:
        yield goes(world, number, At.ENDED)
    elif world.planned > world.committed:
        yield goes(world, number, At.BEGIN, batch=world.planned)
    elif world.planned < BATCHES - 1:
        yield goes(replace(world, planned=world.planned + 1), number, At.BEGIN, batch=world.planned + 1)


def write(world: World, number: int) -> World:
    me, copy = world.starts[number], staged_by(world, number)
    if me.at is At.BEGIN:
        if world.decided[me.batch] is not None:
            return goes(world, number, At.LIST)
        made = StagedCopy(start=number, batch=me.batch, has_mark=True)
        return goes(replace(world, staged=world.staged | {made}), number, At.WRITE_FIRST)
    if copy is None:
        # It was swept, and the writer makes the folder again.
        copy = StagedCopy(start=number, batch=me.batch, has_mark=False)
    file = (len(FILES) - 1 if me.at is At.WRITE_SECOND else 0, number)
    written = replace(copy, files=(*copy.files, file))
    after = At.LOOK_AT_MARK if me.at is At.WRITE_SECOND else At.WRITE_SECOND
    return goes(replace(world, staged=world.staged - {copy} | {written}), number, after)


def rename(world: World, number: int, fault: Fault) -> World:
    """The decisive step."""
    me, copy = world.starts[number], staged_by(world, number)
    if copy is None or world.is_blocked:
        return fenced(world, number)
    there = world.decided[me.batch]
    without = replace(world, staged=world.staged - {copy})
    if there is None or (fault is Fault.NO_MARK and not there):
        decided = tuple(copy.files if batch == me.batch else left for batch, left in enumerate(world.decided))
        without = replace(without, decided=decided)
    return goes(without, number, At.COMMIT if fault is Fault.COMMIT_BEFORE_THE_MOVE else At.LIST)


def show_alone(world: World, number: int, which: int, after: At) -> World:
    """One of the two steps of :attr:`Fault.GOOD_AND_BAD_ROWS_BY_TWO_STEPS`."""
    me = world.starts[number]
    stands = any(batch == me.batch and file[0] == which for batch, file in world.out)
    out = world.out if stands else tuple(sorted([*world.out, (me.batch, (which, number))]))
    return goes(replace(world, out=out), number, after)


def fenced(world: World, number: int) -> World:
    """The query dies. One that holds its checkpoint is started again: an earlier start was late with its sweep."""
    return goes(world, number, At.SWEEP if world.holder == number else At.ENDED)


def move(world: World, number: int, fault: Fault) -> World:
    me = world.starts[number]
    left = world.decided[me.batch] or ()
    after_all = At.PLAN if fault is Fault.COMMIT_BEFORE_THE_MOVE else At.COMMIT
    if me.at is At.LIST:
        return goes(world, number, At.MOVE, listed=left) if left else goes(world, number, after_all)
    file, *rest = me.listed
    if file not in left:
        if fault is Fault.ENOENT_ENDS_THE_MOVE:
            return goes(world, number, after_all)
    else:
        decided = tuple(
            tuple(one for one in files if one != file) if batch == me.batch and files is not None else files
            for batch, files in enumerate(world.decided)
        )
        # A file of the same name is replaced.
        out = [(batch, one) for batch, one in world.out if (batch, one[0]) != (me.batch, file[0])]
        world = replace(world, decided=decided, out=tuple(sorted([*out, (me.batch, file)])))
    return goes(world, number, At.MOVE if rest else At.LIST, listed=tuple(rest))


def commit(world: World, number: int, fault: Fault) -> World:
    me = world.starts[number]
    if world.holder != number:
        return goes(world, number, At.ENDED)
    decided = world.decided
    if fault is Fault.MARKS_GO_WITH_THE_NEXT_BATCH:
        decided = tuple(None if batch < me.batch else files for batch, files in enumerate(decided))
    world = replace(world, committed=me.batch, decided=decided)
    return goes(world, number, At.LIST if fault is Fault.COMMIT_BEFORE_THE_MOVE else At.PLAN)


def goes(world: World, number: int, at: At, *, batch: int | None = None, listed: tuple[File, ...] = ()) -> World:
    """The world in which a start goes on elsewhere."""
    me = replace(world.starts[number], at=at, listed=listed)
    if batch is not None:
        me = replace(me, batch=batch)
    return replace(world, starts=(*world.starts[:number], me, *world.starts[number + 1 :]))


def staged_by(world: World, number: int) -> StagedCopy | None:
    return next((copy for copy in world.staged if copy.start == number), None)
