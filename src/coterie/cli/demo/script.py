"""The steps of the demo, from the first process to the comparison of its output. Each wait has a deadline."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from coterie.cli.demo import checker, flights
from coterie.cli.demo.display import Display
from coterie.cli.demo.feed import FILES
from coterie.cli.demo.kill import BatchInFlight, have_continued, kill_in_mid_batch
from coterie.cli.demo.observe import ALL_TASKS, Checkpoints, Placement, Progress, is_leader, is_settled, placement
from coterie.cli.demo.rebalances import Rebalances, listed
from coterie.cli.fleet import HOST, Fleet, FleetSettings, is_free
from coterie.cli.processes import Child, Children
from coterie.nouns.errors import CoterieError, WorldError
from coterie.nouns.jobs import ConnectorTaskId

WORKERS = 3
TRIGGER_MS = 2_000
"""The connectors' ``trigger.interval.ms``."""
SETTINGS = {
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "500",
    "rebalance.timeout.ms": "20000",
    "scheduled.rebalance.max.delay.ms": "4000",
    # Three Spark sessions on one small machine: each one is a local master with two threads.
    "spark.master": "local[2]",
}
"""The settings of the demo's workers that differ from those of other fleets."""
INITIAL_DELAY_MS = 1_000
"""How long the group waits for more workers before its first round."""
KILL_FROM, KILL_AT, KILL_UNTIL = 0.2, 0.22, 0.4
"""Fractions of all rows that are committed: the kill is first tried at ``KILL_AT``, and must come from ``KILL_FROM`` to
``KILL_UNTIL``, unless a worker ended before for another reason."""
UNTOUCHED_MIN = 3
"""At least so many tasks must never have been stopped in the whole demo."""
START_S = 600.0
"""How long the workers may take to start: three JVMs on a busy machine take minutes."""
FED_FILES = "files fed"
"""The name of the progress bar for the files that the feed has written."""
_POLL_INTERVAL_S = 0.3
"""How often the progress and the placement of tasks are read."""
_STANDSTILL_S = 45.0
"""If no file is written and no row is committed for this time, the demo stops waiting for missing rows."""


def run(*, data: Path | None, broker_port: int | None, rest_port: int | None) -> int:
    """Run the demo in ``data`` or a temporary folder.

    Returns the exit code: 0 if the output is correct, 130 after Ctrl-C, else 1, also after an error in a step, which is
    printed. The temporary folder is deleted unless the exit code is 1.

    :raises WorldError: when the demo cannot start: ``data`` is not an empty folder, the package with the input is not
        installed, or there are no free ports.
    """
    archive = flights.archive()
    if data is not None and data.exists() and not (data.is_dir() and not any(data.iterdir())):
        raise WorldError(f"{data} is not an empty folder: name a new one with --data.")
    folder = data.absolute() if data is not None else Path(tempfile.mkdtemp(prefix="coterie-demo-"))
    settings = FleetSettings(
        data=folder,
        broker_port=broker_port or _free_ports(1, preferred=9092),
        rest_port=rest_port or _free_ports(WORKERS, preferred=8083),
        worker_settings=SETTINGS,
        initial_delay_ms=INITIAL_DELAY_MS,
    )
    expected = {
        name: checker.expected_rows(name, checker.package_rows(archive)).num_rows for name in flights.CONNECTORS
    }
    is_right, is_interrupted = False, False
    with Display({FED_FILES: FILES, **expected}) as display:
        try:
            with Children(folder / "logs") as children:
                is_right = DemoRun(settings, children, display, archive, expected).run_demo()
        except (CoterieError, OSError) as error:
            display.say(f"The demo failed: {error}")
        except KeyboardInterrupt:
            is_interrupted = True
    if is_interrupted or (is_right and data is None):
        if data is None:
            shutil.rmtree(folder, ignore_errors=True)
        return 130 if is_interrupted else 0
    display.say(f"Data and logs are kept in {folder}")
    return 0 if is_right else 1


class OverdueError(WorldError):
    """A condition that the demo waits for did not become true in time."""


class DemoRun:
    """One run of the demo."""

    def __init__(
        self, settings: FleetSettings, children: Children, display: Display, archive: Path, expected: dict[str, int]
    ) -> None:
        """``archive`` is the zip file with the input, ``expected`` the number of output rows of each connector."""
        self._settings = settings
        self._children = children
        self._display = display
        self._archive = archive
        self._expected = expected
        self._flights = settings.data / "flights"
        self._out = settings.data / "out"
        self._fleet = Fleet(settings, children, display.say)
        self._checkpoints = Checkpoints(settings.data / "checkpoints")
        self._progress = Progress(self._checkpoints, self._out)
        self._rebalances = Rebalances(display.say)
        self._placement = Placement()
        self._done: dict[str, int] = {}
        self._feed: Child | None = None
        self._observed_at = 0.0

    def run_demo(self) -> bool:
        """Run all steps of the demo, and end all processes; returns whether the output is correct.

        :raises WorldError: when a step fails or takes too long.
        """
        say = self._display.say
        self._fleet.check_ports(WORKERS)
        try:
            port = self._settings.broker_port
            say(f"Starting the broker (port {port}) and {WORKERS} workers, each with its own Spark")
            self._fleet.start_broker()
            for number in range(WORKERS):
                self._fleet.start_worker(number)
            self._await_started(set(self._fleet.workers))
            say(f"The workers are ready; REST at {', '.join(map(self._settings.rest_url, range(WORKERS)))}")
            self._post_connectors()
            self._feed = self._children.start("feed", ["-m", "coterie.cli.demo.feed", str(self._flights)])
            say(f"The feed starts writing {FILES} files with 336,776 flights, five files a second")
            self._wait_until(lambda: self._placement.has_all_tasks, 60, f"all {len(ALL_TASKS)} tasks run")
            self._wait_until(
                lambda: self._committed_fraction() >= KILL_AT, 90, f"{KILL_AT:.0%} of the rows are committed"
            )
            killed, cut = self._kill()
            self._await_survivors(cut)
            say(f"Starting a replacement: worker-{killed}")
            self._fleet.start_worker(killed)
            self._await_started({killed})
            self._wait_until(lambda: self._owns(killed) and self._is_settled(), 60, "the replacement owns tasks")
            self._await_all_rows()
            self._check_untouched()
        except KeyboardInterrupt:
            say("Interrupted: stopping all processes")
            raise
        finally:
            self._fleet.close()
        say("All processes have ended; comparing the output with the package, row by row, without Spark")
        comparisons = checker.check(self._archive, self._out)
        for comparison in comparisons:
            say(str(comparison))
        is_right = all(comparison.is_right for comparison in comparisons)
        say("No row was lost, no row was duplicated." if is_right else "The output is wrong.")
        return is_right

    def _await_started(self, numbers: set[int]) -> None:
        """Wait until these workers are ready, and print each change of their startup status.

        :raises WorldError: when one of these workers has ended, or is not ready within ``START_S``.
        """
        shown: dict[int, str] = {}

        def have_started() -> bool:
            if dead := numbers - self._fleet.workers.keys():
                names = ", ".join(f"worker-{number}" for number in sorted(dead))
                raise WorldError(f"{names} ended during startup; the logs are in {self._settings.data}/logs")
            for number in sorted(numbers):
                stage = self._fleet.startup_status(number)
                if shown.get(number) != stage:
                    shown[number] = stage
                    self._display.say(f"worker-{number}: {stage or 'ready'}")
            return not any(shown.values())

        try:
            self._wait_until(have_started, START_S, "all workers are ready")
        except OverdueError:
            late = "; ".join(f"worker-{number}: {stage}" for number, stage in sorted(shown.items()) if stage)
            load, processors = os.getloadavg()[0], os.cpu_count()
            raise WorldError(
                f"After {START_S:.0f} s the workers have not started ({late}). Each one starts a JVM; the load of this "
                f"machine is {load:.1f} on {processors} processors. End other programs and run the demo again; the "
                f"logs are in {self._settings.data}/logs"
            ) from None

    # -- steps --------------------------------------------------------------------------------------------------------

    def _post_connectors(self) -> None:
        """Create the connectors, and wait until they exist."""
        configs = flights.connector_configs(flights=self._flights, out=self._out, trigger_ms=TRIGGER_MS)
        self._flights.mkdir(parents=True, exist_ok=True)
        for name, config in configs.items():
            self._wait_until(lambda name=name, config=config: self._post(name, config), 60, f"{name} is created")  # type: ignore[misc]
            self._display.say(
                f"Posted {name}: {config.get('transforms', 'no transforms')} into {config['sink.format']}"
            )

    def _post(self, name: str, config: dict[str, str]) -> bool:
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

    def _kill(self) -> tuple[int, list[BatchInFlight]]:
        """Kill the worker that owns most tasks, except the leader; returns its number and the interrupted batches.

        :raises WorldError: see :func:`.kill_in_mid_batch`; also when the kill came too early or too late
            (``KILL_FROM``, ``KILL_UNTIL``).
        """
        cut: list[BatchInFlight] = []
        while not cut:
            number = self._choose_victim()
            child, tasks = self._fleet.workers[number], self._tasks_of(number)
            self._display.say(
                f"{child.name} will be killed: it owns most tasks ({listed(tasks)}) and is not the leader"
            )
            cut = kill_in_mid_batch(child, tasks, self._checkpoints, deadline_s=30, meanwhile=self._observe)
            if not cut:
                self._display.say(f"{child.name} has ended before the demo killed it, so another worker is chosen")
        self._fleet.remove_killed_worker(number)
        self._count()
        share = self._committed_fraction()
        at = ", ".join(f"N = {one.batch} of {one.task}" for one in cut)
        self._display.say(
            f"SIGKILL for worker-{number} and its JVM in the middle of a batch, at {share:.0%} of the rows: "
            f"offsets/N exists and commits/N does not, for {at}, also after both processes have ended"
        )
        # If a worker ended before for another reason, its rebalance takes time, and the fraction may be any.
        if not KILL_FROM <= share <= KILL_UNTIL and not self._fleet.ended_workers:
            raise WorldError(
                f"The kill came when {share:.0%} of the rows were committed, "
                f"not between {KILL_FROM:.0%} and {KILL_UNTIL:.0%}."
            )
        return number, cut

    def _choose_victim(self) -> int:
        """Return the number of the worker that owns most tasks, except the leader.

        This waits until all tasks run, exactly one worker reports that it leads the group, and another worker owns
        tasks.

        :raises OverdueError: when that takes longer than 60 s.
        """
        owners: list[int] = []

        def is_known() -> bool:
            leaders = [number for number in self._fleet.workers if is_leader(self._settings.rest_url(number))]
            owners[:] = [number for number in self._fleet.workers if number not in leaders and self._owns(number)]
            return self._all_tasks_run_on_live_workers() and len(leaders) == 1 and bool(owners)

        self._wait_until(is_known, 60, "all tasks run and there is a worker to kill beside the leader")
        return max(owners, key=lambda number: (len(self._tasks_of(number)), -number))

    def _await_survivors(self, interrupted: list[BatchInFlight]) -> None:
        """Wait until other workers have repeated the ``interrupted`` batches and run all tasks.

        :raises WorldError: when that takes longer than 60 s, or a batch was not repeated as it was planned.
        """
        self._wait_until(
            lambda: have_continued(interrupted, self._checkpoints) and self._all_tasks_run_on_live_workers(),
            60,
            "the other workers have taken over the tasks and repeated the interrupted batches",
        )
        for one in interrupted:
            self._display.say(
                f"{one.task}: the new owner's first batch was N = {one.batch}, planned as before the kill"
            )

    def _await_all_rows(self) -> None:
        """Wait until all rows are committed, or until for ``_STANDSTILL_S`` no file was written and no row committed.

        In the latter case the checker reports the missing rows.

        :raises OverdueError: when that takes longer than 150 s.
        """
        latest, since = -1, time.monotonic()

        def is_over() -> bool:
            nonlocal latest, since
            count = sum(self._done.values())
            if count != latest:
                latest, since = count, time.monotonic()
            return all(self._done.get(name, 0) >= rows for name, rows in self._expected.items()) or (
                time.monotonic() - since > _STANDSTILL_S
            )

        self._wait_until(is_over, 150, "all rows are committed")

    def _check_untouched(self) -> None:
        """:raises WorldError: when fewer than ``UNTOUCHED_MIN`` tasks were started once and never stopped."""
        untouched = sorted(task for task, count in self._checkpoints.starts().items() if count == 1)
        self._display.say(
            f"Started once and never stopped: {len(untouched)} of {len(ALL_TASKS)} tasks ({listed(untouched)})"
        )
        # If a worker ended meanwhile for another reason, its tasks were stopped too, and there may be fewer.
        if len(untouched) < UNTOUCHED_MIN and not self._fleet.ended_workers:
            raise WorldError(f"Fewer than {UNTOUCHED_MIN} tasks ran through the whole demo without a stop.")

    # -- observing ----------------------------------------------------------------------------------------------------

    def _wait_until(self, condition: Callable[[], bool], deadline_s: float, what: str) -> None:
        """Wait until ``condition`` is true; ``what`` describes the condition in the error.

        :raises OverdueError: when ``condition`` is still false ``deadline_s`` after this call.
        :raises WorldError: when a task or the feed failed, all workers have ended, or the broker does not run.
        """
        deadline = time.monotonic() + deadline_s
        while True:
            self._observe()
            if condition():
                return
            if time.monotonic() > deadline:
                raise OverdueError(
                    f"Timed out after {deadline_s:.0f} s waiting until {what}; logs are in {self._settings.data}/logs"
                )
            time.sleep(0.1)

    def _observe(self) -> None:
        """Check the child processes and, every ``_POLL_INTERVAL_S``, read and show the progress.

        :raises WorldError: when a task or the feed failed, all workers have ended, or the broker does not run.
        """
        self._fleet.check_children()
        if not self._fleet.workers:
            raise WorldError("No worker is left.")
        if self._feed is not None and self._feed.exit_code not in (None, 0):
            raise WorldError(f"The feed has failed. The end of its log:\n{self._feed.tail()}")
        if time.monotonic() - self._observed_at < _POLL_INTERVAL_S:
            return
        self._observed_at = time.monotonic()
        self._count()
        seen = placement([self._settings.rest_url(number) for number in sorted(self._fleet.workers)])
        if seen is not None:
            self._placement = seen
            for task, trace in seen.failed.items():
                raise WorldError(f"{task} has failed:\n{trace}")
        if self._all_tasks_run_on_live_workers():
            names = {task: self._name(owner) for task, owner in self._placement.owners.items()}
            self._rebalances.report_if_changed(names, self._checkpoints.starts())
        owners = {f"worker-{number}": list(map(str, self._tasks_of(number))) for number in sorted(self._fleet.workers)}
        self._display.show(self._done, owners)

    def _count(self) -> None:
        """Count the files that the feed has written, and the committed rows of each connector."""
        self._done = {FED_FILES: len(list(self._flights.glob("*.csv")))}
        self._done |= {name: self._progress.committed(name) for name in self._expected}

    def _committed_fraction(self) -> float:
        """The fraction of all rows, of both connectors, that is committed."""
        return sum(self._done.get(name, 0) for name in self._expected) / sum(self._expected.values())

    def _all_tasks_run_on_live_workers(self) -> bool:
        """Whether every task runs on a worker whose process runs."""
        living = {self._worker_id(number) for number in self._fleet.workers}
        return self._placement.has_all_tasks and set(self._placement.owners.values()) <= living

    def _is_settled(self) -> bool:
        """Whether every task runs on a live worker, and all live workers report a settled group without a delay."""
        return self._all_tasks_run_on_live_workers() and is_settled(
            [self._settings.rest_url(number) for number in self._fleet.workers]
        )

    def _owns(self, number: int) -> bool:
        """Whether worker ``number`` runs a task."""
        return bool(self._tasks_of(number))

    def _tasks_of(self, number: int) -> list[ConnectorTaskId]:
        return self._placement.tasks_of(self._worker_id(number))

    def _worker_id(self, number: int) -> str:
        return f"{HOST}:{self._settings.rest_port + number}"

    def _name(self, worker_id: str) -> str:
        return f"worker-{int(worker_id.rpartition(':')[2]) - self._settings.rest_port}"


# -- helpers ----------------------------------------------------------------------------------------------------------


def _free_ports(count: int, *, preferred: int) -> int:
    """The first of ``count`` consecutive free ports, of all ports from ``preferred`` on.

    The system does not choose the port: it could also give that port to an outgoing connection of another process
    before the demo opens the port.

    :raises WorldError: when there are no ``count`` consecutive free ports.
    """
    for first in range(preferred, 65537 - count):
        if all(is_free(port) for port in range(first, first + count)):
            return first
    raise WorldError(f"There are no {count} consecutive free ports from {preferred} on.")
