"""Handles requests and responses with many array elements without blocking the event loop for long: in small steps, or
on a thread."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Generic, ParamSpec, TypeVar

from coterie.wire.kio_entities import Values

ELEMENTS_WITHOUT_YIELD_MAX = 1_000
"""The maximum number of array elements, over all levels, of a message that is decoded or encoded on the event loop,
which takes some milliseconds. A message with more elements is decoded or encoded on a thread."""
_YIELD_EVERY = 20
"""The number of items between two yields to the event loop, unless the caller sets another."""

P = ParamSpec("P")
T = TypeVar("T")


class yielding(Generic[T]):
    """An asynchronous iterator over ``items`` that lets other asyncio tasks run after every ``yield_every`` items.

    A handler whose requests must not overtake each other on one connection sets ``yield_every`` to
    `ELEMENTS_WITHOUT_YIELD_MAX`. A request with fewer array elements then never yields. A request with more elements
    yields, but no later request overtakes it, because its connection reads no further request until its response is
    ready. This class is not a generator, because a generator that is not iterated to its end must be closed.
    """

    def __init__(self, items: Iterable[T], *, yield_every: int = _YIELD_EVERY) -> None:
        self._items = iter(items)
        self._yield_every = self._left = yield_every

    def __aiter__(self) -> "yielding[T]":
        return self

    async def __anext__(self) -> T:
        if not self._left:
            await asyncio.sleep(0)
            self._left = self._yield_every
        self._left -= 1
        try:
            return next(self._items)
        except StopIteration:
            raise StopAsyncIteration from None


class SerialThread:
    """Runs blocking calls on a thread, one at a time. However many calls wait, at most one thread competes with the
    event loop for Python's interpreter lock, so the event loop keeps about half of the time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Wait until all earlier calls have ended, then run ``function`` on a thread; return its result."""
        async with self._lock:
            return await asyncio.to_thread(function, *args, **kwargs)


def has_many_elements(values: Values) -> bool:
    """Whether a message with these ``values`` has more than `ELEMENTS_WITHOUT_YIELD_MAX` array elements, over all
    levels."""
    left = ELEMENTS_WITHOUT_YIELD_MAX
    entities = [values]
    while entities:
        for value in entities.pop().values():
            if isinstance(value, list | tuple):
                left -= len(value)
                if left < 0:
                    return True
                entities += [one for one in value if isinstance(one, dict)]
    return False
