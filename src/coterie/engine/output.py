"""The output of one step of a machine, and the outbox that releases effects once their records are durable."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

RecordT = TypeVar("RecordT")
RecordT_co = TypeVar("RecordT_co", covariant=True)
EffectT = TypeVar("EffectT")
EffectT_co = TypeVar("EffectT_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output(Generic[RecordT, EffectT]):
    """The result of one step of a machine: ``records`` to append to its log, and ``effects`` to perform in order once
    these records are durable."""

    records: tuple[RecordT, ...] = ()
    effects: tuple[EffectT, ...] = ()


class StepOutput(Protocol[RecordT_co, EffectT_co]):
    """The read-only type of an `Output`, covariant in its records and effects: an output whose effects are of some
    kinds can be passed where effects of these and further kinds are accepted."""

    @property
    def records(self) -> tuple[RecordT_co, ...]: ...
    @property
    def effects(self) -> tuple[EffectT_co, ...]: ...


class Outbox(Generic[EffectT]):
    """Keeps the effects of each step until the step's records, and the records of all steps before it, are durable.

    A machine may take further steps while its log is being written. A response could show state that is not yet durable
    and that a crash loses. So *every* effect waits, also an effect of a step that wrote no record.
    """

    def __init__(self) -> None:
        self._held_effects: deque[tuple[int, tuple[EffectT, ...]]] = deque()
        self._records_written = 0
        self._records_durable = 0

    def put(self, output: StepOutput[object, EffectT]) -> None:
        """Hold the effects of a step until its records are durable. The caller appends ``output.records`` to the log,
        after the records of all earlier steps; this object only counts them."""
        self._records_written += len(output.records)
        if output.effects:
            self._held_effects.append((self._records_written, output.effects))

    def mark_durable(self, count: int) -> None:
        """Record that the next ``count`` records, in the order of the steps, are durable."""
        self._records_durable += count
        assert self._records_durable <= self._records_written, "more records durable than were written"

    def pop_durable_effects(self) -> Sequence[EffectT]:
        """Remove and return, in order, the effects whose records, and all earlier records, are durable. May be
        empty."""
        released: list[EffectT] = []
        while self._held_effects and self._held_effects[0][0] <= self._records_durable:
            released.extend(self._held_effects.popleft()[1])
        return released
