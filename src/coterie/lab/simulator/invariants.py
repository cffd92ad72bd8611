"""The named invariants: the conditions that must always hold. And the exception that reports a broken one."""

from enum import StrEnum

from coterie.nouns.jobs import Jobs


class Invariant(StrEnum):
    """The conditions that the simulator checks: safety at every step, liveness after the last fault."""

    # -- workers
    ONE_OWNER = "one-owner"
    """No task runs on two workers that both may still be members: that have received a response to a request of the
    last session timeout, and were not replaced by a process with the same instance id (I1 of the theory)."""
    STOPPED_WHEN_EXPIRED = "stopped-when-expired"
    """When a member's session expires, its worker has stopped all tasks; a worker that was paused then stops them
    within the time of a clean stop after it resumes (I6)."""
    RESTARTED_IN_PLACE = "restarted-in-place"
    """A task's query that died restarts only while its worker holds the task's checkpoint, and while a recent response
    proves that the worker is a member (`Lease.duration_ms`)."""
    RELEASED_FIRST = "released-first"
    """No round assigns a job to a member while another member reports that it owns the job (KIP-415: release before
    acquisition)."""
    DISJOINT = "disjoint"
    """After a round no two members own the same job (I2)."""
    ACCOUNTED = "accounted"
    """After a round every configured job that a member may run is owned by a member, assigned to one, or deferred by
    the scheduled rebalance delay; no member keeps a job that is not configured. An eager round may instead assign no
    job at all."""
    KNOWN_MEMBERS = "known-members"
    """The leader of a generation sends assignments to all members of this generation and to no other member."""
    BALANCED = "balanced"
    """After the last fault, for the workers that may run any unclaimed job, the numbers of connectors, of tasks and of
    jobs are each at the floor or the ceiling of their average."""
    STOPPED_FOR_A_REASON = "stopped-for-a-reason"
    """A worker that is not being shut down stops no task that is still assigned to it and should run with the same
    config."""
    ONLY_WHAT_MUST_MOVE = "only-what-must-move"
    """A round stops the fewest jobs that balance requires. If two members own one job, one of them keeps it. While jobs
    are deferred for a worker that has left, no job is stopped for balance."""
    MOVES_PER_ROUND = "moves-per-round"
    """No round stops more jobs for balance and drains together than `rebalance.max.moves.per.round`."""
    FAIR_SHARE = "fair-share"
    """No member receives connectors beyond its quota of connectors, or tasks beyond its quota of tasks; only a static
    member may receive its former jobs again (KIP-345)."""
    LOST_WAITS = "lost-waits"
    """The jobs of a worker that has left are assigned to no other worker before the scheduled rebalance delay has
    passed (KIP-415)."""
    DELAY_ENDS = "delay-ends"
    """No job is deferred longer than the scheduled rebalance delay, in however many rounds."""
    CLAIMED_ONLY = "claimed-only"
    """A worker with claims runs no other jobs, and no other worker runs the jobs that it claims (KIP-987)."""
    DRAINED = "drained"
    """A draining worker is assigned no job that another worker may run, releases its jobs that others may run, and
    exits with code 0, without any job."""
    EAGER_STOPS_FIRST = "eager-stops-first"
    """A worker has stopped all tasks before it sends JoinGroup to a group whose protocol is eager."""
    SIGNED = "signed"
    """If the group's protocol is sessioned or newer, the leader accepts only signed task configs (KIP-507)."""
    KEYS_ROTATE = "keys-rotate"
    """If the group's protocol is sessioned or newer, there is a session key, and it is replaced soon after the end of
    its TTL."""
    LEADER_LINES_IN_ORDER = "leader-lines-in-order"
    """After a leader has appended a line that only the leader may append, no worker that was the leader before it
    appends such a line."""
    FEW_ROUNDS = "few-rounds"
    """After the last fault a change takes only the rounds that it needs: for example one for all connectors created
    together and one for their tasks, or one for a worker that joins and one to assign the jobs that others have
    released."""
    TOLD_IS_WRITTEN = "told-is-written"
    """When a user's request succeeds, its change is in the config log, and the worker that responds has read the change
    there."""
    RUNS_AS_CONFIGURED = "runs-as-configured"
    """After the last fault every task that should run runs once, with the present config and the present incarnation of
    its connector."""

    # -- connect groups
    LEGAL_TARGET = "legal-target"
    """A target assignment places each configured job once: with a member, deferred for a departed one, or unplaceable;
    and it was computed from the metadata of its epoch (I2)."""
    VALID_MEMBER_EPOCH = "valid-member-epoch"
    """A member at the epoch of its target assignment holds no job that is not in its target, and no member is at a
    higher epoch than the target assignment (I3)."""
    VALID_STABLE_STATE = "valid-stable-state"
    """In a STABLE group every member is at the assignment epoch, has no job to give back, and has exactly the jobs of
    its target (I4)."""
    VALID_JOB_EPOCH = "valid-job-epoch"
    """Each job that a member holds has one job epoch, above 0 and at most the assignment epoch (I5)."""
    STALE_EFFECT = "stale-effect"
    """A task starts with a higher job epoch than every earlier run of another owner, so that the data plane can refuse
    what the earlier owner still does (I6)."""
    CLIENT_EPOCH_RISES = "client-epoch-rises"
    """The member epochs that a worker receives never decrease, except to 0 (A1)."""
    MEMBER_EPOCH_KEPT = "member-epoch-kept"
    """The member epochs that the coordinator sends to a member never decrease, except when it joins, also after crashes
    (A2)."""
    JOB_EPOCH_OWNER = "job-epoch-owner"
    """A job with one job epoch has one owner ever: a member id, or the instance id of a static member."""
    RELEASED_AS_RULED = "released-as-ruled"
    """A job is released only by its owner's acknowledgement (an owned list without it, a join or a leave), at the end
    of its owner's session, or after the grace of its owner's closed connection."""
    EPOCH_GIVEN_ONCE = "epoch-given-once"
    """Each group epoch is that of one state of the metadata, and each leader epoch that of one leader, also after
    crashes."""
    COMPUTED_FOR_A_CAUSE = "computed-for-a-cause"
    """The group epoch rises, and a target is computed, only because the metadata have changed, a delay is over, a
    portion of moves is due or a crash has cut a step."""
    REVOKED_IN_TIME = "revoked-in-time"
    """A member that has not given a revoked job back is removed at the end of its rebalance timeout, which no later
    target or request prolongs."""
    RETRY_IS_NO_RIVAL = "retry-is-no-rival"
    """A member that repeats a request is not refused with the reason that another member has its instance id, when that
    other member is the member itself."""
    CONFIGURED_TO_THE_END = "configured-to-the-end"
    """A new leader reports the configured jobs only when it has read the config log to the end that the log had when
    the worker received that it is the leader."""
    NOTHING_WAITS_FOR_FREE = "nothing-waits-for-free"
    """No member waits for a job that no member holds, and no member waits for the order to give a job back."""

    # -- any group
    DURABLE_FIRST = "durable-first"
    """No response reports a state that is not durable in the log."""
    GENERATION_RISES = "generation-rises"
    """Each generation has one leader and one set of members, and the generations that members receive never decrease,
    also after crashes (A2)."""
    NOTHING_LOST = "nothing-lost"
    """A crash loses no durable record, and resets no acknowledged offset to an earlier one."""
    REPLAY_IS_LIVE = "replay-is-live"
    """A replay of the log gives the live group: its leader, members, generation and offsets, and a session timer for
    each member."""
    AS_LED = "as-led"
    """A member receives the assignment that the leader of its generation has sent for it."""
    ONE_PER_INSTANCE = "one-per-instance"
    """A member that was replaced by a newer member with the same instance id receives only errors (KIP-345)."""
    PROTOCOL_KEPT = "protocol-kept"
    """No SyncGroup with the protocol of its member's JoinGroup response gets INCONSISTENT_GROUP_PROTOCOL, which ends a
    Kafka client, also after crashes (KIP-559)."""
    STATIC_STAYS_QUIET = "static-stays-quiet"
    """A static member that rejoins a STABLE group with unchanged protocols causes no rebalance (KIP-345)."""
    CURRENT_COMMITS = "current-commits"
    """An offset commit of a member is accepted only in the last generation, and not after a client has received a later
    generation."""
    OFFSETS_KEPT = "offsets-kept"
    """An offset is removed only for a reason: the offset, its topic or its group was deleted, or its retention time has
    passed while no member reads the topic."""
    GONE = "gone"
    """The step that responds to the deletion of a group has removed its generation and all its offsets."""
    PATIENT = "patient"
    """No member is removed because of its session, before a session timeout has passed since the coordinator last
    responded to the member without an error."""
    ROOM = "room"
    """A generation has no more members than the group's maximum size (KIP-389)."""

    MACHINE_CHECK = "machine-check"
    """The assertions in the machines hold."""
    SETTLES = "settles"
    """After the last fault all running processes reach one stable generation, with every job or partition assigned once
    (L1)."""
    QUIET = "quiet"
    """After the group has settled, no rebalance comes without a cause."""

    # -- producers and their transactions
    EXACTLY_ONCE = "exactly-once"
    """No batch is written twice, however often it is sent; a committed transaction has all of its batches, in order."""
    ALL_OR_NOTHING = "all-or-nothing"
    """A transaction ends in all of its partitions at once: committed in all, or aborted in all."""
    COMMITTED_ONLY = "committed-only"
    """A transaction is committed only if its producer has requested the commit; a read_committed reader receives only
    committed records."""
    STABLE = "stable"
    """A partition's last stable offset is not beyond the first offset of an open transaction."""
    TOLD_IS_DONE = "told-is-done"
    """When a producer receives the response to its commit or abort, the transaction is committed or aborted, and stays
    so after crashes."""
    NOTHING_LATE = "nothing-late"
    """A producer writes nothing after a newer producer of its transactional id has received its producer id and epoch;
    nothing is written to a transaction after its end (KIP-890)."""
    ONE_PRODUCER = "one-producer"
    """No two processes have the same producer id and epoch."""
    IN_SEQUENCE = "in-sequence"
    """A producer receives OUT_OF_ORDER_SEQUENCE_NUMBER only for a batch that it sent while an earlier batch had no
    response."""
    ABORTED_FOR_A_REASON = "aborted-for-a-reason"
    """A transaction is ended by its own producer, by a newer producer of its transactional id, or by its timeout."""
    FENCED_FOR_A_REASON = "fenced-for-a-reason"
    """A producer's request is refused only if there is a newer producer of its transactional id, or if one of its
    transactions has timed out."""
    ENDS = "ends"
    """After the last fault every transaction ends, and read_committed readers reach the end of the log."""


class Violation(Exception):
    """An invariant is broken: a machine, or code that the simulation runs with it, has a bug."""

    def __init__(self, invariant: Invariant, description: str) -> None:
        """``description`` is the text that says how ``invariant`` is broken."""
        self.invariant = invariant
        super().__init__(invariant, description)  # the constructor's own arguments, so that it can be unpickled

    def __str__(self) -> str:
        return ": ".join(self.args)


class MachineCheck:
    """A context manager that turns an AssertionError of a machine's step into a violation of MACHINE_CHECK. It is a
    class, because a generator-based context manager is slower and it surrounds every step."""

    def __init__(self, package: str) -> None:
        """``package`` is the machine's package, for the text of the violation."""
        self._package = package

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, AssertionError):
            raise Violation(Invariant.MACHINE_CHECK, f"{self._package}: {error}") from error


def job_list_text(jobs: Jobs) -> str:
    """The jobs, separated by commas; ``nothing`` if there are none. For the descriptions of violations."""
    return ", ".join(map(str, jobs)) or "nothing"
