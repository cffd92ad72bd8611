"""The named invariants: what must hold at every moment whatever the weather, and how a breach is told."""

from enum import StrEnum


class Invariant(StrEnum):
    """What the simulator watches. Safety at every moment; liveness once the weather has calmed down."""

    # -- of workers
    ONE_OWNER = "one-owner"
    """No task is effective on two workers that both have their lease (I1 of the theory)."""
    STOPPED_WHEN_EXPIRED = "stopped-when-expired"
    """When a member's session ends, its worker has stopped everything; one that was paused stops at once after (I6)."""
    RESTARTED_IN_PLACE = "restarted-in-place"
    """A query that died starts again only while its worker holds the checkpoint, and the worker's place is proved."""
    RELEASED_FIRST = "released-first"
    """Nothing is assigned to one member that another one says it runs (K415: release before acquisition)."""
    DISJOINT = "disjoint"
    """No round leaves a job with two members (I2)."""
    ACCOUNTED = "accounted"
    """After a round every configured job is somebody's, or about to be released, or waits for a delay that runs."""
    KNOWN_MEMBERS = "known-members"
    """A leader assigns to the members of its generation: to all of them and to nobody else."""
    BALANCED = "balanced"
    """When all is calm, connectors, tasks and their sum are at floor or ceiling for every worker that takes any job."""
    STOPPED_FOR_A_REASON = "stopped-for-a-reason"
    """A task that stays its worker's, whose config stays and whose worker keeps its place is never stopped."""
    ONLY_WHAT_MUST_MOVE = "only-what-must-move"
    """A round stops nothing for balance that need not move; of two that run one job, one goes on; while jobs wait for
    a worker that has left, none is stopped for balance at all."""
    MOVES_PER_ROUND = "moves-per-round"
    """No round stops more for balance and drains than `rebalance.max.moves.per.round`."""
    FAIR_SHARE = "fair-share"
    """Nobody is given more connectors, or more tasks, than its share of them, but for what was its own (KIP-345)."""
    LOST_WAITS = "lost-waits"
    """What a worker that has left ran is given to nobody else before the scheduled delay has passed (K415)."""
    DELAY_ENDS = "delay-ends"
    """No job waits longer than that delay, however many rounds there are meanwhile."""
    CLAIMED_ONLY = "claimed-only"
    """A worker with claims runs nothing else, and nobody else what it claims (KIP-987)."""
    DRAINED = "drained"
    """A worker that drains is given nothing, gives away what others may run, and ends with code 0 and nothing lost."""
    EAGER_STOPS_FIRST = "eager-stops-first"
    """Whoever joins a group that speaks eager has stopped everything before."""
    SIGNED = "signed"
    """Where the group speaks sessioned or newer, no leader takes task configs that are not signed (KIP-507)."""
    KEYS_ROTATE = "keys-rotate"
    """There is a session key then, and it gets no older than it may."""
    FEW_ROUNDS = "few-rounds"
    """In calm weather a change takes the rounds that it needs: one for all that come together, and one for their tasks;
    one for whoever joins, and one to hand over."""
    TOLD_IS_WRITTEN = "told-is-written"
    """Whoever is told that its change is done finds it in the config log, and its worker has read it."""
    RUNS_AS_CONFIGURED = "runs-as-configured"
    """When all is calm, what should run does so, once, in its connector's present life, with its present config."""

    # -- of any group
    DURABLE_FIRST = "durable-first"
    """No answer shows what the log does not hold."""
    GENERATION_RISES = "generation-rises"
    """A generation is one membership, told once; it never falls, whatever crashes (A2)."""
    NOTHING_LOST = "nothing-lost"
    """What was durable is there after a crash; an offset that was acknowledged never goes back."""
    REPLAY_IS_LIVE = "replay-is-live"
    """The log gives back the group: its leader, its members, their generation, its offsets, a deadline for each."""
    AS_LED = "as-led"
    """A member hears what the leader of its generation has assigned to it."""
    ONE_PER_INSTANCE = "one-per-instance"
    """Who was followed by another of its instance id is never again answered as a member (KIP-345)."""
    STATIC_STAYS_QUIET = "static-stays-quiet"
    """A static member that comes back to a stable group as it was changes nothing for anybody else (KIP-345)."""
    CURRENT_COMMITS = "current-commits"
    """A member's offsets are taken for the last generation only, and not after a later one was told."""
    OFFSETS_KEPT = "offsets-kept"
    """An offset goes for a reason: deleted, its topic or group deleted, or as old as it may get with nobody reading."""
    GONE = "gone"
    """Nothing is left of a group when its deletion is decided."""
    PATIENT = "patient"
    """No member is put out before it has been silent for its session."""
    ROOM = "room"
    """No more clients join a generation than may be in the group (KIP-389)."""

    MACHINE_CHECK = "machine-check"
    """What the machines assert of themselves."""
    SETTLES = "settles"
    """When the faults have stopped, all that live end in one stable generation, with everything assigned once (L1)."""
    QUIET = "quiet"
    """Then nothing happens any more: no rebalance without a cause."""

    # -- of producers and their transactions
    EXACTLY_ONCE = "exactly-once"
    """No batch is written twice, however often it is sent; a committed transaction has all of its batches, in order."""
    ALL_OR_NOTHING = "all-or-nothing"
    """A transaction ends in all of its partitions at once, and in the same way."""
    COMMITTED_ONLY = "committed-only"
    """Nothing is committed that its producer has not asked for; a reader of committed records sees nothing else."""
    STABLE = "stable"
    """The last stable offset passes no open transaction."""
    TOLD_IS_DONE = "told-is-done"
    """Whoever was told that its transaction is committed, or aborted, finds it so, whatever crashes."""
    NOTHING_LATE = "nothing-late"
    """A producer writes nothing after its successor was told, and a transaction nothing after its end (KIP-890)."""
    ONE_PRODUCER = "one-producer"
    """No two processes are the same producer in the same epoch."""
    IN_SEQUENCE = "in-sequence"
    """Whoever sends its batches in order is not told that they are out of it."""
    ABORTED_FOR_A_REASON = "aborted-for-a-reason"
    """A transaction ends by its own producer, by a successor, or when it has outlived its timeout."""
    FENCED_FOR_A_REASON = "fenced-for-a-reason"
    """Nothing is refused to a producer that has no successor and has outlived no timeout."""
    ENDS = "ends"
    """When the faults have stopped every transaction ends, and its readers get to the end of the log."""


class Violation(Exception):
    """An invariant is broken: the simulated machines have a bug."""

    def __init__(self, invariant: Invariant, what: str) -> None:
        self.invariant = invariant
        super().__init__(invariant, what)  # as it is called, so that it comes whole out of another process

    def __str__(self) -> str:
        return ": ".join(self.args)


class MachineCheck:
    """What a machine asserts of itself is an invariant, too. Around every step: a generator would cost more than it."""

    def __init__(self, room: str) -> None:
        self._room = room

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, AssertionError):
            raise Violation(Invariant.MACHINE_CHECK, f"{self._room}: {error}") from error
