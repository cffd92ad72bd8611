"""Budgets of bytes in flight, by connection and by principal: a request beyond a budget waits."""

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Budget:
    """The bytes that one connection or one principal may have in flight."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._waiting: list[asyncio.Future[None]] = []
        self.taken = 0

    def has_room(self, size: int) -> bool:
        """Whether ``size`` more bytes may be in flight. If nothing is in flight, also more bytes than the budget:
        otherwise a large request could never run."""
        return not self.taken or self.taken + size <= self._size_max

    async def take(self, size: int, *, may_pass: Callable[[], bool] = lambda: False) -> None:
        """Wait until ``size`` bytes may be in flight, or until ``may_pass`` allows skipping the queue."""
        await self._wait_until(lambda: self.has_room(size) or may_pass())
        self.taken += size

    def take_anyway(self, size: int) -> None:
        """Take bytes that are already in memory, without waiting."""
        self.taken += size

    def give_back(self, size: int) -> None:
        self.taken -= size
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(None)

    async def _wait_until(self, may_go_on: Callable[[], bool]) -> None:
        """Wait for a condition; it is checked again whenever bytes are released."""
        while not may_go_on():
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            finally:
                self._waiting.remove(turn)


class SharedBudget(Budget):
    """The budget of one principal over all of its connections. Requests may use all of it; responses that reserve
    bytes, those with records, leave a quarter of it to requests. So a client that reads no responses delays its
    principal's fetches, but no heartbeat."""

    def __init__(self, name: str, size_max: int) -> None:
        super().__init__(size_max)
        self._name = name
        self._answers_size_max = size_max - size_max // 4
        self._answers_taken = 0
        self._answers_waiting = 0

    async def take_for_answer(self, size: int, *, is_next: Callable[[], bool]) -> None:
        """Wait until a response of ``size`` bytes may be created. Only the next response on its connection gets bytes:
        a later response would hold them while it waits for the earlier ones, a deadlock."""
        await self._wait_until(is_next)
        if not self._has_room_for_answer(size):
            if not self._answers_waiting:
                logger.warning(
                    "Fetch responses for %s are delayed: %d bytes of this principal are in flight",
                    self._name,
                    self.taken,
                )
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
        # If no other response is in flight, any size is allowed: otherwise a large response could never be sent.
        return not self._answers_taken or self.taken + size <= self._answers_size_max


class RequestBudget:
    """The bytes that one request occupies in the budgets of its connection and its principal: those of the request,
    and those reserved for its response."""

    __slots__ = ("_answer_size", "_budget", "_is_next", "_shared", "_size")

    def __init__(self, budget: Budget, shared: SharedBudget, size: int, *, is_next: Callable[[], bool]) -> None:
        """``size`` bytes are already taken from both budgets; ``is_next`` returns whether this request's response is
        the next on its connection, and bytes of both budgets are released whenever that changes."""
        self._budget = budget
        self._shared = shared
        self._size = size
        self._answer_size = 0
        self._is_next = is_next

    async def reserve(self, size: int) -> None:
        """Wait until a response of ``size`` bytes may be created. The next response of the connection skips the queue
        of its other responses: they are sent after it and would never release their bytes."""
        await self._budget.take(size, may_pass=self._is_next)
        self._size += size
        await self._shared.take_for_answer(size, is_next=self._is_next)
        self._answer_size += size

    def settle(self, answer_size: int) -> None:
        """Replace the request's bytes with those of its response, which stay taken until it is written."""
        self._budget.take_anyway(answer_size)
        self._budget.give_back(self._size)

    def end(self) -> None:
        """Release the response's bytes: the response is written or was abandoned."""
        self._shared.give_back_answer(self._answer_size)
        self._answer_size = 0


class Budgets:
    """One budget for each principal or host that has connections."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._budgets: dict[str, tuple[SharedBudget, int]] = {}

    def join(self, name: str) -> SharedBudget:
        """The budget of ``name``, shared by all callers; each call needs a matching :meth:`leave`."""
        budget, members = self._budgets.get(name, (SharedBudget(name, self._size_max), 0))
        self._budgets[name] = (budget, members + 1)
        return budget

    def leave(self, name: str) -> None:
        budget, members = self._budgets.pop(name)
        if members > 1:
            self._budgets[name] = (budget, members - 1)
