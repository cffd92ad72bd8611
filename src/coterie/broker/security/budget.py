"""Bytes in flight: how much may be under way for somebody at once; who wants more waits."""

import asyncio
from collections.abc import Callable


class Budget:
    """So many bytes for one connection or one principal."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._waiting: list[asyncio.Future[None]] = []
        self.taken = 0

    def has_room(self, size: int) -> bool:
        """Alone, even more than the whole budget may be under way: otherwise it never could."""
        return not self.taken or self.taken + size <= self._size_max

    async def take(self, size: int, *, may_pass: Callable[[], bool] = lambda: False) -> None:
        """Wait until ``size`` bytes may be under way, or whoever wants them may pass all that wait."""
        while not (self.has_room(size) or may_pass()):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            finally:
                self._waiting.remove(turn)
        self.taken += size

    def take_anyway(self, size: int) -> None:
        """For what is there already."""
        self.taken += size

    def give_back(self, size: int) -> None:
        self.taken -= size
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(None)


class Share:
    """What one request has of its connection's budget: its own bytes, and those that its answer is about to have."""

    __slots__ = ("_budget", "_is_next", "_size")

    def __init__(self, budget: Budget, size: int, *, is_next: Callable[[], bool]) -> None:
        """``size`` bytes are taken already; ``is_next`` tells whether no answer is due before this request's."""
        self._budget = budget
        self._size = size
        self._is_next = is_next

    async def reserve(self, size: int) -> None:
        """Wait until an answer of ``size`` bytes may be made. The one that is due next passes all others: those go out
        behind it, and would wait for it for ever."""
        await self._budget.take(size, may_pass=self._is_next)
        self._size += size

    def settle(self, answer_size: int) -> None:
        """The request's bytes are gone; the answer's are there until they are written."""
        self._budget.take_anyway(answer_size)
        self._budget.give_back(self._size)


class Budgets:
    """One budget for each name that has something under way."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._budgets: dict[str, tuple[Budget, int]] = {}

    def join(self, name: str) -> Budget:
        """The budget of ``name``, shared with whoever else joined it; to be left once for each time joined."""
        budget, members = self._budgets.get(name, (Budget(self._size_max), 0))
        self._budgets[name] = (budget, members + 1)
        return budget

    def leave(self, name: str) -> None:
        budget, members = self._budgets.pop(name)
        if members > 1:
            self._budgets[name] = (budget, members - 1)
