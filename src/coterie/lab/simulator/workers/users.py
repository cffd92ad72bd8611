"""The users' REST requests about connectors. Each request is sent to a random worker; if this worker refuses it because
another worker is the leader, the request is sent to the leader."""

from collections.abc import Mapping
from functools import partial

from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.refusals import Problem, RequestRefused
from coterie.herder.requests.writes import DeleteConnector, PutConnector, SetTargetState, Write
from coterie.lab.simulator.records import RecordKind, RecordValue
from coterie.lab.simulator.sim_process import newest_process, sorted_by_name
from coterie.lab.simulator.workers.cluster import SharedByWorkers
from coterie.lab.simulator.workers.settings import worker_name_of
from coterie.lab.simulator.workers.worker import SimWorker
from coterie.nouns.jobs import ConnectorName
from coterie.nouns.states import TargetState

CONNECTOR_NAMES = ("alpha", "beta", "gamma", "delta")
"""The names of the connectors that users create, change and delete one at a time."""
BURST_CONNECTORS = tuple(f"burst-{number}" for number in range(6))
"""The names of the connectors that users create together and delete together."""


class ConnectorUsers:
    """Sends the requests of users in the simulation with one seed: they create, change, pause and delete connectors."""

    def __init__(self, cluster: SharedByWorkers, live_processes: Mapping[str, SimWorker]) -> None:
        self._cluster = cluster
        self._live_processes = live_processes
        self._world = cluster.world
        self._rng = cluster.world.rng
        self._config_count = 0

    # -- requests -----------------------------------------------------------------------------------------------------

    def put_random_connector(self) -> None:
        """Request to create a random connector with 0 to 6 tasks, or to change its config if it exists."""
        self.put_connector(self._rng.choice(CONNECTOR_NAMES), self._rng.randint(0, 6))

    def put_connector(self, name: str, tasks_max: int, *, state: TargetState | None = None) -> None:
        """Request to create the connector ``name`` with ``tasks_max`` tasks, or to change its config if it exists.
        ``state`` is the target state of a new connector (None: STARTED)."""
        self._config_count += 1
        # Half of the configs change only the number of tasks.
        config_version = str(self._config_count) if self._rng.random() < 0.5 else "any"
        config = {"connector.class": "Simulated", "tasks.max": str(tasks_max), "of": config_version}
        self._send_to_random_worker(
            PutConnector(connector=ConnectorName(name), config=config, may_replace=True, initial_state=state)
        )

    def delete_random_connector(self) -> None:
        """Request to delete a random connector, if there is one."""
        if names := self._cluster.config_log.sorted_connector_names():
            self._send_to_random_worker(DeleteConnector(connector=self._rng.choice(names)))

    def set_random_target_state(self) -> None:
        """Request a random target state for a random connector, if there is one."""
        if names := self._cluster.config_log.sorted_connector_names():
            state = self._rng.choice((TargetState.STARTED, TargetState.PAUSED, TargetState.STOPPED))
            self._send_to_random_worker(SetTargetState(connector=self._rng.choice(names), target_state=state))

    def put_connector_burst(self) -> None:
        """Request to create the first few connectors of `BURST_CONNECTORS`, or to change the configs of those that
        exist, all within a second."""
        for number, name in enumerate(BURST_CONNECTORS[: self._rng.randint(2, len(BURST_CONNECTORS))]):
            tasks_max, ms = self._rng.randint(1, 2), number * self._rng.choice((0, 20, 200))
            self._world.call_after(ms, partial(self.put_connector, name, tasks_max))

    def delete_connector_burst(self) -> None:
        """Request to delete those of `BURST_CONNECTORS` that exist."""
        for name in self._cluster.config_log.sorted_connector_names():
            if name in BURST_CONNECTORS:
                self._send_to_random_worker(DeleteConnector(connector=name))

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _send_to_random_worker(self, request: Write) -> None:
        """Send ``request`` to a random process of a worker, if there is one."""
        if processes := sorted_by_name(self._live_processes):
            self._send_following_leader(self._rng.choice(processes), request, forwards_left=2)

    def _send_following_leader(self, process: SimWorker, request: Write, *, forwards_left: int) -> None:
        """Send ``request`` to ``process``, and let the checker check a success. If the response is that another worker
        is the leader, send the request to that worker, ``forwards_left`` times at most. After another refusal the
        request is not sent again."""
        log = self._cluster.config_log
        log_end_at_request = log.end_offset

        def check_success_or_follow_leader(answer: Answer) -> None:
            if not isinstance(answer, RequestRefused):
                self._cluster.checker.check_acknowledged_write(request, process, log_end_at_request)
            elif answer.problem is Problem.NOT_LEADER and answer.redirect_url is not None and forwards_left:
                leader = newest_process(self._live_processes, worker_name_of(answer.redirect_url))
                if leader is not None:
                    self._send_following_leader(leader, request, forwards_left=forwards_left - 1)
            else:
                self._world.add_to_trace(f"{process.name} refuses a user's request: {answer.message}")

        self._world.add_record(RecordKind.REQUESTED, process.name, *_recorded_values_of_request(request))
        process.call_after(
            self._rng.randint(0, 10), lambda: process.rest.send_to_herder(request, check_success_or_follow_leader)
        )


def _recorded_values_of_request(request: Write) -> tuple[RecordValue, ...]:
    """The values of ``request`` in its record."""
    match request:
        case PutConnector(connector=name, config=config, initial_state=state):
            return "put", name, config["tasks.max"], config["of"], state
        case DeleteConnector(connector=name):
            return "delete", name
        case SetTargetState(connector=name, target_state=state):
            return "set", name, state
        case put_task_configs:
            return "put tasks", put_task_configs.connector
