"""All groups of one kind in this broker: found by id, loaded when the broker starts, removed when they are empty."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic

from coterie.broker.groups.host import GroupHost, GroupMachine, GroupT, KeyT, NewsT, RecordT, RequestT, ResponseT
from coterie.broker.groups.log import GroupLog
from coterie.nouns.ids import GroupId, ReplyTo
from coterie.wire.errors import ErrorCode


class Groups(Generic[GroupT, RequestT, NewsT, RecordT, ResponseT, KeyT]):
    """All groups of one kind: ``machine`` runs them, ``log`` stores their records."""

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
        """Replay every group; each member's session timeout starts now.

        :raises WorldError: the log cannot be read.
        """
        for group_id, records in sorted((await self._log.load_all()).items()):
            self._keep(self._new_host(group_id, records))

    async def ask(self, group_id: GroupId, make: Callable[[ReplyTo], RequestT]) -> ResponseT:
        """The group's response to the request that ``make`` builds; a request that would create more groups than
        ``groups_max`` is refused with POLICY_VIOLATION."""
        host = self._hosts.get(group_id)
        if host is not None:
            return await host.ask(make)
        if len(self._hosts) >= self._groups_max and self._machine.founds(request := make(ReplyTo(0))):
            return self._machine.refused(request, ErrorCode.policy_violation)
        host = self._new_host(group_id)
        asked = host.take(make)
        # A request that only finds out that there is no such group leaves no asyncio task and no memory behind.
        if not host.is_forgettable:
            self._keep(host)
        return await host.answer(asked)

    def ask_now(self, group_id: GroupId, make: Callable[[ReplyTo], RequestT]) -> ResponseT | Awaitable[ResponseT]:
        """The group's response if it may be sent at once, as for nearly every heartbeat, else an awaitable for it."""
        host = self._hosts.get(group_id)
        return self.ask(group_id, make) if host is None else host.ask_now(make)

    def known(self) -> Sequence[GroupId]:
        """Ids of the groups that have members, had members, or have offsets; sorted."""
        return sorted(group_id for group_id, host in self._hosts.items() if host.is_known)

    def tell_all(self, news: NewsT) -> None:
        """Give ``news`` to every group now: the records that the groups write for it precede all records that are
        written after this call."""
        for host in tuple(self._hosts.values()):
            host.tell(news)

    def close(self) -> None:
        """End every group's asyncio task. All connections, and so all waiting requests, have already ended."""
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
        # No request came since its loop ended: no other asyncio task ran in between.
        del self._hosts[host.group_id]
