"""All groups of one kind in this broker: finds a group's host by the group id, loads all groups when the broker starts,
and drops the hosts of groups that have no state left."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic

from coterie.broker.groups.host import (
    GroupHost,
    GroupMachine,
    GroupT,
    KeyT,
    NotificationT,
    RecordT,
    RequestT,
    ResponseT,
    T,
)
from coterie.broker.groups.log import GroupLog
from coterie.nouns.ids import GroupId, ReplyTo
from coterie.wire.errors import ErrorCode


class Groups(Generic[GroupT, RequestT, NotificationT, RecordT, ResponseT, KeyT]):
    """All groups of one kind (classic or connect). Each has a host that runs ``machine`` for it, in an asyncio task of
    ``tasks``. ``log`` stores the records of all groups. While there are ``groups_max`` groups or more, a request that
    would create another is refused."""

    def __init__(
        self,
        machine: GroupMachine[GroupT, RequestT, NotificationT, RecordT, ResponseT, KeyT],
        log: GroupLog[RecordT],
        groups_max: int,
        tasks: asyncio.TaskGroup,
        now_ms: Callable[[], int],
    ) -> None:
        self._machine = machine
        self._log = log
        self._groups_max = groups_max
        self._tasks = tasks
        self._hosts: dict[GroupId, GroupHost[GroupT, RequestT, NotificationT, RecordT, ResponseT, KeyT]] = {}
        self._asyncio_tasks: set[asyncio.Task[None]] = set()
        self._now_ms = now_ms
        self._has_ended = False
        """Whether all requests are refused, because the broker stops."""

    async def load(self) -> None:
        """Load every group from the log. Each member's session timeout starts when its group is loaded.

        :raises WorldError: when the log cannot be read, or a record cannot be decoded.
        """
        for group_id, records in sorted((await self._log.load_all()).items()):
            self._start_host(self._new_host(group_id, records))

    async def ask(self, group_id: GroupId, make_request: Callable[[ReplyTo], RequestT]) -> ResponseT:
        """The group's response to the request that ``make_request`` builds from a reply id, as soon as the response may
        be sent. If there are ``groups_max`` groups of this kind or more, a request that would create another is refused
        with POLICY_VIOLATION; while the broker stops, every request is refused with NOT_COORDINATOR."""
        if self._has_ended:
            return self._machine.refusal_response(make_request(ReplyTo(0)), ErrorCode.not_coordinator)
        host = self._hosts.get(group_id)
        if host is not None:
            return await host.ask(make_request)
        if len(self._hosts) >= self._groups_max and self._machine.may_create_group(request := make_request(ReplyTo(0))):
            return self._machine.refusal_response(request, ErrorCode.policy_violation)
        host = self._new_host(group_id)
        pending = host.handle_request_now(make_request)
        # A request that finds no such group starts no asyncio task and uses no memory afterwards.
        if not host.is_removable:
            self._start_host(host)
        return await host.wait_response(pending)

    def ask_nowait(
        self, group_id: GroupId, make_request: Callable[[ReplyTo], RequestT]
    ) -> ResponseT | Awaitable[ResponseT]:
        """Like :meth:`ask`, but returns the response itself if it may be sent at once, as for nearly every heartbeat,
        else an awaitable for it."""
        host = self._hosts.get(group_id)
        if host is None or self._has_ended:
            return self.ask(group_id, make_request)
        return host.ask_nowait(make_request)

    def ids(self) -> Sequence[GroupId]:
        """The ids of the groups of this kind that exist, sorted. A group exists while it has any state that must be
        kept: members, offsets, configs, or the record of a group without members that was not deleted; in classic
        groups also pending offsets of open transactions, and issued member ids."""
        return sorted(group_id for group_id, host in self._hosts.items() if host.has_state)

    def reserves_group_id(self, group_id: GroupId) -> bool:
        """Whether a group of this kind reserves the id, so that no group of another kind may use the id. A classic
        group with only committed or pending offsets does not, and neither does a connect group with only configs."""
        host = self._hosts.get(group_id)
        return host is not None and host.reserves_group_id

    def inspect_group(self, group_id: GroupId, look: Callable[[GroupT], T]) -> T | None:
        """The result of ``look`` for the group's state, which ``look`` must not change; None if there is no such group.
        The latest changes of the state are possibly not durable yet. After a failure, ``look`` gets the state from
        before the failure, also with changes that were not written, until the group's records are read from the
        log."""
        host = self._hosts.get(group_id)
        return None if host is None else host.inspect_group(look)

    async def wait_until_loaded(self, group_id: GroupId) -> None:
        """Return at once, or while the group is being reloaded after a failure, at the end of the reload."""
        host = self._hosts.get(group_id)
        if host is not None:
            await host.wait_until_loaded()

    def inspect_all_groups(self, look: Callable[[GroupT], T]) -> Sequence[T]:
        """The result of ``look`` for the state of each group, sorted by group id; see :meth:`inspect_group`."""
        return [self._hosts[group_id].inspect_group(look) for group_id in self.ids()]

    def notify(self, group_id: GroupId, notification: NotificationT) -> None:
        """Let the machine of the group, if the group exists, handle ``notification`` now. A group that is being
        reloaded does not get ``notification``: the reload reads the log after this call, and the records, or
        ``notifications_after_load``, must have the same effect."""
        host = self._hosts.get(group_id)
        if host is not None:
            host.notify(notification)

    def notify_all(self, notification: NotificationT) -> None:
        """Let the machine of every group handle ``notification`` before this call returns: in the log, the records that
        the groups write for ``notification`` come before all records that are appended after this call. A group that is
        being reloaded does not get ``notification``: the reload reads the log after this call, and
        ``notifications_after_load`` must then return the same notification."""
        for host in tuple(self._hosts.values()):
            host.notify(notification)

    def end_transaction(self, producer_id: int, notification: NotificationT) -> None:
        """Must be called when the marker of the producer's transaction is durable. Lets the machine of each group with
        pending records of the transaction handle ``notification``; a group that still has a queued append of such
        records is reloaded instead."""
        for group_id, has_queued_append in self._log.end_transaction(producer_id).items():
            host = self._hosts.get(group_id)
            if host is not None and has_queued_append:
                host.refuse_pending_and_start_reload()
            elif host is not None:
                host.notify(notification)

    def refuse_all_from_now_on(self) -> None:
        """Refuse all pending requests, and all that come from now on, with NOT_COORDINATOR: the broker stops."""
        self._has_ended = True
        for host in tuple(self._hosts.values()):
            host.refuse_pending_requests(ErrorCode.not_coordinator)

    def close(self) -> None:
        """Cancel the asyncio task of each group. The connections must have been closed before, so that no request waits
        for a response."""
        for task in self._asyncio_tasks:
            task.cancel()

    def _new_host(
        self, group_id: GroupId, records: Sequence[RecordT] = ()
    ) -> GroupHost[GroupT, RequestT, NotificationT, RecordT, ResponseT, KeyT]:
        return GroupHost(group_id, self._machine, records, self._log, self._now_ms)

    def _start_host(self, host: GroupHost[GroupT, RequestT, NotificationT, RecordT, ResponseT, KeyT]) -> None:
        """Register the host under its group id and start its asyncio task."""
        self._hosts[host.group_id] = host
        task = self._tasks.create_task(self._run_host(host), name=f"group {host.group_id}")
        self._asyncio_tasks.add(task)
        task.add_done_callback(self._asyncio_tasks.discard)

    async def _run_host(self, host: GroupHost[GroupT, RequestT, NotificationT, RecordT, ResponseT, KeyT]) -> None:
        """Run the host until it is removable, then drop it."""
        await host.run()
        # No request came since its loop ended: no other asyncio task ran in between.
        del self._hosts[host.group_id]
