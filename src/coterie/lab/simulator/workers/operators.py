"""Operators' REST requests to workers; and requests with forged task configs, which the leader must refuse."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from coterie.herder.group_protocol import protocol_of
from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.orders import CancelDrain, DrainWorker, RestartWorker, WorkerOrder
from coterie.herder.requests.refusals import SuccessWithoutContent
from coterie.herder.requests.writes import PutTaskConfigs
from coterie.herder.session_keys import Signature, SigningKey
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.sim_process import sorted_by_name
from coterie.lab.simulator.workers.cluster import SharedByWorkers
from coterie.lab.simulator.workers.worker import SimWorker
from coterie.nouns.jobs import ConnectorName

FORGED_BODY = b"task configs"
"""The body of a forged request with a signature: the bytes that the signature is said to sign."""


class Operators:
    """Sends the requests of operators in the simulation with one seed: drains, restarts, and forged task configs."""

    def __init__(self, cluster: SharedByWorkers, live_processes: Mapping[str, SimWorker]) -> None:
        self._cluster = cluster
        self._live_processes = live_processes
        self._world = cluster.world
        self._rng = cluster.world.rng

    def drain_random_worker(self) -> None:
        """Order a random worker to drain, if another worker remains that does not drain."""
        process = self._choose_worker_to_drain()
        if process is not None:
            self._send_order_and_store_if_accepted(process, "drain", DrainWorker(worker=process.service))

    def cancel_random_drain(self) -> None:
        """Order a random draining worker to end its drain, if there is one."""
        draining = [process for process in self._unpaused_processes_not_ending() if process.is_draining]
        if draining:
            process = self._rng.choice(draining)
            self._send_order_and_store_if_accepted(process, "uncordon", CancelDrain(worker=process.service))

    def restart_random_worker(self) -> None:
        """Order a random worker to restart: its process relaunches itself, and the next process continues the
        membership. In 30 % of the cases, if at least two workers do not drain, one of these is ordered to move its jobs
        to other workers before its restart; its next process joins as a new member."""
        if self._rng.random() < 0.3 and (process := self._choose_worker_to_drain()) is not None:
            self._send_order_and_store_if_accepted(
                process, "restart-and-move", RestartWorker(worker=process.service, moves_jobs=True)
            )
        elif running := self._unpaused_processes_not_ending():
            process = self._rng.choice(running)
            self._send_order_and_store_if_accepted(process, "restart", RestartWorker(worker=process.service))

    def _choose_worker_to_drain(self) -> SimWorker | None:
        """A random process that does not drain, if there is another one; otherwise None."""
        candidates = [process for process in self._unpaused_processes_not_ending() if not process.is_draining]
        return self._rng.choice(candidates) if len(candidates) > 1 else None

    def _send_order_and_store_if_accepted(self, process: SimWorker, order_name: str, order: WorkerOrder) -> None:
        """Send ``order`` to the worker of ``process``. If the worker accepts it, store in ``process`` that it drains,
        no longer drains, or is ending. ``order_name`` is the order's name in records."""

        def store_if_accepted(answer: Answer) -> None:
            is_done = isinstance(answer, SuccessWithoutContent)
            self._world.add_record(RecordKind.REQUESTED, process.name, order_name, is_done)
            match order:
                case DrainWorker() | RestartWorker(moves_jobs=True):
                    process.is_draining = process.is_draining or is_done
                case RestartWorker():
                    process.is_ending = process.is_ending or is_done
                case CancelDrain():
                    process.is_draining = process.is_draining and not is_done

        process.call_now_or_on_resume(lambda: process.rest.send_to_herder(order, store_if_accepted))

    def send_forged_task_configs(self) -> None:
        """Send task configs for a random connector with a random forged signature to the leader. Does nothing if there
        is no connector, or no leader that must refuse them."""
        names, leader = self._cluster.config_log.sorted_connector_names(), self._find_leader_requiring_signatures()
        if names and leader is not None:
            signature = self._rng.choice(self._forged_signatures(leader))
            self._send_forged_configs(leader, self._rng.choice(names), signature)

    def send_all_forged_task_configs(self) -> None:
        """Send task configs for every connector, once with every forged signature, to the leader. Does nothing if there
        is no leader that must refuse them."""
        leader = self._find_leader_requiring_signatures()
        if leader is None:
            return
        for name in self._cluster.config_log.sorted_connector_names():
            for signature in self._forged_signatures(leader):
                self._send_forged_configs(leader, name, signature)

    def _find_leader_requiring_signatures(self) -> SimWorker | None:
        """The process of the leader, if it runs without a pause, has its assignment, and the group's protocol signs
        requests; otherwise None. With another protocol a leader accepts task configs from any sender."""
        for process in self._unpaused_processes_not_ending():
            if (
                process.herder.place.is_leader_with_current_assignment
                and process.herder.place.has_current_assignment
                and protocol_of(process.herder).are_requests_signed(process.herder)
            ):
                return process
        return None

    def _forged_signatures(self, leader: SimWorker) -> Sequence[Signature | None]:
        """The signatures of forged requests: None for a request without a signature; a valid signature of another body,
        like one copied from another request; and a signature with another key. Only None if ``leader`` has read no
        session key."""
        key = leader.herder.config.session_key
        if key is None:
            return (None,)
        signing = SigningKey(key=key.key, algorithm=key.algorithm)
        return (
            None,
            replace(signing.signature(b"another body"), body=FORGED_BODY),
            replace(signing, key=self._rng.randbytes(32)).signature(FORGED_BODY),
        )

    def _send_forged_configs(self, leader: SimWorker, name: ConnectorName, signature: Signature | None) -> None:
        """Send task configs for the connector ``name`` with ``signature`` to ``leader``; the checker receives the
        response."""
        request = PutTaskConfigs(connector=name, configs=[{"forged": ""}], signature=signature)
        leader.rest.send_to_herder(request, partial(self._cluster.checker.check_forged_configs_refused, leader))

    def _unpaused_processes_not_ending(self) -> list[SimWorker]:
        """The processes that have not ended, are not paused, and were not ordered to end, sorted by name."""
        return [
            process for process in sorted_by_name(self._live_processes) if not (process.is_paused or process.is_ending)
        ]
