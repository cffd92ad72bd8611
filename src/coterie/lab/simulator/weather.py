"""What goes wrong, and when: faults come at random, each heals by itself, and at the end all of them stop."""

from functools import partial

from coterie.herder.config_records import connector_line, deletion_lines
from coterie.lab.simulator.cluster import Cluster
from coterie.lab.simulator.faults import Faults
from coterie.lab.simulator.storm import Storm
from coterie.lab.simulator.worker import Process
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName

NAMES = ("w1", "w2", "w3", "w4", "w5")
CONNECTORS = ("alpha", "beta", "gamma", "delta")


class Weather(Faults[Process]):
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._workers = NAMES[: cluster.world.rng.randint(2, len(NAMES))]
        storm = Storm(cluster.world, cluster.network, cluster.coordinator, self._workers)
        super().__init__(cluster.world, storm, cluster.processes, self._workers)
        # In some seeds all are static, in most none, so that both are also seen alone.
        share = self._rng.choice((0.0, 0.0, 0.5, 1.0))
        cluster.static = frozenset(name for name in self._workers if self._rng.random() < share)
        self._incarnations = 0
        self._plan(
            {
                self._pause: 4,
                self._kill: 4,
                self._shut_down: 2,
                self._bury: 1,
                self._write_connector: 3,
                self._delete_connector: 1,
            },
            pauses_ms=(2_000, 6_000, 15_000, 40_000),
        )

    def begin(self) -> None:
        for connector in CONNECTORS[: self._rng.randint(1, len(CONNECTORS))]:
            self._write(connector)
        for name in self._workers:
            self._world.after(self._rng.randint(0, 4_000), partial(self._start, name))
        self._next()

    def end(self) -> None:
        """The faults stop: everything heals, whoever was to come back is back, and the coordinator dies once more."""
        self._world.say("the faults stop")
        self._over = True
        self._storm.heal()
        for name in self._workers:
            process = self._cluster.processes.get(name)
            if process is not None:
                self._resume(process)
            elif name not in self._gone_for_good:
                self._start(name)
        self._storm.crash_coordinator()

    # -- faults ------------------------------------------------------------------------------------------------------

    def _resume(self, process: Process) -> None:
        if process.alive and process.paused:
            self._cluster.watch.on_resumed(process)
        super()._resume(process)

    def _shut_down(self) -> None:
        process = self._someone()
        if process is not None and not process.paused:
            process.shut_down()
            self._come_back(process.home)

    def _come_back(self, home: str) -> None:
        self._world.after(self._rng.choice((1_000, 4_000, 9_000, 30_000)), lambda: self._start(home))

    def _start(self, name: str) -> None:
        if name in self._gone_for_good:
            return
        if name in self._cluster.processes:
            # Its former process has not ended yet (or another return was quicker).
            if self._cluster.processes[name].herder.leaving is not None:
                self._world.after(500, lambda: self._start(name))
            return
        Process(self._cluster, name)

    # -- what the user does ------------------------------------------------------------------------------------------

    def _write_connector(self) -> None:
        self._write(self._rng.choice(CONNECTORS))

    def _delete_connector(self) -> None:
        name = ConnectorName(self._rng.choice(CONNECTORS))
        if self._cluster.config_log.incarnation(name) is not None:
            self._world.say(f"connector {name} is deleted")
            self._cluster.config_log.append(deletion_lines(name), self._world.now_ms)
            self._cluster.read_config()

    def _write(self, connector: str) -> None:
        name, tasks_max = ConnectorName(connector), self._rng.randint(1, 6)
        self._world.say(f"connector {name} gets {tasks_max} tasks")
        incarnation = self._cluster.config_log.incarnation(name)
        if incarnation is None:
            self._incarnations += 1
            incarnation = Incarnation(f"life-{self._incarnations}")
        line = connector_line(name, {"connector.class": "Simulated", "tasks.max": str(tasks_max)}, incarnation)
        self._cluster.config_log.append([line], self._world.now_ms)
        self._cluster.read_config()
