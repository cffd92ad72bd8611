"""The checks after the last fault: all running workers settle, no further rebalance comes, and one more change takes
few rounds."""

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
"""Enough time for task configs to reach the leader, for silent members to expire, for two delays, for two rounds that
wait for their slowest member, and for 30 rounds that move one job each."""
QUIET_MS = 3 * DELAY_MAX_MS
KEY_LATE_MS = 10_000
"""Time after the end of its TTL in which a session key must be replaced."""

STRANGER_MS = 5_000
"""Time in which task configs that a leader accepts are written, read and acknowledged."""


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
        """Run until the group is stable, then check claims, balance and tasks.

        :raises Violation: SETTLES, CLAIMED_ONLY, BALANCED, RUNS_AS_CONFIGURED.
        """
        world = self._world
        until_ms = world.now_ms + SETTLE_MS
        settled, since_ms = None, world.now_ms
        # The last fault may have an effect only when a lease expires, so the group must be settled for one session.
        while settled is None or world.now_ms < since_ms + SESSION_TIMEOUT_MS:
            if world.now_ms >= until_ms:
                missing = self._unsettled() or "rounds or task starts continue"
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
        """Run for `QUIET_MS`: no round and no task start may come, and the session key must not be too old.

        :raises Violation: QUIET, KEYS_ROTATE.
        """
        before = self._traces()
        self._world.run_until(self._world.now_ms + QUIET_MS)
        if self._traces() != before:
            came = self._cluster.coordinator.group.generation
            raise Violation(Invariant.QUIET, f"settled in generation {before[0]}, then came {came}")
        if (unsettled := self._unsettled()) is not None:
            raise Violation(Invariant.QUIET, f"settled in generation {before[0]}, then {unsettled}")
        self._check_key()

    def refuse_strangers(self) -> None:
        """Send task configs without a valid signature, if the group's protocol signs requests.

        :raises Violation: SIGNED, when a leader accepts them.
        """
        if self._signs:
            self._world.record(RecordKind.FORGED)
            self._weather.operators.forge_all()
            self._world.run_until(self._world.now_ms + STRANGER_MS)

    def _traces(self) -> tuple[int, int]:
        """The group's generation and the number of task starts: both change with every rebalance."""
        starts = sum(run.starts for process in self._processes for run in process.herder.work.runs.values())
        return self._cluster.coordinator.group.generation, starts

    def _unsettled(self) -> str | None:
        """The reason why the running workers have not settled; None when they have."""
        group, log = self._cluster.coordinator.group, self._cluster.config_log
        owned, work, processes = Jobs(), log.work_at(log.end), self._processes
        for process in processes:
            if not process.herder.place.is_settled or process.herder.place.epoch != group.generation:
                return f"{process.name} is in generation {process.herder.place.epoch}, the group in {group.generation}"
            if process.herder.place.assigned != process.given:
                has, was_given = names_of_jobs(process.herder.place.assigned), names_of_jobs(process.given)
                return f"{process.name} owns {has}, was assigned {was_given}"
            if process.active.keys() != process.given.tasks & work.keys():
                return f"{process.name} runs {sorted(map(str, process.active))}, owns {names_of_jobs(process.given)}"
            if process.given & owned:
                return f"{names_of_jobs(process.given & owned)} is owned by two workers"
            owned |= process.given
        if not self._cluster.coordinator.is_stable:
            return f"the group is {group.phase}"
        if {process.member.member_id for process in processes} != group.members.keys():
            return f"members are {sorted(group.members)}, workers are {[process.name for process in processes]}"
        placeable = self._placeable(log.jobs_at(log.end))
        if owned != placeable:
            return f"unowned: {names_of_jobs(placeable - owned)}, not to be owned: {names_of_jobs(owned - placeable)}"
        if unpublished := [name for name in log.unpublished() if name in owned.connectors]:
            return f"the task configs of {unpublished} are not written"
        herders = [process.herder for process in processes]
        if any(one.rounds.deferred_until_ms is not None or one.lead.moves_at_ms is not None for one in herders):
            return "a round is due: jobs are deferred, or moves are postponed"
        if leaves := [process.name for process in processes if process.drains and not process.given]:
            return f"{leaves} have drained and have not left"
        return None

    # -- checks of the settled group ----------------------------------------------------------------------------------

    @property
    def _signs(self) -> bool:
        return self._protocol not in (ConnectProtocol.EAGER.wire_name, ConnectProtocol.COMPATIBLE.wire_name)

    @property
    def _speaks_static(self) -> bool:
        """Whether the group's protocol carries claims and drains."""
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
        """The configured jobs that some worker may run, or that a draining worker keeps."""
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
                    Invariant.CLAIMED_ONLY, f"{process.name} owns {names_of_jobs(wrong)}, which it may not run"
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
                    told = [f"{one} with {dict(one.config)}" for one in (start, work[task])]  # a repr omits the config
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
            raise Violation(Invariant.KEYS_ROTATE, f"the session key is {old_ms} ms old, its TTL is {ttl_ms} ms")

    # -- one change after the last fault ------------------------------------------------------------------------------

    def change_something(self) -> None:
        """Make one change, wait until the group has settled, and check its number of rounds and of stopped tasks.

        :raises Violation: FEW_ROUNDS, ONLY_WHAT_MUST_MOVE, or those of `settle`.
        """
        weather = self._weather
        # The task configs of an unassigned connector may be outdated: its next owner writes new ones.
        is_stale = bool(self._cluster.config_log.unpublished())
        # Name, change, number of rounds that it takes, and whether tasks may stop for it.
        changes: list[tuple[str, Callable[[], None], int, bool]] = [
            ("burst", self._burst, 4, False),
            ("lag", self._lag, 5, False),
            ("delete", weather.users.delete_connector, 2, True),
            ("join", weather.join_one_more, 4 if is_stale else 2, True),
            ("drain", weather.operators.drain, 3, True),
            # A session expires; a delay passes; the worker's jobs are assigned; other workers may release jobs.
            ("die", weather.bury, 4, True),
        ]
        watch = self._cluster.watch
        generation, stops, overtaken = self._cluster.coordinator.group.generation, watch.stops, watch.overtaken
        # A late assignment may be overtaken by the next round, which then is an additional one. Without late responses
        # this is rare and costs one round, which assigns the same jobs to the member again.
        self._cluster.network.late_share = 0
        # A draining worker that had to stay, since no worker could take its jobs, may be able to leave now.
        leavings = sum(process.drains for process in self._processes)
        name, change, rounds, may_stop = self._world.rng.choice(changes)
        self._world.record(RecordKind.CHANGE, name)
        change()
        rounds += leavings
        self.settle()
        rounds += watch.overtaken > overtaken
        came = self._cluster.coordinator.group.generation - generation
        if came > rounds and self._cluster.policy.moves_per_round_max is None:
            raise Violation(Invariant.FEW_ROUNDS, f"{came} rounds came, at most {rounds} are needed")
        stopped = watch.stops - stops
        if stopped and not may_stop and self._protocol != ConnectProtocol.EAGER.wire_name:
            raise Violation(Invariant.ONLY_WHAT_MUST_MOVE, f"{stopped} tasks stop, none needs to")

    def _burst(self) -> None:
        for number, name in enumerate(BURST):
            if name not in self._cluster.config_log.names():
                self._world.after(20 * number, partial(self._weather.users.put, name, self._world.rng.randint(1, 2)))

    def _lag(self) -> None:
        self._weather.lag_leader()
        self._weather.users.put("late", self._world.rng.randint(1, 2))
