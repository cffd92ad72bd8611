"""Operators' REST requests to workers, and requests with forged task configs."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from coterie.herder.requests import (
    Answer,
    Done,
    DrainWorker,
    PutTaskConfigs,
    RestartWorker,
    UncordonWorker,
    WorkerOrder,
)
from coterie.herder.rounds.spoken import are_requests_signed
from coterie.herder.session_keys import Signature, Signing
from coterie.lab.simulator.actor import by_name
from coterie.lab.simulator.fleet.cluster import Cluster
from coterie.lab.simulator.fleet.worker import WorkerProcess
from coterie.lab.simulator.records import RecordKind
from coterie.nouns.jobs import ConnectorName

FORGED_BODY = b"task configs"


class Operators:
    def __init__(self, cluster: Cluster, living: dict[str, WorkerProcess]) -> None:
        self._cluster = cluster
        self._living = living
        self._world = cluster.world
        self._rng = cluster.world.rng

    def drain(self) -> None:
        """Drain a worker, but never the last one that may be assigned jobs."""
        stay = [process for process in self._working() if not process.drains]
        if len(stay) > 1:
            self._order(self._rng.choice(stay), "drain", DrainWorker)

    def uncordon(self) -> None:
        draining = [process for process in self._working() if process.drains]
        if draining:
            self._order(self._rng.choice(draining), "uncordon", UncordonWorker)

    def restart(self) -> None:
        """Restart a worker: its process relaunches and keeps its membership."""
        working = self._working()
        if working:
            self._order(self._rng.choice(working), "restart", RestartWorker)

    def _order(self, process: WorkerProcess, what: str, order: type[WorkerOrder]) -> None:
        def answered(answer: Answer) -> None:
            is_done = isinstance(answer, Done)
            self._world.record(RecordKind.REQUESTED, process.name, what, is_done)
            if order is RestartWorker:
                process.ending = process.ending or is_done
            elif order is DrainWorker:
                process.drains = is_done
            elif is_done:
                process.drains = False

        process.soon(lambda: process.rest.ask(order(worker=process.home), answered))

    def forge(self) -> None:
        """Send forged task configs for a random connector to the leader."""
        names, leader = self._cluster.config_log.names(), self._leader()
        if names and leader is not None:
            signature = self._rng.choice(self._forgeries(leader))
            self._put_forged(leader, self._rng.choice(names), signature)

    def forge_all(self) -> None:
        """Send forged task configs for every connector, with every kind of forged signature. The leader refuses those
        of a stopped connector in any case."""
        leader = self._leader()
        if leader is None:
            return
        for name in self._cluster.config_log.names():
            for signature in self._forgeries(leader):
                self._put_forged(leader, name, signature)

    def _leader(self) -> WorkerProcess | None:
        """The leader, if it responds at once and the group's protocol signs requests; without signatures it accepts any
        task configs."""
        for process in self._working():
            if (
                process.herder.place.is_leader
                and process.herder.place.is_settled
                and are_requests_signed(process.herder)
            ):
                return process
        return None

    def _forgeries(self, leader: WorkerProcess) -> Sequence[Signature | None]:
        """No signature; a valid signature of another body, as if it had been recorded; a signature by another key."""
        key = leader.herder.config.session_key
        if key is None:
            return (None,)
        signing = Signing(key=key.key, algorithm=key.algorithm)
        return (
            None,
            replace(signing.signature(b"another body"), body=FORGED_BODY),
            replace(signing, key=self._rng.randbytes(32)).signature(FORGED_BODY),
        )

    def _put_forged(self, leader: WorkerProcess, name: ConnectorName, signature: Signature | None) -> None:
        request = PutTaskConfigs(connector=name, configs=[{"forged": ""}], signature=signature)
        leader.rest.ask(request, partial(self._cluster.watch.on_forged, leader))

    def _working(self) -> list[WorkerProcess]:
        return [process for process in by_name(self._living) if not (process.paused or process.ending)]
