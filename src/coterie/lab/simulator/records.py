"""The records of a simulation: their kinds, and the fixed names of the classes that appear in them.

The digest of a seed is computed from its records alone. A change of a kind or of a name here changes digests; a change
of a class's name or of a sentence in the trace does not.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import TypeAlias
from zlib import crc32

from coterie.broker.transactions.writes import NewBatch
from coterie.groups import transaction_messages as transactions
from coterie.groups.classic import messages as groups
from coterie.groups.classic import offset_messages as offsets
from coterie.member.classic import messages as member
from coterie.nouns.jobs import Jobs

RecordValue: TypeAlias = str | int | None
"""Ids, numbers, jobs in their order, names of errors: never a class's name, a ``repr`` or a sentence."""


class RecordKind(StrEnum):
    """The kind of a record. The comment of each kind lists the record's values."""

    # -- processes; the first value is the process's name
    STARTS = "starts"  # its settings
    CONTINUES = "continues"  # its settings; the process keeps its predecessor's membership
    PAUSED = "paused"
    RESUMED = "resumed"
    KILLED = "killed"
    LEADER_KILLED = "leader killed"
    ALL_KILLED = "all killed"
    REPLACED = "replaced"
    BURIED = "buried"
    STOPS = "stops"
    FENCED = "fenced"
    REFUSED = "refused"  # the error
    EXITS = "exits"  # the exit code, whether it restarts
    SHUT_DOWN = "shut down"

    # -- the network; the first value is the link's name
    BROKEN = "broken"  # a call's connection: how many ms later the request arrives
    LOST = "lost"  # a message: its direction

    # -- faults
    FAULTS_END = "faults end"
    CUT = "cut"  # the link
    CONNECTED = "connected"  # the link
    CLOGGED = "clogged"  # the link, the direction, for how many ms
    LOSSY = "lossy"  # the link, the percentage of messages that are lost
    NARROW = "narrow"  # the link
    READS_LATE = "reads late"  # the worker, by how many ms
    PROTOCOL_SET = "protocol set"  # the protocol that all workers are to use
    DISK_FAILS = "disk fails"
    QUERY_DIES = "query dies"  # the worker, the task, whether the worker still holds the checkpoint
    TOPIC_DELETED = "topic deleted"  # the topic

    # -- a group's coordinator
    COORDINATOR_UP = "coordinator up"  # lines of its log, generation
    COORDINATOR_CRASHES = "coordinator crashes"  # phase, generation
    ASKED = "asked"  # the client, the request
    ANSWERED = "answered"  # the client, the request, the error, the response's other fields
    TIMER_FIRED = "timer fired"  # the timer, its member
    PHASE = "phase"  # before, after, generation
    APPENDED = "appended"  # lines, bytes, checksum
    DURABLE = "durable"  # lines

    # -- a member of a group (a worker or a client); the first value is the process's name
    SENDS = "sends"  # the request
    HEARS = "hears"  # the request, the error
    ASSIGNED = "assigned"  # generation, error, config offset, assigned, revoked, delay
    ASSIGNMENT_WANTED = "assignment wanted"  # generation, protocol, members
    REBALANCE_STARTED = "rebalance started"  # whether all tasks must stop
    MEMBERSHIP_LOST = "membership lost"
    MEMBERSHIP_REFUSED = "membership refused"
    LEFT = "left"

    # -- a worker's herder; the first value is the process's name
    SUBSCRIBES = "subscribes"  # config offset, owned, whether it drains
    REJOINS = "rejoins"
    ABANDONS = "abandons"
    LEAVES = "leaves"  # whether permanently
    DEALS = "deals"  # generation; for each member its id, error, config offset, assigned, revoked, delay
    TASK_STARTS = "task starts"  # task
    TASK_RESTARTS = "task restarts"  # task
    TASK_STOPS = "task stops"  # task, grace
    TASK_STOPPED = "task stopped"  # task
    SPLITS = "splits"  # connector, offset of its config
    PUBLISHES = "publishes"  # connector, leader, number of tasks, whether it signs
    SESSION_KEY = "session key"  # size
    STATUSES = "statuses"  # each key with its state
    CLOSES_RUNTIME = "closes runtime"
    CONFIG_APPENDED = "config appended"  # lines, bytes, checksum, the log's end
    REPLIES = "replies"  # request id, "done" or the problem

    # -- users and operators
    REQUESTED = "requested"  # the worker, the request, its connector, the request's other values
    FORGED = "forged"  # task configs that no worker has signed are sent
    SETTLED = "settled"  # generation, or number of transactions that have ended
    CHANGE = "change"  # the change after the last fault

    # -- producers and their broker
    BROKER_UP = "broker up"  # end offset of each partition
    BROKER_CRASHES = "broker crashes"
    STEP = "step"  # transactional id, request, its sender, the error, or the base offset and the state
    ROLLED_BACK = "rolled back"  # number of writes
    BECOMES = "becomes"  # process, producer id, epoch
    PRODUCED = "produced"  # process, partition, the error, base offset
    BATCH_GIVEN_UP = "batch given up"  # process, partition
    TRANSACTION_ENDED = "transaction ended"  # the request that ended it, its sender, the transaction's process
    COMMITTED = "committed"  # process
    ABORTED = "aborted"  # process
    DONE = "done"  # process

    VIOLATION = "violation"  # the invariant


NAMES: dict[type, str] = {
    groups.JoinGroup: "JoinGroup",
    groups.SyncGroup: "SyncGroup",
    groups.Heartbeat: "Heartbeat",
    groups.LeaveGroup: "LeaveGroup",
    offsets.OffsetCommit: "OffsetCommit",
    offsets.OffsetFetch: "OffsetFetch",
    offsets.OffsetDelete: "OffsetDelete",
    offsets.DeleteGroup: "DeleteGroup",
    groups.SessionTimer: "session",
    groups.PendingMemberTimer: "pending member",
    groups.NewMemberTimer: "new member",
    groups.JoinPhaseTimer: "join phase",
    groups.SyncTimer: "sync",
    groups.ExpiryTimer: "expiry",
    member.JoinRequest: "JoinGroup",
    member.SyncRequest: "SyncGroup",
    member.LeaveRequest: "LeaveGroup",
    member.JoinResponse: "JoinGroup",
    member.SyncResponse: "SyncGroup",
    member.HeartbeatResponse: "Heartbeat",
    member.LeaveResponse: "LeaveGroup",
    transactions.InitProducerId: "InitProducerId",
    transactions.AddPartitions: "AddPartitions",
    transactions.EndTransaction: "EndTransaction",
    transactions.TimeoutPassed: "TimeoutPassed",
    NewBatch: "Produce",
}
"""The fixed name of each request, response and timer that appears in a record."""


def name_of(value: object) -> str:
    """The name of ``value``'s class in records.

    :raises KeyError: when `NAMES` has no name for the class.
    """
    return NAMES[type(value)]


def texts(jobs: Jobs) -> str:
    """The jobs in the order of `Jobs`, separated by commas; ``-`` for none."""
    return ",".join(map(str, jobs)) or "-"


def weight(lines: Iterable[tuple[bytes, bytes | None]]) -> tuple[int, int, int]:
    """The number of lines (keys with values), their size in bytes, and their checksum."""
    count = size_bytes = checksum = 0
    for key, value in lines:
        count += 1
        size_bytes += len(key) + len(value or b"")
        checksum = crc32(value or b"", crc32(key, checksum))
    return count, size_bytes, checksum
