"""The file sink's protocol in a model that is small enough to visit every interleaving of its steps.

Starts of one task, each a process that may freeze forever after any step, run two batches. A batch has two rows; a copy
of it has two files, and every start distributes the rows over them in another order, as Spark may: files of two copies
of a batch must not be mixed. The same applies to a folder of bad records: one file has the row that is good in the
evaluation of that start, the other file the bad row. ``visit`` goes through every state that any order of steps can
reach.
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
    """The part of the protocol that a faulty version omits."""

    NONE = auto()
    NO_MARK = auto()
    """A committed copy whose files are moved out is an empty folder."""
    NO_LOOK_AT_THE_MARK = auto()
    """A copy that was removed while it was written is put in place."""
    ENOENT_ENDS_THE_MOVE = auto()
    """A file that another owner has moved counts as the last one."""
    COMMIT_BEFORE_THE_MOVE = auto()
    """The batch is committed to the checkpoint before its files are moved."""
    MARKS_GO_WITH_THE_NEXT_BATCH = auto()
    RETIRED_NAME_IS_FREE = auto()
    """The folder of a retired lineage is not replaced by a plain file."""
    GOOD_AND_BAD_ROWS_BY_TWO_STEPS = auto()
    """Each of the two files becomes visible in its own step, unless a file of that number is visible already."""


class At(Enum):
    """The next step of a start."""

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
    """Files of the committed copy that it still must move."""


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
    """The files that remain in the committed copy of each batch; None if no copy was committed."""
    out: tuple[tuple[int, File], ...] = field(default=())
    """The visible files: batch and file, sorted."""
    is_retired: bool = False
    is_blocked: bool = False
    """Whether a plain file has replaced the lineage's folder."""


def rows(file: File) -> str:
    number, start = file
    return ROWS[(number + start) % len(ROWS)]


def reader_error(world: World) -> str | None:
    """A state that a reader must never see, or None."""
    seen = Counter((batch, rows(file)) for batch, file in world.out)
    if doubled := sorted(row for row, count in seen.items() if count > 1):
        return f"doubled: {doubled}"
    if lost := [(batch, row) for batch in range(world.committed + 1) for row in ROWS if not seen[batch, row]]:
        return f"lost: {lost}"
    return None


def visit(starts: int, fault: Fault = Fault.NONE) -> tuple[int, str | None]:
    """The number of visited states, up to the first one that is wrong for a reader, and the error in it."""
    first = World(starts=(Start(),) * starts)
    seen, waiting = {first}, [first]
    while waiting:
        world = waiting.pop()
        if found := reader_error(world):
            return len(seen), found
        successors = [after for number in range(starts) for after in step(world, number, fault)]
        if not world.is_retired and world.committed == BATCHES - 1:
            successors.append(retired(world, fault))
        if not successors and world.committed < BATCHES - 1:
            return len(seen), f"the last start does not end: {world}"
        for after in successors:
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    return len(seen), None


def retired(world: World, fault: Fault) -> World:
    """The world after the checkpoints' generation was retired: no start holds them, and the marks are removed."""
    is_blocked = fault is not Fault.RETIRED_NAME_IS_FREE
    return replace(world, is_retired=True, is_blocked=is_blocked, decided=(None,) * BATCHES, holder=-1)


def step(world: World, number: int, fault: Fault) -> Iterator[World]:
    """The possible worlds after the next step of a start; none if the start has ended."""
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
            yield continue_at(world, number, At.RENAME) if is_whole else fenced(world, number)
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
        # Later starts have higher numbers. No start takes a retired checkpoint.
        if not world.is_retired and number == world.holder + 1:
            yield continue_at(replace(world, holder=number), number, At.SWEEP)
        return
    for copy in world.staged:
        yield replace(world, staged=world.staged - {copy})
    if not world.staged:
        yield continue_at(world, number, At.PLAN)


def plan(world: World, number: int) -> Iterator[World]:
    """Plan a batch; a query that has lost its checkpoint fails here at the latest."""
    if world.holder != number:
        yield continue_at(world, number, At.ENDED)
    elif world.planned > world.committed:
        yield continue_at(world, number, At.BEGIN, batch=world.planned)
    elif world.planned < BATCHES - 1:
        yield continue_at(replace(world, planned=world.planned + 1), number, At.BEGIN, batch=world.planned + 1)


def write(world: World, number: int) -> World:
    me, copy = world.starts[number], staged_by(world, number)
    if me.at is At.BEGIN:
        if world.decided[me.batch] is not None:
            return continue_at(world, number, At.LIST)
        made = StagedCopy(start=number, batch=me.batch, has_mark=True)
        return continue_at(replace(world, staged=world.staged | {made}), number, At.WRITE_FIRST)
    if copy is None:
        # The folder was removed, and the writer creates it again.
        copy = StagedCopy(start=number, batch=me.batch, has_mark=False)
    file = (len(FILES) - 1 if me.at is At.WRITE_SECOND else 0, number)
    written = replace(copy, files=(*copy.files, file))
    after = At.LOOK_AT_MARK if me.at is At.WRITE_SECOND else At.WRITE_SECOND
    return continue_at(replace(world, staged=world.staged - {copy} | {written}), number, after)


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
    return continue_at(without, number, At.COMMIT if fault is Fault.COMMIT_BEFORE_THE_MOVE else At.LIST)


def show_alone(world: World, number: int, which: int, after: At) -> World:
    """One of the two steps of :attr:`Fault.GOOD_AND_BAD_ROWS_BY_TWO_STEPS`."""
    me = world.starts[number]
    stands = any(batch == me.batch and file[0] == which for batch, file in world.out)
    out = world.out if stands else tuple(sorted([*world.out, (me.batch, (which, number))]))
    return continue_at(replace(world, out=out), number, after)


def fenced(world: World, number: int) -> World:
    """The query fails. If it holds its checkpoint it is restarted: an earlier start removed its files late."""
    return continue_at(world, number, At.SWEEP if world.holder == number else At.ENDED)


def move(world: World, number: int, fault: Fault) -> World:
    me = world.starts[number]
    left = world.decided[me.batch] or ()
    after_all = At.PLAN if fault is Fault.COMMIT_BEFORE_THE_MOVE else At.COMMIT
    if me.at is At.LIST:
        return continue_at(world, number, At.MOVE, listed=left) if left else continue_at(world, number, after_all)
    file, *rest = me.listed
    if file not in left:
        if fault is Fault.ENOENT_ENDS_THE_MOVE:
            return continue_at(world, number, after_all)
    else:
        decided = tuple(
            tuple(one for one in files if one != file) if batch == me.batch and files is not None else files
            for batch, files in enumerate(world.decided)
        )
        # A file of the same name is replaced.
        out = [(batch, one) for batch, one in world.out if (batch, one[0]) != (me.batch, file[0])]
        world = replace(world, decided=decided, out=tuple(sorted([*out, (me.batch, file)])))
    return continue_at(world, number, At.MOVE if rest else At.LIST, listed=tuple(rest))


def commit(world: World, number: int, fault: Fault) -> World:
    me = world.starts[number]
    if world.holder != number:
        return continue_at(world, number, At.ENDED)
    decided = world.decided
    if fault is Fault.MARKS_GO_WITH_THE_NEXT_BATCH:
        decided = tuple(None if batch < me.batch else files for batch, files in enumerate(decided))
    world = replace(world, committed=me.batch, decided=decided)
    return continue_at(world, number, At.LIST if fault is Fault.COMMIT_BEFORE_THE_MOVE else At.PLAN)


def continue_at(world: World, number: int, at: At, *, batch: int | None = None, listed: tuple[File, ...] = ()) -> World:
    """The world in which a start continues at another step."""
    me = replace(world.starts[number], at=at, listed=listed)
    if batch is not None:
        me = replace(me, batch=batch)
    return replace(world, starts=(*world.starts[:number], me, *world.starts[number + 1 :]))


def staged_by(world: World, number: int) -> StagedCopy | None:
    return next((copy for copy in world.staged if copy.start == number), None)
