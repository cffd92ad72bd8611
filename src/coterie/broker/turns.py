"""Large requests and responses: handled without blocking the event loop, in small steps or on a thread."""

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
    """Iterate over ``items``, yielding to the event loop after every ``at_once`` items.

    If requests of one connection must not overtake each other, ``at_once`` is `ELEMENTS_AT_ONCE`: while a request with
    more elements runs, the connection reads no further request. Not a generator: a generator that is abandoned halfway
    would have to be closed.
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
    """Runs one blocking call at a time on a thread, so that the event loop keeps half of Python's time however much
    work is queued."""

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
