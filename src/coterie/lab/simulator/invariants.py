"""The named invariants: the conditions that must always hold. And the exception that reports a broken invariant."""

from enum import StrEnum

from coterie.nouns.jobs import Jobs


class Invariant(StrEnum):
    """The conditions that the simulator checks: safety at every step, liveness after the last fault."""

    # -- workers
    ONE_OWNER = "one-owner"
    """No task runs on two workers that both may still be members of the group. A worker may still be a member if a
    request that it sent within the last session timeout had a response, and no other process with its instance id has
    replaced it."""
    STOPPED_WHEN_EXPIRED = "stopped-when-expired"
    """When a member's session expires, its worker has stopped all tasks; a worker that was paused at that time stops
    them within the time of a clean stop after it resumes."""
    RESTARTED_IN_PLACE = "restarted-in-place"
    """A task's query that died restarts only while its worker holds the task's checkpoint, and only before the worker's
    lease ends (`LeaseDurations.duration_ms` after the worker sent the newest answered request)."""
    RELEASED_FIRST = "released-first"
    """No round assigns a job to a member if another member has reported for this round that it owns the job (KIP-415:
    release before acquisition)."""
    DISJOINT = "disjoint"
    """After a round no two members own the same job."""
    ACCOUNTED = "accounted"
    """After a round every configured job that some member may run is owned by a member, assigned to a member, or left
    unassigned because of the scheduled rebalance delay; no member keeps a job that is not configured. An eager round
    may instead assign no job at all."""
    KNOWN_MEMBERS = "known-members"
    """The leader of a generation sends assignments to all members of this generation and to no other member."""
    BALANCED = "balanced"
    """After the last fault, for the workers that may run any unclaimed job, the numbers of connectors, of tasks and of
    jobs are each at the floor or the ceiling of their average."""
    STOPPED_FOR_A_REASON = "stopped-for-a-reason"
    """A worker that is not being shut down stops no task that is still assigned to it and should still run with its
    present config."""
    ONLY_WHAT_MUST_MOVE = "only-what-must-move"
    """A round stops no more jobs than balance requires. If two members own one job, one of them keeps it. While jobs
    stay unassigned because of the scheduled rebalance delay, no job is stopped for balance."""
    MOVES_PER_ROUND = "moves-per-round"
    """No round stops more jobs for balance and drains together than `rebalance.max.moves.per.round`."""
    FAIR_SHARE = "fair-share"
    """A member that is assigned connectors or tasks then owns no more of them than its quota, the ceiling of the
    average. Not checked for static members, which may receive their former jobs again (KIP-345), for members with
    claims, and for draining members."""
    LOST_WAITS = "lost-waits"
    """A leader that also computed the previous round assigns the jobs of a worker that has left since that round to no
    other worker before the scheduled rebalance delay has passed (KIP-415)."""
    DELAY_ENDS = "delay-ends"
    """No job that a member may run stays unassigned longer than the scheduled rebalance delay and a tolerance of two
    session timeouts, however many rounds come meanwhile."""
    CLAIMED_ONLY = "claimed-only"
    """A worker with claims runs no other jobs, and no other worker runs the jobs that it claims (KIP-987)."""
    DRAINED = "drained"
    """A draining worker is assigned no job that a non-draining worker may run, must release its jobs that such a worker
    may run, and exits with code 0, without any job."""
    EAGER_STOPS_FIRST = "eager-stops-first"
    """A worker has stopped all tasks before it sends JoinGroup to a group whose protocol is `eager`."""
    SIGNED = "signed"
    """If the group's protocol is `sessioned` or newer, or the group is a connect group, the leader accepts only signed
    task configs (KIP-507)."""
    KEYS_ROTATE = "keys-rotate"
    """If the group's protocol is `sessioned` or newer, or the group is a connect group, there is a session key, and it
    is replaced soon after the end of its TTL."""
    LEADER_LINES_IN_ORDER = "leader-lines-in-order"
    """After a leader has appended a line to the config log that only the leader may append, no worker that was the
    leader before that leader appends such a line."""
    LEADER_LINES_READ = "leader-lines-read"
    """When a leader appends a connector's config, a deletion or task configs to the config log, it has read all lines
    before them that other workers have appended as the leader."""
    FEW_ROUNDS = "few-rounds"
    """After the last fault a change takes only the rounds that it needs: for example one for all connectors created
    together and one for their tasks, or one for a worker that joins and one to assign the jobs that others have
    released."""
    TOLD_IS_WRITTEN = "told-is-written"
    """When a user's request succeeds, the requested change is in the config log, and the worker that responds has read
    the change there."""
    RUNS_AS_CONFIGURED = "runs-as-configured"
    """When the workers have settled after the last fault, each running task runs with its present config and with the
    present incarnation of its connector (which changes when the connector is deleted and created again)."""

    # -- connect groups
    LEGAL_TARGET = "legal-target"
    """A target assignment has each configured job once: assigned to a member, deferred for a departed member, or listed
    as unplaceable because no member may run it; and it was computed for the group epoch that becomes its assignment
    epoch."""
    VALID_MEMBER_EPOCH = "valid-member-epoch"
    """A member whose member epoch is that of its target assignment holds no job outside its target, and no member epoch
    is higher than the assignment epoch."""
    VALID_STABLE_STATE = "valid-stable-state"
    """In a STABLE group every member, except a static member that has left for a short time, has the member epoch of
    its target, has no job to give back, and has exactly the jobs of its target."""
    VALID_JOB_EPOCH = "valid-job-epoch"
    """Each job that a member holds has one job epoch, above 0 and at most the assignment epoch."""
    STALE_EFFECT = "stale-effect"
    """A task starts with a higher job epoch than the last run that another owner started, so that the data plane
    (Spark) can refuse the writes of that run; and never with a lower job epoch than the last run."""
    CLIENT_EPOCH_RISES = "client-epoch-rises"
    """The member epochs that a worker receives with its assignments never decrease, except to 0."""
    MEMBER_EPOCH_KEPT = "member-epoch-kept"
    """The member epochs that the coordinator sends to a member never decrease, except when the member joins; also not
    after crashes of the coordinator."""
    JOB_EPOCH_OWNER = "job-epoch-owner"
    """The coordinator never assigns a job with the same job epoch to two owners. An owner is a member id, or the
    instance id of a static member."""
    RELEASED_AS_RULED = "released-as-ruled"
    """A member stops holding a job only by its own heartbeat (with a list of owned jobs without this job, a join or a
    leave), at the end of its session, or when the grace after an orderly end of its connection has passed."""
    EPOCH_GIVEN_ONCE = "epoch-given-once"
    """No group epoch is sent with two different inputs of the computation (configured jobs; claims, drain and assignor
    metadata of the members), and no leader epoch with two leaders, also not after crashes. In one step the group epoch
    rises by one at most, and never decreases."""
    COMPUTED_FOR_A_CAUSE = "computed-for-a-cause"
    """The group epoch rises, and a target is computed, only because the members, the configured jobs or other inputs of
    the computation have changed, a scheduled rebalance delay is over, postponed moves are due, or the group was
    loaded."""
    REVOKED_IN_TIME = "revoked-in-time"
    """A member that has jobs to give back has a timer that removes it one rebalance timeout after the revocation of the
    oldest of these jobs. No later target or request prolongs this time."""
    RETURNED_NOT_AWAITED = "returned-not-awaited"
    """No target defers jobs for a departed member whose worker was a member again when the target was computed: a
    member with its instance id or, if it has none, with its URL."""
    RETRY_IS_NO_RIVAL = "retry-is-no-rival"
    """No heartbeat is refused with UNRELEASED_INSTANCE_ID (another member has this instance id) if its sender is
    the member with this instance id."""
    CONFIGURED_TO_THE_END = "configured-to-the-end"
    """A new leader reports the configured jobs only when it has read the config log up to the end that the log had when
    this worker learned that it is the leader."""
    NOTHING_WAITS_FOR_FREE = "nothing-waits-for-free"
    """No member waits for a job of its target that no member holds, and no member keeps a job outside its target
    without an order to give the job back."""

    # -- any group
    DURABLE_FIRST = "durable-first"
    """No response reports a state that is not durable in the log."""
    GENERATION_RISES = "generation-rises"
    """Each generation has one leader and one set of members, and the generations that members receive never decrease,
    also not after crashes of the coordinator."""
    NOTHING_LOST = "nothing-lost"
    """A crash loses no durable record, and resets no acknowledged offset to an earlier one."""
    REPLAY_IS_LIVE = "replay-is-live"
    """A replay of the log gives the live group: its leader, members, generation and offsets, and a session timer for
    each member."""
    AS_LED = "as-led"
    """A member receives the assignment that the leader of its generation has sent for this member."""
    ONE_PER_INSTANCE = "one-per-instance"
    """A member that a newer member with the same instance id has replaced receives only errors (KIP-345)."""
    PROTOCOL_KEPT = "protocol-kept"
    """No SyncGroup with the protocol of its member's JoinGroup response gets INCONSISTENT_GROUP_PROTOCOL, which ends a
    Kafka client, also after crashes (KIP-559)."""
    STATIC_STAYS_QUIET = "static-stays-quiet"
    """A static member that rejoins a STABLE group with unchanged protocols causes no rebalance (KIP-345)."""
    CURRENT_COMMITS = "current-commits"
    """No offset commit of a member is accepted whose generation is older than one that a client has received."""
    OFFSETS_KEPT = "offsets-kept"
    """A committed offset is removed only because the offset, its topic or its group was deleted, or because its
    retention time has passed and no member reads the topic."""
    GONE = "gone"
    """The step that responds to a successful deletion of a group has removed the group's generation and all its
    offsets."""
    PATIENT = "patient"
    """No member is removed because of its session, before a session timeout has passed since the coordinator last
    responded to the member without an error."""
    ROOM = "room"
    """A generation has no more members than the group's maximum size (KIP-389)."""

    MACHINE_CHECK = "machine-check"
    """The assertions in the machines hold."""
    SETTLES = "settles"
    """After the last fault all running workers or clients reach one stable generation (or target assignment), in which
    every job or partition is assigned once."""
    QUIET = "quiet"
    """When the group has settled, no rebalance and no start of a task comes for some time."""

    # -- producers and their transactions
    EXACTLY_ONCE = "exactly-once"
    """No batch is written twice, however often it is sent; a committed transaction has all of its batches, in order."""
    ALL_OR_NOTHING = "all-or-nothing"
    """A transaction ends in all of its partitions at once: committed in all, or aborted in all."""
    COMMITTED_ONLY = "committed-only"
    """A transaction is committed only if its producer has requested the commit; a read_committed reader receives
    exactly the committed records, in order: a missing record violates this invariant, too."""
    STABLE = "stable"
    """A partition's last stable offset is not beyond the first offset of an open transaction in the partition."""
    TOLD_IS_DONE = "told-is-done"
    """When a producer receives the response to its commit or abort, the transaction is committed or aborted, and stays
    so after crashes."""
    NOTHING_LATE = "nothing-late"
    """No batch of a producer is written after a process of the same transactional id has received a newer producer id
    or epoch; and no batch is written to a transaction after the end of the transaction (KIP-890)."""
    ONE_PRODUCER = "one-producer"
    """No two processes have the same producer id and epoch."""
    IN_SEQUENCE = "in-sequence"
    """A producer receives OUT_OF_ORDER_SEQUENCE_NUMBER only for a batch that it sent while an earlier batch in the same
    partition was not acknowledged."""
    ABORTED_FOR_A_REASON = "aborted-for-a-reason"
    """A transaction is ended by its own producer, by a newer producer of its transactional id, or by its timeout."""
    FENCED_FOR_A_REASON = "fenced-for-a-reason"
    """A request of a producer is refused only if there is a newer process of its transactional id, or if a transaction
    of this transactional id has timed out."""
    ENDS = "ends"
    """After the last fault every transaction ends, every remaining producer commits a last transaction, and the
    read_committed reader reaches the end of all logs."""


class Violation(Exception):
    """Reports a broken invariant: a machine, or other code that runs in the simulation, has a bug."""

    def __init__(self, invariant: Invariant, description: str) -> None:
        """``description`` says how ``invariant`` is broken."""
        self.invariant = invariant
        super().__init__(invariant, description)  # the constructor's own arguments, so that it can be unpickled

    def __str__(self) -> str:
        return ": ".join(self.args)


class AssertionsAsViolations:
    """A context manager that raises a `Violation` of MACHINE_CHECK in place of an AssertionError of a machine's step.
    It is a class, because it surrounds every step and a generator-based context manager is slower."""

    def __init__(self, package: str) -> None:
        """``package`` is the name of the machine's package, for the text of the violation."""
        self._package = package

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, AssertionError):
            raise Violation(Invariant.MACHINE_CHECK, f"{self._package}: {error}") from error


def job_list_text(jobs: Jobs) -> str:
    """The jobs as text, separated by commas; the word ``nothing`` if there are none. For the descriptions of
    violations."""
    return ", ".join(map(str, jobs)) or "nothing"
