"""A broker that kills itself at a named point: the main function of a process that `dying` forks.

A point is a state of the group `fleet`, or a record of any group:

- ``initial``, ``joining``, ``syncing``, ``stable``: a request waits in that phase, or a heartbeat arrives in it;
- ``joined``, ``assigned``, ``committed``, each with ``before`` or ``durable``: at the record that ends a join phase,
  that contains assignments, that contains an offset; before it is appended to the log, or when it is durable and no
  response has been sent yet;
- likewise ``member``, ``target``, ``current``, ``revoked``, ``departed``, ``left`` at a record of a connect group: of a
  member, of a target with jobs, of a member's jobs, of its revoked jobs, of a departed member, and the tombstone of a
  member;
- likewise ``pending`` at a record that contains a pending offset, and ``ended`` at the end of a transaction;
- ``record N``: when the first N records that this process appends for any group are durable, and none after them.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from coterie.broker import server
from coterie.broker.groups.classic import ClassicMachine
from coterie.broker.groups.log import GroupLog
from coterie.broker.settings import BrokerSettings
from coterie.broker.transactions.coordinator import TransactionCoordinator
from coterie.broker.transactions.writes import WriteResult
from coterie.groups.classic.machine import step
from coterie.groups.classic.messages import Event, GenerationWritten, Heartbeat, SyncGroup
from coterie.groups.classic.offset_messages import OffsetWritten, PendingOffsetWritten
from coterie.groups.classic.state import ClassicGroupSettings, Group, GroupPhase
from coterie.groups.connect.messages import (
    CurrentAssignment,
    MemberDeparted,
    MemberRecord,
    MemberRemoved,
    TargetWritten,
)
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.groups.transaction_messages import EndTransaction
from coterie.groups.transaction_messages import Event as TransactionEvent
from coterie.groups.transaction_messages import Reply as TransactionReply
from coterie.nouns.ids import GroupId

_PHASES: dict[str, Callable[[Group, Event], bool]] = {
    "initial": lambda group, _: (
        group.join_phase is not None and group.join_phase.is_initial and len(group.parked_joins) > 1
    ),
    "joining": lambda group, _: (
        group.join_phase is not None and not group.join_phase.is_initial and bool(group.parked_joins)
    ),
    "syncing": lambda group, event: group.phase is GroupPhase.COMPLETING_REBALANCE and isinstance(event, SyncGroup),
    "stable": lambda group, event: group.phase is GroupPhase.STABLE and isinstance(event, Heartbeat),
}
_RECORDS: dict[str, Callable[[object], bool]] = {
    "joined": lambda record: isinstance(record, GenerationWritten) and record.protocol is None and bool(record.members),
    "assigned": lambda record: isinstance(record, GenerationWritten) and record.protocol is not None,
    "committed": lambda record: isinstance(record, OffsetWritten),
    "pending": lambda record: isinstance(record, PendingOffsetWritten),
    "member": lambda record: isinstance(record, MemberRecord),
    "target": lambda record: isinstance(record, TargetWritten) and bool(record.target.jobs),
    "current": lambda record: isinstance(record, CurrentAssignment) and bool(record.assigned),
    "revoked": lambda record: isinstance(record, CurrentAssignment) and bool(record.pending),
    "departed": lambda record: isinstance(record, MemberDeparted),
    "left": lambda record: isinstance(record, MemberRemoved),
}


def crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crash_in_phase(phase: str) -> None:
    is_there = _PHASES[phase]

    def crashing_step(group: Group, event: Event, *, now_ms: int) -> Any:
        output = step(group, event, now_ms=now_ms)
        if group.group_id == "fleet" and is_there(group, event):
            crash()
        return output

    vars(server)["ClassicMachine"] = type("CrashingMachine", (ClassicMachine,), {"step": staticmethod(crashing_step)})


def crash_at_record(kind: str, moment: str) -> None:
    is_it = _RECORDS[kind]

    class CrashingGroupLog(GroupLog[Any]):
        def append(self, group_id: GroupId, records: Sequence[Any], *, now_ms: int) -> "asyncio.Future[int]":
            here = any(is_it(record) for record in records)
            if here and moment == "before":
                crash()
            appended = super().append(group_id, records, now_ms=now_ms)
            if here:
                # This callback runs first: the callback that releases responses was added after it.
                appended.add_done_callback(lambda _: crash())
            return appended

    vars(server)["GroupLog"] = CrashingGroupLog


def crash_at_end_of_transaction(moment: str) -> None:
    class CrashingTransactions(TransactionCoordinator):
        async def ask(self, transactional_id: str, make_event: Callable[[int], TransactionEvent]) -> TransactionReply:
            if moment == "before" and isinstance(make_event(0), EndTransaction):
                crash()
            return await super().ask(transactional_id, make_event)

        def _on_write_durable(self, transactional_id: str, written: WriteResult) -> None:
            if written.markers:
                crash()
            super()._on_write_durable(transactional_id, written)

    vars(server)["TransactionCoordinator"] = CrashingTransactions


def crash_after_records(count: int) -> None:
    class CrashingGroupLog(GroupLog[Any]):
        left = count

        def append(self, group_id: GroupId, records: Sequence[Any], *, now_ms: int) -> "asyncio.Future[int]":
            some = records[: CrashingGroupLog.left]
            CrashingGroupLog.left -= len(some)
            if not some:
                return asyncio.get_running_loop().create_future()  # the end is near
            appended = super().append(group_id, some, now_ms=now_ms)
            if not CrashingGroupLog.left:
                appended.add_done_callback(lambda _: crash())
            return appended

    vars(server)["GroupLog"] = CrashingGroupLog


def end_with_parent(parent: Connection) -> None:
    parent.poll(None)
    os._exit(0)


def main(data: Path, port: int, point: str, parent: Connection) -> None:
    """Run the broker, which crashes at ``point``. ``parent`` gets its port as soon as it listens; when the other end of
    ``parent`` is closed, the broker ends."""
    with (data.parent / "broker.log").open("ab") as log:
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
    kind, _, moment = point.partition(" ")
    if kind == "record":
        crash_after_records(int(moment))
    elif kind == "ended":
        crash_at_end_of_transaction(moment)
    elif moment:
        crash_at_record(kind, moment)
    elif kind in _PHASES:
        crash_in_phase(kind)
    threading.Thread(target=end_with_parent, args=(parent,), daemon=True).start()
    settings = BrokerSettings(
        data_path=data,
        port=port,
        group_limits=ClassicGroupSettings(initial_rebalance_delay_ms=200, session_timeout_min_ms=1_000),
        connect_groups=ConnectGroupSettings(initial_rebalance_delay_ms=0, assignment_interval_ms=0),
    )
    asyncio.run(server.serve(settings, ready=lambda _, port: parent.send(port)))
