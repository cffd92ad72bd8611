"""The users' REST requests about connectors. Each is sent to any worker; if that worker refers to the leader, the
request is sent to the leader."""

from functools import partial

from coterie.herder.requests import (
    Answer,
    DeleteConnector,
    Problem,
    PutConnector,
    RequestRefused,
    SetTargetState,
    Write,
)
from coterie.lab.simulator.fleet.cluster import Cluster
from coterie.lab.simulator.fleet.settings import worker_name_of
from coterie.lab.simulator.fleet.worker import WorkerProcess
from coterie.lab.simulator.records import RecordKind, RecordValue
from coterie.lab.simulator.sim_process import newest_process, sorted_by_name
from coterie.nouns.jobs import ConnectorName
from coterie.nouns.states import TargetState

CONNECTORS = ("alpha", "beta", "gamma", "delta")
"""The connectors that users create, change and delete one at a time."""
BURST = tuple(f"burst-{number}" for number in range(6))
"""Connectors that are created and deleted together."""


class ConnectorUsers:
    """Sends the requests of one seed."""

    def __init__(self, cluster: Cluster, living: dict[str, WorkerProcess]) -> None:
        self._cluster = cluster
        self._living = living
        self._world = cluster.world
        self._rng = cluster.world.rng
        self._configs = 0

    # -- requests -----------------------------------------------------------------------------------------------------

    def put_connector(self) -> None:
        """Put a random connector with a random number of tasks."""
        self.put(self._rng.choice(CONNECTORS), self._rng.randint(0, 6))

    def put(self, name: str, tasks_max: int, *, state: TargetState | None = None) -> None:
        """Create the connector ``name`` with ``tasks_max`` tasks, or change its config. ``state`` is the target state
        of a new connector (None: STARTED)."""
        self._configs += 1
        # Half of the configs change only the number of tasks.
        of = str(self._configs) if self._rng.random() < 0.5 else "any"
        config = {"connector.class": "Simulated", "tasks.max": str(tasks_max), "of": of}
        self._ask(PutConnector(connector=ConnectorName(name), config=config, replace=True, initial_state=state))

    def delete_connector(self) -> None:
        """Delete a random connector."""
        if names := self._cluster.config_log.names():
            self._ask(DeleteConnector(connector=self._rng.choice(names)))

    def set_target_state(self) -> None:
        """Set a random target state of a random connector."""
        if names := self._cluster.config_log.names():
            state = self._rng.choice((TargetState.STARTED, TargetState.PAUSED, TargetState.STOPPED))
            self._ask(SetTargetState(connector=self._rng.choice(names), target_state=state))

    def put_many(self) -> None:
        """Put some connectors of `BURST` within a short time."""
        for number, name in enumerate(BURST[: self._rng.randint(2, len(BURST))]):
            tasks_max, ms = self._rng.randint(1, 2), number * self._rng.choice((0, 20, 200))
            self._world.after(ms, partial(self.put, name, tasks_max))

    def delete_many(self) -> None:
        """Delete all connectors of `BURST`."""
        for name in self._cluster.config_log.names():
            if name in BURST:
                self._ask(DeleteConnector(connector=name))

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _ask(self, request: Write) -> None:
        """Send ``request`` to a random worker, if one runs."""
        if processes := sorted_by_name(self._living):
            self._send(self._rng.choice(processes), request, forwards=2)

    def _send(self, process: WorkerProcess, request: Write, *, forwards: int) -> None:
        """Send ``request`` to ``process``. If the worker responds that another one is the leader, send it there,
        ``forwards`` times at most."""
        log = self._cluster.config_log
        asked_at = log.end

        def answered(answer: Answer) -> None:
            if not isinstance(answer, RequestRefused):
                self._cluster.checker.on_write_acknowledged(request, process, asked_at)
            elif answer.problem is Problem.NOT_LEADER and answer.redirect_url is not None and forwards:
                leader = newest_process(self._living, worker_name_of(answer.redirect_url))
                if leader is not None:
                    self._send(leader, request, forwards=forwards - 1)
            else:
                self._world.say(f"{process.name} refuses a user's request: {answer.message}")

        self._world.record(RecordKind.REQUESTED, process.name, *_values(request))
        process.after(self._rng.randint(0, 10), lambda: process.rest.ask(request, answered))


def _values(request: Write) -> tuple[RecordValue, ...]:
    """The values of ``request`` in a record."""
    match request:
        case PutConnector(connector=name, config=config, initial_state=state):
            return "put", name, config["tasks.max"], config["of"], state
        case DeleteConnector(connector=name):
            return "delete", name
        case SetTargetState(connector=name, target_state=state):
            return "set", name, state
        case other:
            return "put tasks", other.connector
