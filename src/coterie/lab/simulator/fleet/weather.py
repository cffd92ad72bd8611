"""The faults of the workers' simulation: they come at random, each ends after some time, and at the end all of them
stop."""

from dataclasses import replace
from functools import partial
from typing import Any

from coterie.lab.simulator.actor import by_name, youngest
from coterie.lab.simulator.faults import Faults
from coterie.lab.simulator.fleet.cluster import Cluster
from coterie.lab.simulator.fleet.operators import Operators
from coterie.lab.simulator.fleet.settings import Home
from coterie.lab.simulator.fleet.users import CONNECTORS, ConnectorUsers
from coterie.lab.simulator.fleet.worker import WorkerProcess
from coterie.lab.simulator.network import Way
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.storm import Storm
from coterie.nouns.ids import InstanceId
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.membership import PlaceHandover
from coterie.wire.connect import ConnectProtocol

NAMES = ("w1", "w2", "w3", "w4", "w5", "w6")


class Weather(Faults[WorkerProcess]):
    def __init__(self, cluster: Cluster) -> None:
        names = NAMES[: cluster.world.rng.randint(2, len(NAMES))]
        super().__init__(cluster.world, Storm(cluster.world, cluster.network, cluster.coordinator, names), names)
        self._cluster = cluster
        self.users = ConnectorUsers(cluster, self.living)
        self.operators = Operators(cluster, self.living)
        cluster.on_failed = self._come_back
        cluster.on_drained = self._on_drained
        cluster.go_on = self._go_on
        self._set_homes()
        self._yet_to_join = list(self._homes[self._rng.randint(1, len(self._homes)) :])
        """Workers that start later, one by one."""
        own = {
            self._pause: 4,
            self._starve: 2,
            self._narrow: 2,
            self._kill: 4,
            self._kill_some: 1,
            self._kill_leader: 2,
            self._shut_down: 2,
            self.bury: 1,
            self._replace: 2,
            self._join: 3,
            self._read_late: 2,
            self._kill_query: 4,
            self._set_anew: 2,
            self._claim_anew: 2,
            self.operators.drain: 6,
            self.operators.uncordon: 2,
            self.operators.restart: 2,
            self.operators.forge: 1,
            self.users.put_connector: 3,
            self.users.put_many: 1,
            self.users.delete_many: 1,
            self.users.delete_connector: 1,
            self.users.set_target_state: 2,
        }
        # Each seed omits some faults: some bugs show only where other faults do not interfere.
        self._plan(
            {fault: weight for fault, weight in own.items() if self._rng.random() < 0.75},
            pauses_ms=(2_000, 6_000, 15_000, 40_000),
        )

    def _set_homes(self) -> None:
        # In some seeds all workers are static, in most seeds none, so that both also occur alone. The same for
        # protocols.
        static, mixed = self._rng.choice((0.0, 0.0, 0.5, 1.0)), self._rng.random() < 0.3
        claiming = self._rng.choice((0.0, 0.0, 0.3, 0.7))
        protocol = self._rng.choice((*ConnectProtocol, *[ConnectProtocol.STATIC] * 4))
        for name in self._homes:
            self._cluster.homes[name] = Home(
                instance_id=InstanceId(f"place-{name}") if self._rng.random() < static else None,
                protocol=self._rng.choice(list(ConnectProtocol)) if mixed else protocol,
                claims=self._some_claims() if self._rng.random() < claiming else None,
            )

    def _some_claims(self) -> Jobs:
        """Random claims: none; or a few jobs, some of which other workers also claim, or which are never configured."""
        if self._rng.random() < 0.2:
            return NO_JOBS
        connectors = [ConnectorName(name) for name in (*CONNECTORS, "absent")]
        tasks = [ConnectorTaskId(name, number) for name in connectors for number in range(4)]
        return Jobs(
            frozenset(name for name in connectors if self._rng.random() < 0.3),
            frozenset(task for task in tasks if self._rng.random() < 0.3),
        )

    def begin(self) -> None:
        for name in self._homes:
            if name not in self._yet_to_join:
                self._world.after(self._rng.randint(0, 4_000), partial(self.start, name))
        for number, connector in enumerate(CONNECTORS[: self._rng.randint(1, len(CONNECTORS))]):
            self._world.after(6_000 + 50 * number, partial(self.users.put, connector, self._rng.randint(1, 6)))
        self._next()
        self._look()

    def _look(self) -> None:
        self._cluster.watch.on_second()
        self._world.after(1_000, self._look)

    def end(self) -> None:
        """Start all workers except those in ``_gone_for_good``, and crash the coordinator once more."""
        self._cluster.reading_ms.clear()
        self._yet_to_join.clear()
        for process in by_name(self.living):
            self._resume(process)
        for name in self._homes:
            former = youngest(self.living, name)
            if (former is None or former.ending) and name not in self._gone_for_good:
                # After a load the coordinator has only the group's last elected protocol, and no older one (as in
                # Kafka): it refuses a worker without that protocol until there has been a round.
                home = self._cluster.homes[name]
                self._cluster.homes[name] = replace(home, protocol=ConnectProtocol.STATIC)
                self.start(name)
        if not self._cluster.config_log.names():
            self._world.after(6_000, partial(self.users.put, CONNECTORS[0], self._rng.randint(1, 6)))
        self._storm.crash_coordinator()

    def join_one_more(self) -> None:
        name = "one-more"
        self._cluster.homes[name] = Home(protocol=ConnectProtocol.STATIC)
        self.start(name)

    def lag_leader(self) -> None:
        """Make the leader read the config log 5 s late for 5 s: long enough for one round without assignments."""
        for process in by_name(self.living):
            if process.herder.place.is_leader:
                self._let_read_late(process.home, 5_000, lasts_ms=5_000)

    # -- faults ------------------------------------------------------------------------------------------------------

    def _resume(self, process: WorkerProcess) -> None:
        if not (process.alive and process.paused):
            return
        self._cluster.watch.on_resumed(process)
        super()._resume(process)
        if youngest(self.living, process.home) is not process and process.instance_id is None:
            # It was replaced while it was paused; the operator ends it as soon as it can be reached again.
            self._world.after(self._rng.randint(1, 3_000), partial(self._end, process))

    def _starve(self) -> None:
        """Overload a worker's host: responses arrive late, then the process pauses, then it resumes without a network.

        So a response stays in the socket during the pause, and no other follows it."""
        process = self._someone()
        if process is None or process.paused:
            return
        link = self._cluster.network.link(process.home)
        link.clogged_until_ms[Way.TO_WORKER] = self._world.now_ms + 1_500
        still_ms, cut_ms = self._rng.choice((4_000, 6_000)), self._rng.choice((3_000, 7_000))
        self._world.after(1_200, partial(self._stand_still, process, still_ms, cut_ms=cut_ms))

    def _narrow(self) -> None:
        name = self._rng.choice(self._homes)
        link = self._cluster.network.link(name)
        link.narrow = True
        self._world.record(RecordKind.NARROW, name)

        def heal() -> None:
            link.narrow = False

        self._world.after(self._rng.choice((8_000, 20_000)), heal)

    def _end(self, process: WorkerProcess) -> None:
        if process.alive:
            process.kill(RecordKind.REPLACED)
            self.start(process.home)  # if no other process of the worker runs by now

    def _replace(self) -> None:
        """Start a second process of a worker, as on another host when the first one cannot be reached: the first
        process pauses. With an instance id the first process may also keep running."""
        process = self._someone()
        if process is None or youngest(self.living, process.home) is not process:
            return
        if process.instance_id is None or self._rng.random() < 0.7:
            if process.paused:
                return
            process.pause()
            self._world.after(self._rng.choice((2_000, 8_000, 20_000)), partial(self._resume, process))
        WorkerProcess(self._cluster, self.living, process.home)

    def _kill_some(self) -> None:
        for _ in range(self._rng.randint(2, 3)):
            self._kill()

    def _kill_leader(self) -> None:
        """Kill the leader, in some cases while jobs are deferred."""
        for process in by_name(self.living):
            if process.herder.place.is_leader:
                process.kill(RecordKind.LEADER_KILLED)
                self._come_back(process.home)
                return

    def _shut_down(self) -> None:
        process = self._someone()
        if process is not None and not process.paused:
            process.shut_down()
            self._come_back(process.home)

    def _join(self) -> None:
        if self._yet_to_join:
            self.start(self._yet_to_join.pop())

    def _read_late(self) -> None:
        name = self._rng.choice(self._homes)
        ms = self._rng.choice((500, 2_000, 5_000, 9_000))
        self._let_read_late(name, ms, lasts_ms=self._rng.randint(1_000, 30_000))

    def _let_read_late(self, name: str, ms: int, *, lasts_ms: int) -> None:
        self._cluster.reading_ms[name] = ms
        self._world.record(RecordKind.READS_LATE, name, ms)

        def heal() -> None:
            self._cluster.reading_ms.pop(name, None)

        self._world.after(lasts_ms, heal)

    def _kill_query(self) -> None:
        """End a query, seldom because another worker took its checkpoint over. At times the process then pauses."""
        process = self._someone()
        if process is None or process.paused or not (tasks := process.runtime.mortal()):
            return
        process.runtime.die(self._rng.choice(tasks), is_held=self._rng.random() < 0.8)
        if self._rng.random() < 0.3:
            still_ms = self._rng.choice((2_000, 5_000, 8_000))
            self._world.after(self._rng.randint(1, 200), partial(self._stand_still, process, still_ms))

    def _stand_still(self, process: WorkerProcess, ms: int, *, cut_ms: int = 0) -> None:
        """Pause ``process`` for ``ms`` if it runs; unless ``cut_ms`` is 0, cut its link until ``cut_ms`` after that."""
        if process.alive and not process.paused and not self._over:
            process.pause()
            self._world.after(ms, partial(self._resume, process))
            if cut_ms:
                self._storm.cut(process.home, ms + cut_ms)

    def _set_anew(self) -> None:
        """Set another protocol for all workers, and restart them one after the other."""
        protocol = self._rng.choice(list(ConnectProtocol))
        self._world.record(RecordKind.PROTOCOL_SET, protocol.setting)
        between_ms = self._rng.choice((3_000, 8_000, 15_000))
        for number, name in enumerate(self._homes):
            self._world.after(number * between_ms, partial(self._bounce, name, protocol=protocol))

    def _claim_anew(self) -> None:
        claims = self._some_claims() if self._rng.random() < 0.6 else None
        self._bounce(self._rng.choice(self._homes), claims=claims)

    def _bounce(self, name: str, **settings: Any) -> None:
        if self._over:
            return
        self._cluster.homes[name] = replace(self._cluster.homes[name], **settings)
        process = youngest(self.living, name)
        if process is not None and not process.paused:
            process.shut_down()
            self._world.after(self._rng.choice((500, 3_000)), lambda: self.start(name))

    def _on_drained(self, home: str) -> None:
        """A drained worker never returns; or, while faults are injected, it may start again some time later."""
        if (self._over or self._rng.random() < 0.3) and len(self._homes) - len(self._gone_for_good) > 1:
            self._gone_for_good.add(home)
        else:
            self._come_back(home)

    def _go_on(self, home: str, place: PlaceHandover | None) -> None:
        if youngest(self.living, home) is None:
            WorkerProcess(self._cluster, self.living, home, place)

    def _come_back(self, home: str) -> None:
        in_ms = self._rng.choice((1_000, 4_000, 9_000, 30_000))
        # A worker that ends after the last fault starts again before the check for a settled group.
        self._world.after(1_000 if self._over else in_ms, lambda: self.start(home))

    def start(self, home: str) -> None:
        if home in self._gone_for_good or home in self._yet_to_join:
            return
        process = youngest(self.living, home)
        if process is None:
            WorkerProcess(self._cluster, self.living, home)
        elif process.ending:
            # The worker's previous process has not ended yet.
            self._world.after(500, lambda: self.start(home))
