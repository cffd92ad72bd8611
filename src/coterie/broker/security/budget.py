"""Bytes in flight: how much may be under way for somebody at once; who wants more waits."""

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)


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
        await self._wait_until(lambda: self.has_room(size) or may_pass())
        self.taken += size

    def take_anyway(self, size: int) -> None:
        """For what is there already."""
        self.taken += size

    def give_back(self, size: int) -> None:
        self.taken -= size
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(None)

    async def _wait_until(self, may_go_on: Callable[[], bool]) -> None:
        """Asked again whenever something was given back."""
        while not may_go_on():
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            finally:
                self._waiting.remove(turn)


class SharedBudget(Budget):
    """That of one principal, over all of its connections. Its requests may take all of it; the answers that are made
    room for, those with records, leave a quarter of it to them. So whoever reads no answers keeps its principal's
    fetches waiting, and no heartbeat."""

    def __init__(self, name: str, size_max: int) -> None:
        super().__init__(size_max)
        self._name = name
        self._answers_size_max = size_max - size_max // 4
        self._answers_taken = 0
        self._answers_waiting = 0

    async def take_for_answer(self, size: int, *, is_next: Callable[[], bool]) -> None:
        """Wait until an answer of ``size`` bytes may be made. Only the one that is due next on its connection may have
        any: one behind it would keep what it waits for, for ever."""
        await self._wait_until(is_next)
        if not self._has_room_for_answer(size):
            if not self._answers_waiting:
                logger.warning("fetches of %s wait: %d bytes of it are in flight", self._name, self.taken)
            self._answers_waiting += 1
            try:
                await self._wait_until(lambda: self._has_room_for_answer(size))
            finally:
                self._answers_waiting -= 1
        self._answers_taken += size
        self.taken += size

    def give_back_answer(self, size: int) -> None:
        self._answers_taken -= size
        self.give_back(size)

    def _has_room_for_answer(self, size: int) -> bool:
        # One alone may always: otherwise none that is larger than what is left ever could.
        return not self._answers_taken or self.taken + size <= self._answers_size_max


class RequestBudget:
    """What one request has of its connection's budget and of its principal's: its own bytes, and those that its answer
    is about to have."""

    __slots__ = ("_answer_size", "_budget", "_is_next", "_shared", "_size")

    def __init__(self, budget: Budget, shared: SharedBudget, size: int, *, is_next: Callable[[], bool]) -> None:
        """``size`` bytes are taken already of both; ``is_next`` tells whether no answer is due before this request's,
        and something is given back to both whenever that changes."""
        self._budget = budget
        self._shared = shared
        self._size = size
        self._answer_size = 0
        self._is_next = is_next

    async def reserve(self, size: int) -> None:
        """Wait until an answer of ``size`` bytes may be made. The one that is due next passes all others of its
        connection: those go out behind it, and would wait for it for ever."""
        await self._budget.take(size, may_pass=self._is_next)
        self._size += size
        await self._shared.take_for_answer(size, is_next=self._is_next)
        self._answer_size += size

    def settle(self, answer_size: int) -> None:
        """The request's bytes are gone; the answer's are there until they are written."""
        self._budget.take_anyway(answer_size)
        self._budget.give_back(self._size)

    def end(self) -> None:
        """The answer is written, or never will be."""
        self._shared.give_back_answer(self._answer_size)
        self._answer_size = 0


class Budgets:
    """One budget for each name that has something under way."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._budgets: dict[str, tuple[SharedBudget, int]] = {}

    def join(self, name: str) -> SharedBudget:
        """The budget of ``name``, shared with whoever else joined it; to be left once for each time joined."""
        budget, members = self._budgets.get(name, (SharedBudget(name, self._size_max), 0))
        self._budgets[name] = (budget, members + 1)
        return budget

    def leave(self, name: str) -> None:
        budget, members = self._budgets.pop(name)
        if members > 1:
            self._budgets[name] = (budget, members - 1)
