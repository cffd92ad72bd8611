"""When the faults have stopped: all that live settle, stay quiet, and take one more change in few rounds."""

from collections.abc import Callable, Sequence
from functools import partial

from coterie.assignors.memory import union
from coterie.herder.connectors import RETRY_MAX_MS
from coterie.lab.simulator.actor import by_name
from coterie.lab.simulator.fleet.cluster import Cluster
from coterie.lab.simulator.fleet.process import Process
from coterie.lab.simulator.fleet.rounds import names_of_jobs
from coterie.lab.simulator.fleet.settings import (
    DELAY_MAX_MS,
    HEARTBEAT_INTERVAL_MS,
    REBALANCE_TIMEOUT_MS,
    ROUND_INTERVAL_MS,
    SESSION_TIMEOUT_MS,
)
from coterie.lab.simulator.fleet.users import BURST
from coterie.lab.simulator.fleet.weather import Weather
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.lab.simulator.records import RecordKind
from coterie.nouns.jobs import Jobs
from coterie.wire.connect import ConnectProtocol

SETTLE_MS = RETRY_MAX_MS + 2 * SESSION_TIMEOUT_MS + 2 * DELAY_MAX_MS + 2 * REBALANCE_TIMEOUT_MS + 30 * ROUND_INTERVAL_MS
"""Task configs reach the leader, silent members go, a delay runs out, two rounds wait for their slowest member; and
where one job moves a round, all find their places one after the other."""
QUIET_MS = 3 * DELAY_MAX_MS
KEY_LATE_MS = 10_000
"""How much later than it may a key may be followed by the next."""

STRANGER_MS = 5_000
"""What a leader takes is written, read and answered by then."""


class Calm:
    def __init__(self, cluster: Cluster, weather: Weather) -> None:
        self._cluster = cluster
        self._weather = weather
        self._world = cluster.world

    @property
    def _processes(self) -> Sequence[Process]:
        return by_name(self._weather.living)

    @property
    def _protocol(self) -> str | None:
        return self._cluster.coordinator.group.protocol

    # -- settling -----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """:raises Violation: SETTLES, or what must hold then."""
        world = self._world
        until_ms = world.now_ms + SETTLE_MS
        settled, since_ms = None, world.now_ms
        # What the last fault has begun may show only when a lease runs out: it has to look settled for a session.
        while settled is None or world.now_ms < since_ms + SESSION_TIMEOUT_MS:
            if world.now_ms >= until_ms:
                missing = self._unsettled() or "one round follows the other"
                raise Violation(Invariant.SETTLES, f"{SETTLE_MS} ms after the last change {missing}")
            world.run_until(world.now_ms + HEARTBEAT_INTERVAL_MS)
            now = self._traces() if self._unsettled() is None else None
            if now != settled:
                settled, since_ms = now, world.now_ms
        self._check_claims()
        self._check_balance()
        self._check_work()
        world.record(RecordKind.SETTLED, self._cluster.coordinator.group.generation)

    def stay_quiet(self) -> None:
        """:raises Violation: QUIET."""
        before = self._traces()
        self._world.run_until(self._world.now_ms + QUIET_MS)
        if self._traces() != before:
            came = self._cluster.coordinator.group.generation
            raise Violation(Invariant.QUIET, f"settled in generation {before[0]}, then came {came}")
        if (unsettled := self._unsettled()) is not None:
            raise Violation(Invariant.QUIET, f"settled in generation {before[0]}, then {unsettled}")
        self._check_key()

    def refuse_strangers(self) -> None:
        """:raises Violation: SIGNED, when a leader takes what one of them sends."""
        if self._signs:
            self._world.record(RecordKind.FORGED)
            self._weather.operators.forge_all()
            self._world.run_until(self._world.now_ms + STRANGER_MS)

    def _traces(self) -> tuple[int, int]:
        """What tells that something has happened: rounds and starts."""
        starts = sum(run.starts for process in self._processes for run in process.herder.work.runs.values())
        return self._cluster.coordinator.group.generation, starts

    def _unsettled(self) -> str | None:
        """What is still missing; None when everything alive has settled."""
        group, log = self._cluster.coordinator.group, self._cluster.config_log
        owned, work, processes = Jobs(), log.work_at(log.end), self._processes
        for process in processes:
            if not process.herder.place.is_settled or process.herder.place.epoch != group.generation:
                return f"{process.name} is in generation {process.herder.place.epoch}, the group in {group.generation}"
            if process.herder.place.assigned != process.given:
                has, was_given = names_of_jobs(process.herder.place.assigned), names_of_jobs(process.given)
                return f"{process.name} has {has}, was given {was_given}"
            if process.active.keys() != process.given.tasks & work.keys():
                return f"{process.name} runs {sorted(map(str, process.active))}, has {names_of_jobs(process.given)}"
            if process.given & owned:
                return f"{names_of_jobs(process.given & owned)} belongs to two workers"
            owned |= process.given
        if not self._cluster.coordinator.is_stable:
            return f"the group is {group.phase}"
        if {process.member.member_id for process in processes} != group.members.keys():
            return f"members are {sorted(group.members)}, workers are {[process.name for process in processes]}"
        placeable = self._placeable(log.jobs_at(log.end))
        if owned != placeable:
            return f"nobody has {names_of_jobs(placeable - owned)}, too much is {names_of_jobs(owned - placeable)}"
        if unpublished := [name for name in log.unpublished() if name in owned.connectors]:
            return f"task configs are not written of {unpublished}"
        herders = [process.herder for process in processes]
        if any(one.rounds.deferred_until_ms is not None or one.lead.moves_at_ms is not None for one in herders):
            return "a round is due: a delay runs, or moves are left to make"
        if leaves := [process.name for process in processes if process.drains and not process.given]:
            return f"{leaves} have drained and stay"
        return None

    # -- what must hold then ------------------------------------------------------------------------------------------

    @property
    def _signs(self) -> bool:
        return self._protocol not in (ConnectProtocol.EAGER.wire_name, ConnectProtocol.COMPATIBLE.wire_name)

    @property
    def _speaks_static(self) -> bool:
        """Claims and drains are heard of in the newest protocol alone."""
        return self._protocol == ConnectProtocol.STATIC.wire_name

    def _wildcard(self) -> Sequence[Process]:
        if not self._speaks_static:
            return self._processes
        return [
            process for process in self._processes if process.claims is None and not process.herder.life.is_draining
        ]

    def _claimed(self) -> Jobs:
        claims = [process.claims for process in self._processes if not process.herder.life.is_draining]
        return union([of_one for of_one in claims if of_one is not None]) if self._speaks_static else Jobs()

    def _placeable(self, configured: Jobs) -> Jobs:
        """What somebody may run, or goes on with though it drains."""
        if self._wildcard():
            return configured
        left = union([process.given for process in self._processes if process.herder.life.is_draining])
        return configured & (self._claimed() | left)

    def _check_claims(self) -> None:
        claimed = self._claimed()
        for process in self._processes:
            if not self._speaks_static or process.herder.life.is_draining:
                continue
            wrong = process.given & claimed if process.claims is None else process.given - process.claims
            if wrong:
                raise Violation(
                    Invariant.CLAIMED_ONLY, f"{process.name} has {names_of_jobs(wrong)}, which is not for it"
                )

    def _check_balance(self) -> None:
        loads = [process.given - self._claimed() for process in self._wildcard()]
        kinds: dict[str, Callable[[Jobs], int]] = {
            "connectors": lambda jobs: len(jobs.connectors),
            "tasks": lambda jobs: len(jobs.tasks),
            "jobs": len,
        }
        for kind, count in kinds.items():
            counts = sorted(map(count, loads))
            if loads and counts[-1] - counts[0] > 1:
                raise Violation(Invariant.BALANCED, f"{kind} by worker are {counts}")

    def _check_work(self) -> None:
        work = self._cluster.config_log.work_at(self._cluster.config_log.end)
        for process in self._processes:
            for task, start in process.active.items():
                if start != work[task]:
                    told = [f"{one} with {dict(one.config)}" for one in (start, work[task])]  # a repr has no config
                    raise Violation(Invariant.RUNS_AS_CONFIGURED, f"{process.name} runs {' and not '.join(told)}")

    def _check_key(self) -> None:
        if not self._signs:
            return
        lines = self._cluster.config_log.lines
        written_ms = max((line.timestamp_ms for line in lines if line.key == b"session-key"), default=None)
        if written_ms is None:
            raise Violation(Invariant.KEYS_ROTATE, "there is no session key")
        ttl_ms, old_ms = self._cluster.session_keys.ttl_ms, self._world.now_ms - written_ms
        if ttl_ms and old_ms > ttl_ms + KEY_LATE_MS:
            raise Violation(Invariant.KEYS_ROTATE, f"the session key is {old_ms} ms old, and may be {ttl_ms}")

    # -- a change in calm weather -------------------------------------------------------------------------------------

    def change_something(self) -> None:
        """:raises Violation: FEW_ROUNDS, ONLY_WHAT_MUST_MOVE, or what must hold when all has settled again."""
        weather = self._weather
        # What nobody could take may have another config than its tasks are of: whoever takes it changes them.
        is_stale = bool(self._cluster.config_log.unpublished())
        # What happens, the rounds that it takes, and whether tasks may stop for it.
        changes: list[tuple[str, Callable[[], None], int, bool]] = [
            ("burst", self._burst, 4, False),
            ("lag", self._lag, 5, False),
            ("delete", weather.users.delete_connector, 2, True),
            ("join", weather.join_one_more, 4 if is_stale else 2, True),
            ("drain", weather.operators.drain, 3, True),
            # A session ends; a delay passes; what the worker ran is assigned; perhaps others hand over.
            ("die", weather.bury, 4, True),
        ]
        watch = self._cluster.watch
        generation, stops, overtaken = self._cluster.coordinator.group.generation, watch.stops, watch.overtaken
        # An assignment that comes late may be overtaken by the next round, which then is one that was not needed.
        # Without late answers that is rare, and costs one round: what a member did not hear is said to it once more.
        self._cluster.network.late_share = 0
        # Whoever drains and had to stay, for nobody could take what it has, may find somebody now, and then it goes.
        leavings = sum(process.drains for process in self._processes)
        name, change, rounds, may_stop = self._world.rng.choice(changes)
        self._world.record(RecordKind.CHANGE, name)
        change()
        rounds += leavings
        self.settle()
        rounds += watch.overtaken > overtaken
        came = self._cluster.coordinator.group.generation - generation
        if came > rounds and self._cluster.policy.moves_per_round_max is None:
            raise Violation(Invariant.FEW_ROUNDS, f"{came} rounds came, not {rounds}")
        stopped = watch.stops - stops
        if stopped and not may_stop and self._protocol != ConnectProtocol.EAGER.wire_name:
            raise Violation(Invariant.ONLY_WHAT_MUST_MOVE, f"{stopped} tasks stop, none has to")

    def _burst(self) -> None:
        for number, name in enumerate(BURST):
            if name not in self._cluster.config_log.names():
                self._world.after(20 * number, partial(self._weather.users.put, name, self._world.rng.randint(1, 2)))

    def _lag(self) -> None:
        self._weather.lag_leader()
        self._weather.users.put("late", self._world.rng.randint(1, 2))
