"""What one step of a machine yields, and the order in which it may leave."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

RecordT = TypeVar("RecordT")
EffectT = TypeVar("EffectT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Output(Generic[RecordT, EffectT]):
    """Append ``records``; once they are durable, perform ``effects`` in order."""

    records: tuple[RecordT, ...] = ()
    effects: tuple[EffectT, ...] = ()


class Outbox(Generic[EffectT]):
    """Holds the effects of steps back until the records of those steps, and of all before them, are durable.

    A machine may take further steps while its log is busy: an answer that shows state which the log does not hold
    yet would be a lie after a crash, so *every* effect waits in line, also that of a step that wrote nothing.
    """

    def __init__(self) -> None:
        self._held: deque[tuple[int, tuple[EffectT, ...]]] = deque()
        self._written = 0
        self._durable = 0

    def put(self, output: Output[RecordT, EffectT]) -> None:
        self._written += len(output.records)
        if output.effects:
            self._held.append((self._written, output.effects))

    def durable(self, records: int) -> None:
        """``records`` more records are durable."""
        self._durable += records
        assert self._durable <= self._written, "more records durable than were written"

    def release(self) -> Sequence[EffectT]:
        """Take the effects that may leave now, in order."""
        released: list[EffectT] = []
        while self._held and self._held[0][0] <= self._durable:
            released.extend(self._held.popleft()[1])
        return released
