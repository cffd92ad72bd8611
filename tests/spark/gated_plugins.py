"""Sources and sinks for tests, of which one method can be blocked at a chosen moment."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

from coterie.spark.generations.stores import PositionStore
from coterie.spark.positions import Positions
from coterie.spark.seams import Batch, StagedBatch
from tests.blocking_source import go_on


class Gate:
    """Lets the calls of one method through, or blocks them until the end of the test."""

    def __init__(self) -> None:
        self._calls_until_block: int | None = None
        self._lock = threading.Lock()
        self.has_blocked = threading.Event()
        """Set when a call blocks."""

    def close(self, *, passes: int = 0) -> None:
        """Block all calls after the next ``passes`` ones."""
        with self._lock:
            self._calls_until_block = passes
        self.has_blocked.clear()

    def open(self) -> None:
        """Block no further call."""
        with self._lock:
            self._calls_until_block = None

    def enter(self) -> None:
        """Called by the method."""
        with self._lock:
            if self._calls_until_block is None:
                return
            if self._calls_until_block > 0:
                self._calls_until_block -= 1
                return
        self.has_blocked.set()
        go_on.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedPositionStore:
    """A position store of which the method ``method`` enters ``gate``."""

    store: PositionStore
    method: str
    gate: Gate

    def read(self, checkpoint: Path, source_partitions: Sequence[str]) -> Positions:
        if self.method == "read":
            self.gate.enter()
        return self.store.read(checkpoint, source_partitions)

    def write_to_new_checkpoint(self, checkpoint: Path, positions: Positions) -> None:
        if self.method == "write_to_new_checkpoint":
            self.gate.enter()
        self.store.write_to_new_checkpoint(checkpoint, positions)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedBatch:
    """A staged batch of which the method ``method`` enters ``gate``."""

    batch: StagedBatch
    method: str
    gate: Gate

    def commit(self) -> None:
        if self.method == "commit":
            self.gate.enter()
        self.batch.commit()

    def clean_up(self) -> None:
        if self.method == "clean_up":
            self.gate.enter()
        self.batch.clean_up()


def gated(plugin: Any, method: str, gate: Gate, name: str) -> Any:
    """A class with the name ``name`` that is as ``plugin``, except that its method ``method`` enters ``gate``. A method
    of the position store or of a staged batch has the prefix ``position_store.`` or ``batch.``. A source that has no
    such method gets one that only enters ``gate``."""
    part, dot, part_method = method.partition(".")
    members: dict[str, Any]
    if not dot:
        members = {method: gated_member(plugin, method, gate)}
    elif part == "position_store":
        members = {part: GatedPositionStore(store=plugin.position_store, method=part_method, gate=gate)}
    else:

        def gated_stage(sink: Any, batch: Batch) -> GatedBatch:
            return GatedBatch(batch=plugin.stage(sink, batch), method=part_method, gate=gate)

        members = {"stage": gated_stage}
    return type(name, (plugin,), {"__module__": __name__, **members})


def gated_member(plugin: type, method: str, gate: Gate) -> object:
    """The member ``method`` of a class as ``plugin``, which enters ``gate`` first."""
    member = next((vars(base)[method] for base in plugin.__mro__ if method in vars(base)), None)

    def enter_and_call(function: FunctionType) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            gate.enter()
            return function(*args, **kwargs)

        return call

    match member:
        case classmethod():
            return classmethod(enter_and_call(member.__func__))  # type: ignore[arg-type]
        case FunctionType():
            return enter_and_call(member)
        case _ if method == "used_topics":
            return property(lambda _: _enter_and_return(gate, frozenset()))
        case _:
            return classmethod(lambda cls, *_: gate.enter())


def _enter_and_return(gate: Gate, value: object) -> object:
    gate.enter()
    return value
