"""Every group of one kind in this broker: found by its id, loaded at the start, forgotten when it is empty."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic

from coterie.broker.groups.host import GroupHost, GroupMachine, GroupT, KeyT, NewsT, RecordT, RequestT, ResponseT
from coterie.broker.groups.log import GroupLog
from coterie.nouns.ids import GroupId, ReplyTo
from coterie.wire.errors import ErrorCode


class Groups(Generic[GroupT, RequestT, NewsT, RecordT, ResponseT, KeyT]):
    """Every group of one kind: those of ``machine``, whose records are in ``log``."""

    def __init__(
        self,
        machine: GroupMachine[GroupT, RequestT, NewsT, RecordT, ResponseT, KeyT],
        log: GroupLog[RecordT],
        groups_max: int,
        tasks: asyncio.TaskGroup,
        now_ms: Callable[[], int],
    ) -> None:
        self._machine = machine
        self._log = log
        self._groups_max = groups_max
        self._tasks = tasks
        self._hosts: dict[GroupId, GroupHost[GroupT, RequestT, NewsT, RecordT, ResponseT, KeyT]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._now_ms = now_ms

    async def load(self) -> None:
        """Replay every group; its members get a full session from now.

        :raises WorldError: when the log cannot be read.
        """
        for group_id, records in sorted((await self._log.load_all()).items()):
            self._keep(self._new_host(group_id, records))

    async def ask(self, group_id: GroupId, make: Callable[[ReplyTo], RequestT]) -> ResponseT:
        """The group's answer to the request that ``make`` makes; a group too many is refused with POLICY_VIOLATION."""
        host = self._hosts.get(group_id)
        if host is not None:
            return await host.ask(make)
        if len(self._hosts) >= self._groups_max and self._machine.founds(request := make(ReplyTo(0))):
            return self._machine.refused(request, ErrorCode.policy_violation)
        host = self._new_host(group_id)
        asked = host.take(make)
        # A request that says nothing of a group but that there is none leaves nothing behind: no task, no memory.
        if not host.is_forgettable:
            self._keep(host)
        return await host.answer(asked)

    def ask_now(self, group_id: GroupId, make: Callable[[ReplyTo], RequestT]) -> ResponseT | Awaitable[ResponseT]:
        """The group's answer where it may leave at once, as nearly every heartbeat's; otherwise what to await."""
        host = self._hosts.get(group_id)
        return self.ask(group_id, make) if host is None else host.ask_now(make)

    def known(self) -> Sequence[GroupId]:
        """Groups that somebody is in, was in, or has offsets in; sorted."""
        return sorted(group_id for group_id, host in self._hosts.items() if host.is_known)

    def tell_all(self, news: NewsT) -> None:
        """Every group takes ``news`` now: what the groups write of it precedes all that is written after this call."""
        for host in tuple(self._hosts.values()):
            host.tell(news)

    def close(self) -> None:
        """End every group's task. Who waits for an answer has lost its connection by now."""
        for task in self._running:
            task.cancel()

    def _new_host(
        self, group_id: GroupId, records: Sequence[RecordT] = ()
    ) -> GroupHost[GroupT, RequestT, NewsT, RecordT, ResponseT, KeyT]:
        return GroupHost(group_id, self._machine, records, self._log, self._now_ms)

    def _keep(self, host: GroupHost[GroupT, RequestT, NewsT, RecordT, ResponseT, KeyT]) -> None:
        self._hosts[host.group_id] = host
        task = self._tasks.create_task(self._run(host), name=f"group {host.group_id}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, host: GroupHost[GroupT, RequestT, NewsT, RecordT, ResponseT, KeyT]) -> None:
        await host.run()
        # Nobody has asked it since its loop ended: nothing else ran in between.
        del self._hosts[host.group_id]
