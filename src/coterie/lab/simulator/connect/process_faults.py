"""The faults of workers in a connect group: those that workers of classic groups have, too; ends of connections that
only one side sees; repeated requests; failing assignors; and operators who change the configs of the group and remove
members."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from coterie.groups.connect.messages import RemoveMember, Request, SetGroupConfigs
from coterie.lab.simulator.connect.cluster import SharedByConnectWorkers
from coterie.lab.simulator.connect.settings import CONNECTION_GRACE_MS, SESSION_TIMEOUT_MAX_MS, ConnectWorkerSetup
from coterie.lab.simulator.connect.worker import ConnectGroupWorker
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.workers.process_faults import WorkersFaults
from coterie.lab.simulator.workers.settings import (
    REBALANCE_TIMEOUT_MS,
    SCHEDULED_REBALANCE_DELAY_MS,
    SESSION_TIMEOUT_MS,
    STOP_GRACE_MS,
)
from coterie.nouns.ids import InstanceId
from coterie.nouns.membership import ConnectMembershipHandover, Handover


class ConnectGroupFaults(WorkersFaults[ConnectGroupWorker]):
    """Starts the workers of a connect group, and injects the faults and sends the requests of users and operators in
    the simulation with one seed."""

    _cluster: SharedByConnectWorkers

    def __init__(self, cluster: SharedByConnectWorkers) -> None:
        super().__init__(cluster, cluster.coordinator)
        self._choose_worker_setups()
        cluster.assignor.fault_probability = self._rng.choice((0.0, 0.0, 0.1, 0.4))
        cluster.repeated_request_faults.repeat_probability = self._rng.choice((0.0, 0.02, 0.1))
        self._group_configs: dict[str, str] = {}
        self._choose_and_set_worker_faults(
            {
                self._end_connection_at_one_side: 6,
                self._restart_proxy: 2,
                self._restart_worker_with_other_assignor: 1,
                self._change_group_configs: 2,
                self._remove_random_member: 1,
            }
        )

    def _choose_worker_setups(self) -> None:
        """Choose random settings for each worker."""
        # In some seeds all workers are static, in most seeds none, so that both also occur alone.
        static_probability = self._rng.choice((0.0, 0.0, 0.5, 1.0))
        claims_probability = self._rng.choice((0.0, 0.0, 0.3, 0.7))
        server_probability = self._rng.choice((0.0, 0.0, 0.5, 1.0))
        # One worker may have less time to give jobs back than a stop takes: the coordinator removes it, and it returns.
        # Two such workers would never settle, since each return takes jobs from the other one.
        hurried = self._rng.choice((None, *self._services))
        for name in self._services:
            self._cluster.worker_setups[name] = ConnectWorkerSetup(
                instance_id=InstanceId(f"place-{name}") if self._rng.random() < static_probability else None,
                claims=self._random_claims_maybe_empty() if self._rng.random() < claims_probability else None,
                uses_server_assignor=self._rng.random() < server_probability,
                coordinator_hold_max_ms=self._rng.choice((0, 1_000, 5_000, 5_000)),
                connection_grace_ms=self._rng.choice((0, CONNECTION_GRACE_MS, CONNECTION_GRACE_MS)),
                rebalance_timeout_ms=STOP_GRACE_MS // 2 if name == hurried else REBALANCE_TIMEOUT_MS,
            )

    def _change_worker_setup(self, name: str, **settings: Any) -> None:
        self._cluster.worker_setups[name] = replace(self._cluster.worker_setups[name], **settings)

    def _start_process(self, name: str, handover: Handover | None = None) -> None:
        assert handover is None or isinstance(handover, ConnectMembershipHandover), (
            "the handover is not that of a connect group"
        )
        ConnectGroupWorker(self._cluster, self.live_processes, name, handover)

    def end_process_faults(self) -> None:
        """End the faults of the assignors and the repetition of requests; then do what the method of the base class
        does, which includes a crash of the coordinator."""
        self._cluster.assignor.fault_probability = 0.0
        self._cluster.repeated_request_faults.repeat_probability = 0.0
        super().end_process_faults()

    def start_additional_worker(self) -> None:
        """Start a worker that has not run in this simulation before, a dynamic member without claims."""
        name = "one-more"
        self._cluster.worker_setups[name] = ConnectWorkerSetup()
        self.start_service_if_missing(name)

    # -- faults -----------------------------------------------------------------------------------------------------

    def _end_connection_at_one_side(self) -> None:
        """End the connection of a random process so that only one side sees the end. One of three ends is chosen at
        random: the worker sees a reset, as from a firewall; the broker sees a reset; or the broker sees an orderly end,
        as from a proxy while the worker lives."""
        process = self._random_process()
        if process is None or process.connection is None:
            return
        connection = process.connection
        ends: list[tuple[str, str, Callable[[], None]]] = [
            ("worker", "RST", lambda: connection.break_at_worker_only("the connection was reset", within_ms=5)),
            ("broker", "RST", connection.reset_at_broker_unreported),
            ("broker", "FIN", connection.end_and_report_at_broker),
        ]
        side, kind, end = self._rng.choice(ends)
        self._world.add_record(RecordKind.CONNECTION_ENDS, process.service, side, kind)
        end()

    def _restart_proxy(self) -> None:
        """End the connections of about 80 % of the processes on both sides, as the restart of a proxy does while the
        workers live. The broker sees the orderly ends at once, the workers within 3 s at different times."""
        for process in self.live_processes.values():
            connection = process.connection
            if connection is not None and self._rng.random() < 0.8:
                self._world.add_record(RecordKind.CONNECTION_ENDS, process.service, "proxy", "FIN")
                connection.end_and_report_at_broker()
                connection.break_at_worker_only("the proxy has closed the connection", within_ms=3_000)

    def _restart_worker_with_other_assignor(self) -> None:
        """Switch a random worker between its own assignor and the assignor of the coordinator, and restart the
        worker."""
        name = self._rng.choice(self._services)
        self._restart_with_settings(
            name, uses_server_assignor=not self._cluster.worker_setups[name].uses_server_assignor
        )

    def _change_group_configs(self) -> None:
        """Let an operator set a random config of the group or, in 20 % of the cases, remove all configs of the
        group."""
        choices = {
            "connect.session.timeout.ms": (4_000, SESSION_TIMEOUT_MS, SESSION_TIMEOUT_MAX_MS),
            "connect.connection.grace.ms": (0, 500, CONNECTION_GRACE_MS),
            "connect.assignment.interval.ms": (0, 200, 1_000),
            "connect.heartbeat.interval.ms": (500, 1_000),
            "connect.scheduled.rebalance.max.delay.ms": (
                0,
                SCHEDULED_REBALANCE_DELAY_MS // 2,
                SCHEDULED_REBALANCE_DELAY_MS,
            ),
        }
        key = self._rng.choice(list(choices))
        if self._rng.random() < 0.2:
            self._group_configs.clear()
        else:
            self._group_configs[key] = str(self._rng.choice(choices[key]))
        configs = dict(self._group_configs)
        self._world.add_record(RecordKind.GROUP_CONFIGURED, *(f"{one}={value}" for one, value in configs.items()))
        self._pass_operator_request_if_up(
            lambda: SetGroupConfigs(reply_to=self._cluster.coordinator.fresh_reply_to(), configs=configs)
        )

    def _remove_random_member(self) -> None:
        """Let an operator remove the member of a random process from the group."""
        process = self._random_process()
        if process is not None:
            member_id = process.member_id
            self._world.add_record(RecordKind.MEMBER_REMOVED, member_id)
            self._pass_operator_request_if_up(
                lambda: RemoveMember(reply_to=self._cluster.coordinator.fresh_reply_to(), member_id=member_id)
            )

    def _pass_operator_request_if_up(self, make_request: Callable[[], Request]) -> None:
        """Pass an operator's request to the coordinator at once, if the coordinator runs. The response is ignored."""
        if self._cluster.coordinator.is_up:
            self._cluster.coordinator.serve("operator", make_request(), lambda response: None)
