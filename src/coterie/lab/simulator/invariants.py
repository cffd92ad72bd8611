"""The named invariants: the conditions that must always hold, and the exception that reports a broken one."""

from enum import StrEnum


class Invariant(StrEnum):
    """The conditions that the simulator checks: safety at every step, liveness after the last fault."""

    # -- workers
    ONE_OWNER = "one-owner"
    """No task is effective on two workers that both have their lease (I1 of the theory)."""
    STOPPED_WHEN_EXPIRED = "stopped-when-expired"
    """When a member's session expires, its worker has stopped all tasks; a worker that was paused then stops them when
    it resumes (I6)."""
    RESTARTED_IN_PLACE = "restarted-in-place"
    """A query that died restarts only while its worker holds the checkpoint and a recent response proves the worker's
    membership (`Lease.proved_ms`)."""
    RELEASED_FIRST = "released-first"
    """No round assigns a job to a member while another member reports that it owns the job (KIP-415: release before
    acquisition)."""
    DISJOINT = "disjoint"
    """After a round no job is owned by two members (I2)."""
    ACCOUNTED = "accounted"
    """After a round every configured job is assigned, about to be released, or deferred by the scheduled delay."""
    KNOWN_MEMBERS = "known-members"
    """A leader sends assignments to all members of its generation and to no other member."""
    BALANCED = "balanced"
    """After the last fault, for the workers that may run any job, the numbers of connectors, of tasks and of jobs are
    each at the floor or the ceiling of the average."""
    STOPPED_FOR_A_REASON = "stopped-for-a-reason"
    """A worker that keeps its membership stops no task that is still assigned to it with the same config."""
    ONLY_WHAT_MUST_MOVE = "only-what-must-move"
    """A round stops the fewest jobs that balance requires. Of two members that own one job, one keeps it. While jobs
    are deferred for a worker that has left, no job is stopped for balance."""
    MOVES_PER_ROUND = "moves-per-round"
    """No round stops more jobs for balance and drains than `rebalance.max.moves.per.round`."""
    FAIR_SHARE = "fair-share"
    """No member is assigned connectors, or tasks, above its quota; but a static member may get back its former jobs
    (KIP-345)."""
    LOST_WAITS = "lost-waits"
    """No other worker is assigned the jobs of a worker that has left before the scheduled rebalance delay has passed
    (KIP-415)."""
    DELAY_ENDS = "delay-ends"
    """No job is deferred longer than that delay, in however many rounds."""
    CLAIMED_ONLY = "claimed-only"
    """A worker with claims runs no other jobs, and no other worker runs the jobs that it claims (KIP-987)."""
    DRAINED = "drained"
    """A draining worker is assigned no jobs, releases the jobs that others may run, and exits with code 0 and no job
    lost."""
    EAGER_STOPS_FIRST = "eager-stops-first"
    """A worker has stopped all tasks before it sends JoinGroup to a group whose protocol is eager."""
    SIGNED = "signed"
    """If the group's protocol is sessioned or newer, the leader accepts only signed task configs (KIP-507)."""
    KEYS_ROTATE = "keys-rotate"
    """If the group's protocol is sessioned or newer, there is a session key that is not older than its TTL."""
    FEW_ROUNDS = "few-rounds"
    """After the last fault a change takes only the rounds that it needs: one for all connectors created together and
    one for their tasks; one for a worker that joins and one to assign the jobs that others have released."""
    TOLD_IS_WRITTEN = "told-is-written"
    """When a user's request succeeds, its change is in the config log, and the worker that reports it has read it."""
    RUNS_AS_CONFIGURED = "runs-as-configured"
    """After the last fault every task that should run does so, once, with its connector's present incarnation and
    config."""

    # -- any group
    DURABLE_FIRST = "durable-first"
    """No response contains state that is not durable in the log."""
    GENERATION_RISES = "generation-rises"
    """Each generation has one membership, and generations never decrease, also after crashes (A2)."""
    NOTHING_LOST = "nothing-lost"
    """A crash loses no durable record, and resets no acknowledged offset to an earlier one."""
    REPLAY_IS_LIVE = "replay-is-live"
    """A replay of the log gives the live group: its leader, members, generation and offsets, and a session timer for
    each member."""
    AS_LED = "as-led"
    """A member receives the assignment that the leader of its generation has computed for it."""
    ONE_PER_INSTANCE = "one-per-instance"
    """A member that another one with the same instance id has replaced receives errors only (KIP-345)."""
    STATIC_STAYS_QUIET = "static-stays-quiet"
    """A static member that rejoins a stable group with unchanged protocols causes no rebalance (KIP-345)."""
    CURRENT_COMMITS = "current-commits"
    """A member's offset commits are accepted in the last generation only, and not after a client has received a later
    one."""
    OFFSETS_KEPT = "offsets-kept"
    """An offset is removed only for a reason: it, its topic or its group was deleted, or its retention time has passed
    while no member reads the topic."""
    GONE = "gone"
    """When a group's deletion is decided, none of its state is left."""
    PATIENT = "patient"
    """No member is removed before it has been silent for its session timeout."""
    ROOM = "room"
    """A generation has no more members than the group's maximum size (KIP-389)."""

    MACHINE_CHECK = "machine-check"
    """The machines' own assertions hold."""
    SETTLES = "settles"
    """After the last fault all running processes reach one stable generation, with every job or partition assigned once
    (L1)."""
    QUIET = "quiet"
    """After that there is no rebalance without a cause."""

    # -- producers and their transactions
    EXACTLY_ONCE = "exactly-once"
    """No batch is written twice, however often it is sent; a committed transaction has all of its batches, in order."""
    ALL_OR_NOTHING = "all-or-nothing"
    """A transaction ends in all of its partitions at once, committed in all or aborted in all."""
    COMMITTED_ONLY = "committed-only"
    """A transaction is committed only if its producer has requested it; a read_committed reader receives only committed
    records."""
    STABLE = "stable"
    """The last stable offset does not pass the first offset of an open transaction."""
    TOLD_IS_DONE = "told-is-done"
    """A transaction whose producer has received the response to its commit or abort is committed or aborted, also after
    crashes."""
    NOTHING_LATE = "nothing-late"
    """A producer writes nothing after its successor has received its identity; a transaction has no write after its end
    (KIP-890)."""
    ONE_PRODUCER = "one-producer"
    """No two processes have the same producer id and epoch."""
    IN_SEQUENCE = "in-sequence"
    """A producer that sends its batches in order receives no OUT_OF_ORDER_SEQUENCE_NUMBER."""
    ABORTED_FOR_A_REASON = "aborted-for-a-reason"
    """A transaction is ended by its own producer, by a successor, or by its timeout."""
    FENCED_FOR_A_REASON = "fenced-for-a-reason"
    """A producer's request is refused only if the producer has a successor or one of its transactions timed out."""
    ENDS = "ends"
    """After the last fault every transaction ends, and read_committed readers reach the end of the log."""


class Violation(Exception):
    """An invariant is broken: the simulated machines have a bug."""

    def __init__(self, invariant: Invariant, what: str) -> None:
        self.invariant = invariant
        super().__init__(invariant, what)  # the constructor's own arguments, so that it can be unpickled

    def __str__(self) -> str:
        return ": ".join(self.args)


class MachineCheck:
    """Turns an AssertionError of a machine's step into a violation of MACHINE_CHECK. A class, since it surrounds every
    step and a generator-based context manager is slower."""

    def __init__(self, room: str) -> None:
        self._room = room

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, AssertionError):
            raise Violation(Invariant.MACHINE_CHECK, f"{self._room}: {error}") from error
