"""The records of a simulation: their kinds, and the fixed names of the classes that appear in them.

The digest of a seed is computed from its records alone. A changed kind or name in this module changes digests; another
name of a class, or another sentence in the trace, does not.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import TypeAlias
from zlib import crc32

from coterie.broker.transactions.writes import NewBatch
from coterie.groups import transaction_messages as transactions
from coterie.groups.classic import messages as groups
from coterie.groups.classic import offset_messages as offsets
from coterie.groups.connect import messages as connect_groups
from coterie.member.classic import messages as member
from coterie.member.connect import messages as connect_member
from coterie.nouns.jobs import Jobs

RecordValue: TypeAlias = str | int | None
"""A value of a record: an id, a number, jobs in their order, or the name of an error; never the name of a class, a
``repr`` or a sentence."""


class RecordKind(StrEnum):
    """The kinds of records. The value of a member is the kind's name in the trace. The docstring of a member says when
    the kind is recorded and which values its records have; *name* among these values is the name of a process."""

    # -- processes
    STARTS = "starts"
    """A process starts. Values: name, settings."""
    CONTINUES = "continues"
    """A process starts and continues the membership of its predecessor, which has relaunched itself. Values: name,
    settings."""
    PAUSED = "paused"
    """A process pauses. Values: name."""
    RESUMED = "resumed"
    """A process resumes. Values: name."""
    KILLED = "killed"
    """A process is killed. Values: name."""
    LEADER_KILLED = "leader killed"
    """A process is killed because it is the leader. Values: name."""
    ALL_KILLED = "all killed"
    """A process is killed together with all others. Values: name."""
    REPLACED = "replaced"
    """A process is killed because a second process of its worker has replaced it. Values: name."""
    KILLED_PERMANENTLY = "buried"
    """A simulated process is killed permanently: no other process of its service starts. Values: name."""
    STOPS = "stops"
    """A client stops cleanly. Values: name."""
    FENCED = "fenced"
    """A client ends because another process with its instance id has replaced it. Values: name."""
    REFUSED = "refused"
    """A producer ends because a request of it was refused. Values: name, error."""
    EXITS = "exits"
    """A worker's process exits. Values: name, exit code, whether it relaunches itself."""
    SHUT_DOWN = "shut down"
    """A worker is ordered to shut down. Values: name."""

    # -- the network
    BROKEN = "broken"
    """The connection of a request breaks. Values: link, by how many ms the request arrives late."""
    LOST = "lost"
    """A message is lost. Values: link, direction."""

    CLOSED = "closed"
    """The broker sees an orderly end of a connection on which every request has a response or a response that is held
    back. Values: link."""
    REPEATED = "repeated"
    """A request of a worker arrives at the broker a second time. Values: link."""

    # -- faults
    FAULTS_END = "faults end"
    """No more faults begin."""
    CUT = "cut"
    """A link is cut. Values: link."""
    CONNECTED = "connected"
    """A link is no longer cut. Values: link."""
    CLOGGED = "clogged"
    """The messages of one direction are delayed. Values: link, direction, for how many ms."""
    LOSSY = "lossy"
    """A link begins to lose messages. Values: link, percentage."""
    NARROW = "narrow"
    """A link begins to lose large messages. Values: link."""
    READS_LATE = "reads late"
    """A worker begins to read the config log late. Values: worker, by how many ms."""
    PROTOCOL_SET = "protocol set"
    """All workers are to use another protocol. Values: protocol."""
    CONNECTION_ENDS = "connection ends"
    """A fault ends a connection in a way that only one side sees, or a proxy closes it on both sides. Values: link;
    `worker`, `broker` or `proxy`; `RST` or `FIN`."""
    GROUP_CONFIGURED = "group configured"
    """An operator sets the configs of the group. Values: each key with its value."""
    MEMBER_REMOVED = "member removed"
    """An operator removes a member from the group. Values: member id."""
    DISK_FAILS = "disk fails"
    """The writes of the broker begin to fail."""
    QUERY_DIES = "query dies"
    """The query of a task dies. Values: worker's process, task, whether the process still holds the task's
    checkpoint."""
    CHECKPOINTS_AWAY = "checkpoints away"
    """Starts of tasks begin to fail, because the folder of the checkpoints cannot be reached. Values: for how many
    ms."""
    TOPIC_DELETED = "topic deleted"
    """A topic is deleted. Values: topic."""

    # -- a group's coordinator
    COORDINATOR_UP = "coordinator up"
    """The coordinator starts. Values: number of records in its log, generation or group epoch."""
    COORDINATOR_CRASHES = "coordinator crashes"
    """The coordinator crashes. Values: phase or state of the group, generation or group epoch."""
    ASKED = "asked"
    """The coordinator receives a request. Of heartbeats, only those are recorded with which a member of a connect group
    joins or leaves, or reports the configured jobs. Values: client, request; of such a heartbeat also member id, member
    epoch, request number."""
    ANSWERED = "answered"
    """The coordinator sends a response; not recorded for most heartbeats without an error. Values: client (not in a
    connect group), request, error, the response's other fields."""
    TIMER_FIRED = "timer fired"
    """A timer of the coordinator fires. Values: timer, member id."""
    PHASE = "phase"
    """The group's phase, or the state of a connect group, changes. Values: before, after, generation or group epoch."""
    APPENDED = "appended"
    """The coordinator appends records to its log. Values: their number, the sum of their sizes in bytes, their
    checksum."""
    DURABLE = "durable"
    """Records of the coordinator become durable. Values: their number."""

    # -- members of a group: workers and clients
    SENDS = "sends"
    """A member sends a request other than a heartbeat. Values: name, request."""
    HEARS = "hears"
    """A member of a classic group receives a response; not recorded for a heartbeat without an error. Values: name,
    request, error."""
    ASSIGNED = "assigned"
    """A worker receives its assignment. Values: name, generation, error, config offset, assigned jobs, revoked jobs,
    delay; in a connect group name, member epoch, assignment epoch, config offset, assigned jobs, revoked jobs."""
    ASSIGNMENT_WANTED = "assignment wanted"
    """The member of the leader's worker requests a round from the herder. Values: name, generation, protocol,
    members."""
    REBALANCE_STARTED = "rebalance started"
    """A worker's member begins to take part in a rebalance. Values: name, whether all tasks must stop."""
    MEMBERSHIP_LOST = "membership lost"
    """A worker has lost its membership. Values: name."""
    MEMBERSHIP_REFUSED = "membership refused"
    """The group refuses a worker permanently. Values: name."""
    LEFT = "left"
    """A worker has left the group. Values: name."""

    CONFIGURES = "configures"
    """The herder of the leader's worker reports the configured jobs. Values: name, config offset, jobs."""
    INSTALLS = "installs"
    """A herder sends the target assignment that it has computed, or the failure. Values: name, whether there is a
    target assignment."""
    COMPUTES = "computes"
    """An assignor begins to compute a target assignment. Values: name or `coordinator`, group epoch, whether the
    assignor will return a target assignment."""
    TARGET_WANTED = "target wanted"
    """The coordinator has chosen a worker's member to compute a target assignment. Values: name, group epoch, number of
    members."""
    SUSPENDS = "suspends"
    """A herder orders the member to suspend its membership, because the process will relaunch itself. Values: name."""
    SUSPENDED = "suspended"
    """A member has suspended its membership. Values: name."""

    # -- the herder of a worker
    SUBSCRIBES = "subscribes"
    """A herder orders the member to report this state of the worker. Values: name, config offset, owned jobs, whether
    the worker drains."""
    REJOINS = "rejoins"
    """A herder requests a round. Values: name."""
    ABANDONS = "abandons"
    """A herder has the member leave the group and join again. Values: name."""
    LEAVES = "leaves"
    """A herder has the member leave the group. Values: name, whether permanently."""
    DEALS = "deals"
    """The herder of the leader's worker has computed a round. Values: name, generation; for each member its id, error,
    config offset, assigned jobs, revoked jobs, delay."""
    TASK_STARTS = "task starts"
    """A task starts. Values: name, task."""
    TASK_START_FAILS = "task start fails"
    """The start of a task that has just begun will fail. Values: name, task."""
    FAILED_QUERY_RESTARTS = "task restarts"
    """The restart of a task's failed query begins, on the checkpoint that it holds. (A restart that an operator orders
    is a stop and a start.) Values: name, task."""
    TASK_STOP_ORDERED = "task stops"
    """A task is ordered to stop, also if its query has failed already. Values: name, task, grace in ms."""
    TASK_STOPPED = "task stopped"
    """A task has stopped. Values: name, task."""
    SPLITS = "splits"
    """A connector is split into tasks. Values: name, connector, offset of its config."""
    PUBLISHES = "publishes"
    """Task configs are sent to the leader. Values: name, connector, URL of the leader, number of tasks, whether the
    request is signed."""
    SESSION_KEY = "session key"
    """A herder orders that a new session key is made. Values: name, size in bytes."""
    STATUSES = "statuses"
    """Statuses are written. Values: name, each key with its state."""
    CLOSES_INTAKE = "accepts no more requests"
    """A worker begins to accept no more requests. Values: name."""
    CLOSES_RUNTIME = "closes runtime"
    """A worker begins to close its task runtime. Values: name."""
    CONFIG_APPENDED = "config appended"
    """Lines are appended to the config log. Values: name of the process, number of lines, the sum of their sizes in
    bytes, their checksum, the log's new end offset."""
    REPLIES = "replies"
    """A herder responds to a REST request. Values: name, request id, `done` or the problem."""

    # -- users and operators
    REQUESTED = "requested"
    """A user or operator sends a request; an operator's order to a worker is recorded when the worker has responded.
    Values: worker's process or `operator`, request, its connector, its other values; for an order, whether the worker
    has accepted it."""
    FORGED = "forged"
    """The check after the last fault begins to send task configs without a valid signature."""
    SETTLED = "settled"
    """The processes have settled. Values: generation, group epoch, or number of transactions that have ended."""
    CHANGE = "change"
    """A change is made after the last fault. Values: change."""

    # -- producers and their broker
    BROKER_UP = "broker up"
    """The broker starts. Values: end offset of each partition."""
    BROKER_CRASHES = "broker crashes"
    """The broker crashes."""
    STEP = "step"
    """A write of the broker is durable, or was refused. Values: transactional id, request, its sender; the error, or
    the base offset, the transactional id's state and the end offsets."""
    ROLLED_BACK = "rolled back"
    """Writes of the broker have failed and were rolled back. Values: their number."""
    BECOMES = "becomes"
    """A producer receives its producer id and epoch. Values: name, producer id, epoch."""
    PRODUCED = "produced"
    """A producer receives the response to a batch. Values: name, partition, error, base offset."""
    BATCH_GIVEN_UP = "batch given up"
    """A producer gives up a batch: the batch is not sent again. Values: name, partition."""
    TRANSACTION_ENDED = "transaction ended"
    """A transaction has ended. Values: the request that ended it, that request's sender, the process that began the
    transaction."""
    COMMITTED = "committed"
    """A producer receives the success of its commit. Values: name."""
    ABORTED = "aborted"
    """A producer receives the success of its abort. Values: name."""
    DONE = "done"
    """A producer has committed its last transaction. Values: name."""

    VIOLATION = "violation"
    """An invariant is broken. Values: invariant."""


RECORDED_NAME_BY_CLASS: dict[type, str] = {
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
    groups.OffsetExpiryTimer: "expiry",
    member.JoinRequest: "JoinGroup",
    member.SyncRequest: "SyncGroup",
    member.LeaveRequest: "LeaveGroup",
    member.JoinResponse: "JoinGroup",
    member.SyncResponse: "SyncGroup",
    member.HeartbeatResponse: "Heartbeat",
    member.LeaveResponse: "LeaveGroup",
    connect_groups.Heartbeat: "ConnectHeartbeat",
    connect_groups.PrepareAssignment: "Prepare",
    connect_groups.InstallAssignment: "Install",
    connect_groups.DescribeGroup: "Describe",
    connect_groups.SetGroupConfigs: "SetGroupConfigs",
    connect_groups.RemoveMember: "RemoveMember",
    connect_groups.SessionTimer: "connect session",
    connect_groups.RevocationTimer: "revocation",
    connect_groups.ConnectionGraceTimer: "connection",
    connect_groups.HeldJobsTimer: "release",
    connect_groups.RebalanceDelayTimer: "delay",
    connect_groups.NextComputationTimer: "compute",
    connect_groups.ComputationTimeoutTimer: "computation",
    connect_member.HeartbeatRequest: "ConnectHeartbeat",
    connect_member.PrepareAssignmentRequest: "Prepare",
    connect_member.InstallAssignmentRequest: "Install",
    connect_member.GroupDescriptionRequest: "Describe",
    transactions.InitProducerId: "InitProducerId",
    transactions.AddPartitions: "AddPartitions",
    transactions.EndTransaction: "EndTransaction",
    transactions.TimeoutPassed: "TimeoutPassed",
    NewBatch: "Produce",
}
"""The fixed name of each class of requests, responses and timers that appears in records."""


def recorded_name(value: object) -> str:
    """The name by which the class of ``value`` appears in records.

    :raises KeyError: when `RECORDED_NAME_BY_CLASS` has no name for the class.
    """
    return RECORDED_NAME_BY_CLASS[type(value)]


def jobs_text(jobs: Jobs) -> str:
    """The jobs as text, in the order of `Jobs`, separated by commas; ``-`` if there are none."""
    return ",".join(map(str, jobs)) or "-"


def count_size_and_checksum(lines: Iterable[tuple[bytes, bytes | None]]) -> tuple[int, int, int]:
    """The number of ``lines``, the sum of their sizes in bytes, and one checksum of all lines. A line is a key and its
    value; a tombstone (value None) counts as a line with an empty value."""
    count = size_bytes = checksum = 0
    for key, value in lines:
        count += 1
        size_bytes += len(key) + len(value or b"")
        checksum = crc32(value or b"", crc32(key, checksum))
    return count, size_bytes, checksum
