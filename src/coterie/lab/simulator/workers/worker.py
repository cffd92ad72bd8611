"""One worker of a simulation: the real `herder`, and tasks whose starts and stops take time.

A worker is a name; its processes replace each other. Responses, events and timers of a paused process are delivered
when it resumes; those of a process that has ended are lost.
"""

from abc import abstractmethod
from json import loads
from typing import Self

from coterie.config.infos import ConfigInfos
from coterie.engine.log import NewTopicRecord
from coterie.herder import messages as herder
from coterie.herder.requests.refusals import RequestRefused
from coterie.herder.state import Herder
from coterie.herder.timers import Timer
from coterie.lab.simulator.invariants import AssertionsAsViolations
from coterie.lab.simulator.records import RecordKind, RecordValue, jobs_text
from coterie.lab.simulator.sim_process import newest_process, sorted_by_name
from coterie.lab.simulator.workers.cluster import SharedByWorkers
from coterie.lab.simulator.workers.config_client import ConfigLogClient
from coterie.lab.simulator.workers.process import WorkerProcess
from coterie.lab.simulator.workers.rest import RestEndpoints
from coterie.lab.simulator.workers.runtime import SimTaskRuntime
from coterie.lab.simulator.workers.settings import WorkerSetup, worker_name_of
from coterie.lab.simulator.world import SimTimers
from coterie.nouns.ids import WorkerUrl
from coterie.nouns.membership import (
    ConfirmLeadership,
    InstallTarget,
    Leave,
    LeaveAndRejoin,
    MembershipOrder,
    Rejoin,
    RequestGroupDescription,
    SendAssignments,
    SetConfiguredJobs,
    SetWorkerState,
    SuspendMembership,
)


class SimWorker(WorkerProcess):
    """One process of a worker: the real herder with its simulated shells. A subclass adds its member of the group."""

    def __init__(
        self,
        cluster: SharedByWorkers,
        live_processes: dict[str, Self],
        service: str,
        herder_state: Herder,
        setup: WorkerSetup,
    ) -> None:
        super().__init__(cluster.world, live_processes, service, herder_state, setup)
        self.cluster = cluster
        self.rest = RestEndpoints(self, cluster, self.feed_herder, self._endpoints_of_url)
        self.runtime = SimTaskRuntime(self, cluster, self.feed_herder)
        self.config_client = ConfigLogClient(self, cluster, self.feed_herder, self._let_every_process_fetch_log)
        self.herder_timers = SimTimers[Timer](
            self.world,
            lambda timer: self.call_now_or_on_resume(lambda: self.feed_herder(herder.TimerFired(timer=timer))),
        )

    def _feed_log_and_open_runtime_later(self) -> None:
        """Let the herder read the config log now; up to 1.5 s later, report to the herder that its task runtime is
        open."""
        self.config_client.feed_new_lines_to_herder()
        self.call_after(
            self.world.rng.randint(50, 1_500),
            lambda: self.feed_herder(herder.RuntimeOpened(wall_clock_ms=self.world.now_ms)),
        )

    @abstractmethod
    def _pass_order_to_member(self, order: MembershipOrder) -> None:
        """Pass ``order``, which the herder has given, to the member of this process."""

    @abstractmethod
    def _compute_target(self, chore: herder.ComputeTarget) -> None:
        """Compute a target assignment as ``chore`` orders; the herder receives the result as an event later."""

    @abstractmethod
    def _check_listener_news(self, effect: herder.NotifyRebalanceListeners) -> None:
        """Check the news of assigned, revoked or lost jobs that the herder orders to pass to the listeners of this
        worker's rebalances. Does nothing in this class."""

    def _add_process_record(self, kind: RecordKind, *values: RecordValue) -> None:
        """Add a record with the process's name as its first value."""
        self.world.add_record(kind, self.name, *values)

    # -- resume and end ----------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """End the pause. The callbacks that were due during the pause (responses and timers) are called in a random
        order."""
        self.resumed_at_ms = self.world.now_ms
        # Responses in sockets and due timers are handled in any order.
        self.world.rng.shuffle(self._missed_callbacks)
        super().resume()

    def kill(self, kind: RecordKind, *values: RecordValue) -> None:
        super().kill(kind, *values)
        self.running_tasks.clear()
        self.herder_timers.close()

    def shut_down(self) -> None:
        """Order a clean shutdown, as SIGTERM does."""
        self.is_ending = True
        self._add_process_record(RecordKind.SHUT_DOWN)
        self.call_now_or_on_resume(lambda: self.feed_herder(herder.ShutdownOrdered(reason="SIGTERM")))

    # -- other workers ------------------------------------------------------------------------------------------------

    def _endpoints_of_url(self, url: WorkerUrl) -> RestEndpoints | None:
        """The REST endpoints of the newest process of the worker with the URL ``url``; None if no process of this
        worker runs."""
        process = newest_process(self._live_processes, worker_name_of(url))
        return process.rest if process is not None else None

    def _let_every_process_fetch_log(self) -> None:
        """Let every process poll the config log, which has new lines."""
        for process in sorted_by_name(self._live_processes):
            process.config_client.fetch_and_feed_new_lines()

    # -- the herder --------------------------------------------------------------------------------------------------

    def feed_herder(self, event: herder.Event) -> None:
        """Step the herder with ``event``, and perform its effects, unless the process ends meanwhile."""
        with AssertionsAsViolations("herder"):
            output = self.cluster.steps.step_herder(self.herder, event, now_ms=self.world.now_ms)
        for effect in output.effects:
            if self.is_alive:
                self._perform_herder_effect(effect)

    def _perform_herder_effect(self, effect: herder.Effect) -> None:
        """Perform one effect of the herder."""
        match effect:
            case (
                herder.SetTimer()
                | herder.CancelTimer()
                | herder.WriteLogMessage()
                | herder.StopConnector()
                | herder.AbortTaskStart()
                | herder.SetLoggerLevel()
            ):
                self._perform_instant_effect(effect)
            case herder.Reply(id=id_, answer=answer):
                self._add_process_record(
                    RecordKind.REPLIES, id_, answer.problem if isinstance(answer, RequestRefused) else "done"
                )
                self.rest.deliver_answer(effect)
            case SetWorkerState(config_offset=config_offset, owned=owned, draining=draining):
                self._add_process_record(RecordKind.SUBSCRIBES, config_offset, jobs_text(owned), draining)
                self._pass_order_to_member(effect)
            case LeaveAndRejoin():
                self._add_process_record(RecordKind.ABANDONS)
                self._pass_order_to_member(effect)
            case Leave(is_permanent=is_permanent):
                self._add_process_record(RecordKind.LEAVES, is_permanent)
                self._pass_order_to_member(effect)
            case Rejoin() | SendAssignments():
                self._pass_order_to_member(effect)
            case (
                SetConfiguredJobs()
                | InstallTarget()
                | RequestGroupDescription()
                | SuspendMembership()
                | ConfirmLeadership()
            ):
                self._pass_order_to_member(effect)
            case herder.NotifyRebalanceListeners():
                self._check_listener_news(effect)
            case herder.Exit():
                self._exit_process(effect)
            case chore:
                self._begin_chore(chore)

    def _perform_instant_effect(
        self,
        effect: herder.SetTimer
        | herder.CancelTimer
        | herder.WriteLogMessage
        | herder.StopConnector
        | herder.AbortTaskStart
        | herder.SetLoggerLevel,
    ) -> None:
        """Perform an effect that takes no time and is not recorded."""
        match effect:
            case herder.SetTimer(timer=timer, at_ms=at_ms):
                self.herder_timers.set(timer, at_ms)
            case herder.CancelTimer(timer=timer):
                self.herder_timers.cancel(timer)
            case herder.WriteLogMessage(text=text):
                self.world.add_to_trace(f"{self.name}: {text}")
            case herder.StopConnector() | herder.AbortTaskStart():
                pass  # In this simulation a split keeps no state, and every start ends soon.
            case herder.SetLoggerLevel():
                pass  # All simulated workers share one process's loggers.

    def _exit_process(self, exit_order: herder.Exit) -> None:
        """Check the exit, and end the process as ``exit_order`` says. If the process relaunches itself, the next
        process of the worker starts up to 1.5 s later. Otherwise the end of a drained worker, or an exit code other
        than 0, is reported to a callback of `SharedByWorkers`. A clean shutdown is not reported."""
        self.cluster.checker.check_drained_process_exit(self, exit_order.exit_code)
        self.kill(RecordKind.EXITS, exit_order.exit_code, exit_order.relaunches)
        self.world.add_to_trace(f"{self.name} exits: {exit_order.reason}")
        if exit_order.relaunches:
            handover = exit_order.handover
            self.world.call_after(
                self.world.rng.randint(1, 1_500), lambda: self.cluster.relaunch(self.service, handover)
            )
        elif self.is_draining and not exit_order.exit_code:
            self.cluster.on_worker_drained(self.service)
        elif exit_order.exit_code:
            self.cluster.on_process_failed(self.service)

    def _begin_chore(self, chore: herder.Chore) -> None:
        """Begin ``chore``, an effect of the herder that takes time. Its result is an event for the herder."""
        rng = self.world.rng
        match chore:
            case herder.StartTask() | herder.RestartTask() | herder.StopTask():
                self.runtime.begin_chore(chore)
            case herder.SplitConnector(connector=connector, config=config, config_line_offset=config_line_offset):
                self._add_process_record(RecordKind.SPLITS, connector, config_line_offset)
                task_configs = [{"task": str(number), "of": config["of"]} for number in range(int(config["tasks.max"]))]
                connector_split = herder.SplitSucceeded(
                    connector=connector, config_line_offset=config_line_offset, task_configs=task_configs
                )
                self.call_after(rng.randint(5, 300), lambda: self.feed_herder(connector_split))
            case herder.ValidateConfig(id=request_id):
                valid = ConfigInfos(connector_class="", configs=())
                self.call_after(
                    rng.randint(1, 50),
                    lambda: self.feed_herder(herder.ConfigValidationCompleted(id=request_id, infos=valid)),
                )
            case herder.SendTaskConfigsToLeader(
                connector=connector, leader_url=url, configs=configs, signing_key=signing_key
            ):
                self._add_process_record(RecordKind.PUBLISHES, connector, url, len(configs), signing_key is not None)
                self.rest.publish_task_configs(chore)
            case herder.MakeSessionKey(size_bytes=size_bytes):
                self._add_process_record(RecordKind.SESSION_KEY, size_bytes)
                key = rng.randbytes(size_bytes)
                self.call_after(
                    rng.randint(1, 20),
                    lambda: self.feed_herder(herder.SessionKeyMade(key=key, wall_clock_ms=self.world.now_ms)),
                )
            case herder.FindConfigLogEnd() | herder.OpenLeaderLog() | herder.AppendConfigLines():
                self.config_client.begin_chore(chore)
            case herder.AppendStatusLines(lines=lines):
                self._add_process_record(RecordKind.STATUSES, *map(_status_text, lines))
                self.call_after(rng.randint(1, 50), lambda: self.feed_herder(herder.StatusAppendEnded()))
            case herder.CloseRequestIntake() | herder.CloseRuntime():
                self._close_intake_or_runtime(chore)
            case herder.ComputeTarget():
                self._compute_target(chore)
            case (
                Leave()
                | herder.CreateNextCheckpointGeneration()
                | herder.AskPlugins()
                | herder.ReadConnectorOffsets()
                | herder.ApplyOffsetChange()
            ):
                raise AssertionError(
                    f"bug in the herder or the simulator: the herder orders {type(chore).__name__}, which simulated "
                    "workers do not perform as a chore: Leave is an order to the member, and nothing in the simulation "
                    "closes a checkpoint generation or asks for plug-ins or offsets"
                )

    def _close_intake_or_runtime(self, chore: herder.CloseRequestIntake | herder.CloseRuntime) -> None:
        """Close the intake of requests or the task runtime, because the process is about to end. The herder receives
        the result as an event later."""
        rng = self.world.rng
        match chore:
            case herder.CloseRequestIntake():
                self._add_process_record(RecordKind.CLOSES_INTAKE)
                self.call_after(rng.randint(1, 50), lambda: self.feed_herder(herder.RequestIntakeClosed()))
            case herder.CloseRuntime():
                self._add_process_record(RecordKind.CLOSES_RUNTIME)
                self.runtime.close()
                self.call_after(rng.randint(1, 500), lambda: self.feed_herder(herder.RuntimeClosed()))


def _status_text(line: NewTopicRecord) -> str:
    """The key and the state of ``line``, a line of the status log, as text for a record; the state of a tombstone is
    the word None."""
    return f"{line.key.decode()}={loads(line.value)['state'] if line.value is not None else None}"
