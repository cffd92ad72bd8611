"""Bytes in flight: how much may be under way for somebody at once; who wants more waits."""

import asyncio


class Budget:
    """So many bytes for one connection or one principal."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._waiting: list[asyncio.Future[None]] = []
        self.taken = 0

    def has_room(self, size: int) -> bool:
        """Alone, even more than the whole budget may be under way: otherwise it never could."""
        return not self.taken or self.taken + size <= self._size_max

    async def take(self, size: int) -> None:
        """Wait until ``size`` bytes may be under way."""
        while not self.has_room(size):
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
