"""Every group of this broker: found by its id, loaded at the start, forgotten when there is nothing left of it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from uuid import uuid4

from coterie.broker.clock import steady_clock
from coterie.broker.groups.heartbeats import HeartbeatGaps
from coterie.broker.groups.host import GroupHost
from coterie.broker.groups.log import GroupLog
from coterie.groups.classic.machine import refused
from coterie.groups.classic.messages import Record, Request, Response
from coterie.groups.classic.newcomers import founds
from coterie.groups.classic.state import Limits
from coterie.groups.offset_messages import TopicDeleted
from coterie.nouns.ids import GroupId, MemberId, ReplyTo
from coterie.wire.errors import ErrorCode


class Groups:
    """Every group of this broker."""

    def __init__(self, log: GroupLog, limits: Limits, tasks: asyncio.TaskGroup) -> None:
        self._log = log
        self._limits = limits
        self._tasks = tasks
        self._hosts: dict[GroupId, GroupHost] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._gaps = HeartbeatGaps()
        self._now_ms = steady_clock()

    async def load(self) -> None:
        """Replay every group; its members get a full session from now.

        :raises WorldError: when the log cannot be read.
        """
        for group_id, records in sorted((await self._log.load_all()).items()):
            self._keep(self._new_host(group_id, records))

    async def ask(self, group_id: GroupId, make: Callable[[ReplyTo], Request]) -> Response:
        """The group's answer to the request that ``make`` makes; a group too many is refused with POLICY_VIOLATION."""
        host = self._hosts.get(group_id)
        if host is not None:
            return await host.ask(make)
        if len(self._hosts) >= self._limits.groups_max and founds(request := make(ReplyTo(0))):
            return refused(request, ErrorCode.policy_violation)
        host = self._new_host(group_id)
        asked = host.take(make)
        # A request that says nothing of a group but that there is none leaves nothing behind: no task, no memory.
        if not host.is_forgettable:
            self._keep(host)
        return await host.answer(asked)

    def ask_now(self, group_id: GroupId, make: Callable[[ReplyTo], Request]) -> Response | Awaitable[Response]:
        """The group's answer where it may leave at once, as nearly every heartbeat's; otherwise what to await."""
        host = self._hosts.get(group_id)
        return self.ask(group_id, make) if host is None else host.ask_now(make)

    def known(self) -> Sequence[GroupId]:
        """Groups that somebody is in, was in, or has offsets in; sorted."""
        return sorted(group_id for group_id, host in self._hosts.items() if host.is_known)

    def topic_deleted(self, topic: str) -> None:
        """No group keeps offsets of it any longer. They are gone before anything that is written after this call."""
        for host in tuple(self._hosts.values()):
            host.tell(TopicDeleted(topic=topic))

    def close(self) -> None:
        """End every group's task. Who waits for an answer has lost its connection by now."""
        for task in self._running:
            task.cancel()

    def stats(self) -> Mapping[str, object]:
        """See :meth:`HeartbeatGaps.stats`."""
        return self._gaps.stats()

    def _new_host(self, group_id: GroupId, records: Sequence[Record] = ()) -> GroupHost:
        return GroupHost(group_id, self._limits, records, self._log, self._now_ms, self._gaps)

    def _keep(self, host: GroupHost) -> None:
        self._hosts[host.group_id] = host
        task = self._tasks.create_task(self._run(host), name=f"group {host.group_id}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, host: GroupHost) -> None:
        await host.run()
        # Nobody has asked it since its loop ended: nothing else ran in between.
        del self._hosts[host.group_id]


def fresh_member_id(client_id: str) -> MemberId:
    """``<client id>-<uuid>``, as Kafka makes them."""
    return MemberId(f"{client_id}-{uuid4()}")
