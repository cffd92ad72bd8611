"""What a simulation records: the kinds of records, and the fixed names of the classes that a record tells apart.

The digest of a seed is made of records alone. A kind or a name that changes here changes digests; the name of a class
or a sentence that is only shown does not.
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
    """What has happened; the comment names the values that follow."""

    # -- processes; the first value is the process's name
    STARTS = "starts"  # how it is set
    CONTINUES = "continues"  # how it is set; it follows its predecessor in its place
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
    BROKEN = "broken"  # the connection of a call, how much later its question arrives
    LOST = "lost"  # a message, the way it went

    # -- faults
    FAULTS_END = "faults end"
    CUT = "cut"  # the link
    CONNECTED = "connected"  # the link
    CLOGGED = "clogged"  # the link, the way, for how many ms
    LOSSY = "lossy"  # the link, the percentage that gets lost
    NARROW = "narrow"  # the link
    READS_LATE = "reads late"  # the worker, by how many ms
    PROTOCOL_SET = "protocol set"  # the protocol that all workers are to speak
    DISK_FAILS = "disk fails"
    QUERY_DIES = "query dies"  # the worker, the task, whether the worker still holds the checkpoint
    TOPIC_DELETED = "topic deleted"  # the topic

    # -- a group's coordinator
    COORDINATOR_UP = "coordinator up"  # lines of its log, generation
    COORDINATOR_CRASHES = "coordinator crashes"  # phase, generation
    ASKED = "asked"  # who asks, the request
    ANSWERED = "answered"  # who has asked, the request, the error, what the answer holds
    TIMER_FIRED = "timer fired"  # the timer, its member
    PHASE = "phase"  # before, after, generation
    APPENDED = "appended"  # lines, bytes, checksum
    DURABLE = "durable"  # lines

    # -- a member of a group, a worker's or a client; the first value is the process's name
    SENDS = "sends"  # the request
    HEARS = "hears"  # the request, the error
    ASSIGNED = "assigned"  # generation, error, config offset, assigned, revoked, delay
    ASSIGNMENT_WANTED = "assignment wanted"  # generation, protocol, members
    REBALANCE_STARTED = "rebalance started"  # whether everything stops
    MEMBERSHIP_LOST = "membership lost"
    MEMBERSHIP_REFUSED = "membership refused"
    LEFT = "left"

    # -- a worker's herder; the first value is the process's name
    SUBSCRIBES = "subscribes"  # config offset, owned, whether it drains
    REJOINS = "rejoins"
    ABANDONS = "abandons"
    LEAVES = "leaves"  # whether for good
    DEALS = "deals"  # generation; of each member its id, error, config offset, assigned, revoked, delay
    TASK_STARTS = "task starts"  # task
    TASK_RESTARTS = "task restarts"  # task
    TASK_STOPS = "task stops"  # task, grace
    TASK_STOPPED = "task stopped"  # task
    SPLITS = "splits"  # connector, when its config was written
    PUBLISHES = "publishes"  # connector, leader, number of tasks, whether it signs
    SESSION_KEY = "session key"  # size
    STATUSES = "statuses"  # each key with its state
    CLOSES_RUNTIME = "closes runtime"
    CONFIG_APPENDED = "config appended"  # lines, bytes, checksum, the log's end
    REPLIES = "replies"  # request id, "done" or the problem

    # -- users and operators
    REQUESTED = "requested"  # the worker, what, of which connector, how
    FORGED = "forged"  # the stranger sends task configs
    SETTLED = "settled"  # generation, or how many transactions have ended
    CHANGE = "change"  # what happens in calm weather

    # -- producers and their broker
    BROKER_UP = "broker up"  # end offset of each partition
    BROKER_CRASHES = "broker crashes"
    STEP = "step"  # transactional id, what, by whom, the error, or the base offset and the state
    ROLLED_BACK = "rolled back"  # writes
    BECOMES = "becomes"  # process, producer id, epoch
    PRODUCED = "produced"  # process, partition, the error, base offset
    BATCH_GIVEN_UP = "batch given up"  # process, partition
    TRANSACTION_ENDED = "transaction ended"  # by what, by whom, whose
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
"""The fixed name of each request, answer and timer of which a record tells."""


def name_of(value: object) -> str:
    """:raises KeyError: when `NAMES` has no name for its class."""
    return NAMES[type(value)]


def texts(jobs: Jobs) -> str:
    """In their one order, with commas between; ``-`` for none."""
    return ",".join(map(str, jobs)) or "-"


def weight(lines: Iterable[tuple[bytes, bytes | None]]) -> tuple[int, int, int]:
    """How many lines, each a key and a value, how many bytes, and their checksum."""
    count = size_bytes = checksum = 0
    for key, value in lines:
        count += 1
        size_bytes += len(key) + len(value or b"")
        checksum = crc32(value or b"", crc32(key, checksum))
    return count, size_bytes, checksum
