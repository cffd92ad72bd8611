"""What operators order of workers over REST, and what somebody tries who is no worker at all."""

from dataclasses import replace
from functools import partial

from coterie.herder.requests import Answer, Done, DrainWorker, PutTaskConfigs, RestartWorker, UncordonWorker
from coterie.herder.session_keys import Signature, Signing
from coterie.lab.simulator.cluster import Cluster
from coterie.lab.simulator.worker import Process


class Operators:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._rng = cluster.world.rng

    def drain(self) -> None:
        """Never the last one that would take work."""
        stay = [process for process in self._working() if not process.drains]
        if len(stay) > 1:
            self.drain_one(self._rng.choice(stay))

    def drain_one(self, process: Process) -> None:
        def answered(answer: Answer) -> None:
            self._world.say(f"{process.name} is to drain: {type(answer).__name__}")
            process.drains = isinstance(answer, Done)

        process.soon(lambda: process.rest.ask(DrainWorker(worker=process.home), answered))

    def uncordon(self) -> None:
        draining = [process for process in self._working() if process.drains]
        if draining:
            process = self._rng.choice(draining)

            def answered(answer: Answer) -> None:
                self._world.say(f"{process.name} is called back: {type(answer).__name__}")
                process.drains = process.drains and not isinstance(answer, Done)

            process.soon(lambda: process.rest.ask(UncordonWorker(worker=process.home), answered))

    def restart(self) -> None:
        """Its process begins anew, in its place."""
        working = self._working()
        if working:
            process = self._rng.choice(working)

            def answered(answer: Answer) -> None:
                self._world.say(f"{process.name} is to begin anew: {type(answer).__name__}")
                process.ending = process.ending or isinstance(answer, Done)

            process.soon(lambda: process.rest.ask(RestartWorker(worker=process.home), answered))

    def forge(self) -> None:
        """Task configs from nobody: unsigned, or signed for something else, or with another key."""
        names = self._cluster.config_log.names()
        for process in self._working():
            key = process.herder.config.session_key
            if not (names and process.herder.is_leader and key is not None):
                continue
            signing = Signing(key=key.key, algorithm=key.algorithm)
            signature: Signature | None = self._rng.choice(
                (
                    None,
                    replace(signing.signature(b"another body"), body=b"task configs"),
                    replace(signing, key=self._rng.randbytes(32)).signature(b"task configs"),
                )
            )
            request = PutTaskConfigs(connector=self._rng.choice(names), configs=[{"forged": ""}], signature=signature)
            process.rest.ask(request, partial(self._cluster.watch.on_forged, process))
            return

    def _working(self) -> list[Process]:
        processes = (self._cluster.processes[name] for name in sorted(self._cluster.processes))
        return [process for process in processes if not (process.paused or process.ending)]
