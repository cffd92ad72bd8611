"""The faults of workers in a classic group: those of all workers, and changes of the group's protocol."""

from dataclasses import replace
from functools import partial
from typing import Any

from coterie.lab.simulator.fleet.cluster import SharedByClassicWorkers
from coterie.lab.simulator.fleet.settings import ClassicWorkerSetup
from coterie.lab.simulator.fleet.worker import ClassicGroupWorker
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.workers.process_faults import WorkersFaults
from coterie.nouns.ids import InstanceId
from coterie.nouns.membership import ClassicMembershipHandover, Handover
from coterie.wire.connect import ConnectProtocol


class ClassicGroupFaults(WorkersFaults[ClassicGroupWorker]):
    """Starts the workers of a classic group, and injects the faults and sends the requests of users and operators in
    the simulation with one seed."""

    _cluster: SharedByClassicWorkers

    def __init__(self, cluster: SharedByClassicWorkers) -> None:
        super().__init__(cluster, cluster.coordinator)
        self._choose_worker_setups()
        self._choose_and_set_worker_faults({self._change_protocol_and_restart_all: 2})

    def _choose_worker_setups(self) -> None:
        """Choose random settings for each worker: instance id, protocol and claims."""
        # In some seeds all workers are static, in most seeds none, so that both also occur alone. The same for
        # protocols.
        static_probability, has_mixed_protocols = self._rng.choice((0.0, 0.0, 0.5, 1.0)), self._rng.random() < 0.3
        claims_probability = self._rng.choice((0.0, 0.0, 0.3, 0.7))
        protocol = self._rng.choice((*ConnectProtocol, *[ConnectProtocol.STATIC] * 4))
        for name in self._services:
            self._cluster.worker_setups[name] = ClassicWorkerSetup(
                instance_id=InstanceId(f"place-{name}") if self._rng.random() < static_probability else None,
                protocol=self._rng.choice(list(ConnectProtocol)) if has_mixed_protocols else protocol,
                claims=self._random_claims_maybe_empty() if self._rng.random() < claims_probability else None,
            )

    def _change_worker_setup(self, name: str, **settings: Any) -> None:
        self._cluster.worker_setups[name] = replace(self._cluster.worker_setups[name], **settings)

    def _start_process(self, name: str, handover: Handover | None = None) -> None:
        assert handover is None or isinstance(handover, ClassicMembershipHandover), (
            "the handover is not that of a classic group"
        )
        ClassicGroupWorker(self._cluster, self.live_processes, name, handover)

    def _prepare_start_after_faults(self, name: str) -> None:
        # After a load the coordinator has only the group's last elected protocol, and no older one (as in Kafka): it
        # refuses a worker without that protocol until there has been a round.
        self._change_worker_setup(name, protocol=ConnectProtocol.STATIC)

    def _is_fenced_when_replaced(self, process: ClassicGroupWorker) -> bool:
        return process.instance_id is not None  # KIP-345 fences the former member.

    def start_additional_worker(self) -> None:
        """Start a worker that has not run in this simulation before, a dynamic member without claims."""
        name = "one-more"
        self._cluster.worker_setups[name] = ClassicWorkerSetup(protocol=ConnectProtocol.STATIC)
        self.start_service_if_missing(name)

    def _change_protocol_and_restart_all(self) -> None:
        """Set a random protocol as the newest one that all workers offer, and restart the workers one after the
        other."""
        protocol = self._rng.choice(list(ConnectProtocol))
        self._world.add_record(RecordKind.PROTOCOL_SET, protocol.setting)
        between_ms = self._rng.choice((3_000, 8_000, 15_000))
        for number, name in enumerate(self._services):
            self._world.call_after(number * between_ms, partial(self._restart_with_settings, name, protocol=protocol))
