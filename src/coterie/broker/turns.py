"""Long requests and answers: taken so that others have their turn meanwhile, on the event loop and beside it."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Generic, ParamSpec, TypeVar

from coterie.wire.shapes import Values

ELEMENTS_AT_ONCE = 1_000
"""Array elements of a message that is decoded or encoded on the event loop: some milliseconds."""
_ITEMS_AT_ONCE = 20

P = ParamSpec("P")
T = TypeVar("T")


class in_turns(Generic[T]):
    """``items`` one by one; every few of them whoever else waits for the event loop has a turn.

    Where requests of one connection must not pass each other ``at_once`` is `ELEMENTS_AT_ONCE`: nothing is read behind
    a request that has more. No generator: one that is left in the middle would have to be closed.
    """

    def __init__(self, items: Iterable[T], *, at_once: int = _ITEMS_AT_ONCE) -> None:
        self._items = iter(items)
        self._at_once = self._left = at_once

    def __aiter__(self) -> "in_turns[T]":
        return self

    async def __anext__(self) -> T:
        if not self._left:
            await asyncio.sleep(0)
            self._left = self._at_once
        self._left -= 1
        try:
            return next(self._items)
        except StopIteration:
            raise StopAsyncIteration from None


class Aside:
    """A thread for what would hold up the event loop: one thing at a time, so that the loop has half of Python's time
    whatever there is to do."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._lock:
            return await asyncio.to_thread(function, *args, **kwargs)


def is_long(values: Values) -> bool:
    """Whether a message of ``values`` has more elements than `ELEMENTS_AT_ONCE`."""
    left = ELEMENTS_AT_ONCE
    entities = [values]
    while entities:
        for value in entities.pop().values():
            if isinstance(value, list | tuple):
                left -= len(value)
                if left < 0:
                    return True
                entities += [one for one in value if isinstance(one, dict)]
    return False
