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
from coterie.cli.demo.kill import BatchInFlight, assert_continued, kill_in_mid_batch
from coterie.cli.demo.observe import ALL_TASKS, Checkpoints, Placement, Progress, is_leader, is_settled, placement
from coterie.cli.demo.rebalances import Rebalances, listed
from coterie.cli.fleet import HOST, Fleet, FleetSettings, is_free
from coterie.cli.processes import Child, Children
from coterie.nouns.errors import CoterieError, WorldError
from coterie.nouns.jobs import ConnectorTaskId

WORKERS = 3
TRIGGER_MS = 2_000
SETTINGS = {
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "500",
    "rebalance.timeout.ms": "20000",
    "scheduled.rebalance.max.delay.ms": "4000",
    # Three Spark sessions on one small machine: each one is a local master with two threads.
    "spark.master": "local[2]",
}
INITIAL_DELAY_MS = 1_000
KILL_FROM, KILL_AT, KILL_UNTIL = 0.2, 0.22, 0.4
"""Fractions of all rows: the kill is first tried at ``KILL_AT``, and must come from ``KILL_FROM`` to ``KILL_UNTIL``."""
UNTOUCHED_MIN = 3
START_S = 600.0
"""How long the workers may take to start: three JVMs on a busy machine take minutes."""
FED = "files fed"
_LOOK_EVERY_S = 0.3
_STANDSTILL_S = 45.0
"""If all files are written and no new row is committed for this time, the demo stops waiting for missing rows."""


def run(*, data: Path | None, broker_port: int | None, rest_port: int | None) -> int:
    """Run the demo in ``data`` or a temporary folder; returns the exit code.

    :raises WorldError: when the demo cannot start.
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
    with Display({FED: FILES, **expected}) as display:
        try:
            with Children(folder / "logs") as children:
                is_right = Script(settings, children, display, archive, expected).play()
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


class Script:
    """One run of the demo."""

    def __init__(
        self, settings: FleetSettings, children: Children, display: Display, archive: Path, expected: dict[str, int]
    ) -> None:
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
        self._looked_at = 0.0

    def play(self) -> bool:
        """Run all steps of the demo; returns whether the output is correct.

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
            self._until(lambda: self._placement.is_whole, 60, f"all {len(ALL_TASKS)} tasks run")
            self._until(lambda: self._share() >= KILL_AT, 90, f"{KILL_AT:.0%} of the rows are committed")
            killed, cut = self._kill()
            self._await_survivors(cut)
            say(f"Starting a replacement: worker-{killed}")
            self._fleet.start_worker(killed)
            self._await_started({killed})
            self._until(lambda: self._owns(killed) and self._is_settled(), 60, "the replacement owns tasks")
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
        """Wait until these workers are ready, and print the startup status of each.

        :raises WorldError: when a worker has ended, or is not ready within ``START_S``.
        """
        shown: dict[int, str] = {}

        def have_started() -> bool:
            if dead := numbers - self._fleet.workers.keys():
                names = ", ".join(f"worker-{number}" for number in sorted(dead))
                raise WorldError(f"{names} ended during startup; the logs are in {self._settings.data}/logs")
            for number in sorted(numbers):
                stage = self._fleet.start_stage(number)
                if shown.get(number) != stage:
                    shown[number] = stage
                    self._display.say(f"worker-{number}: {stage or 'ready'}")
            return not any(shown.values())

        try:
            self._until(have_started, START_S, "all workers are ready")
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
        configs = flights.connector_configs(flights=self._flights, out=self._out, trigger_ms=TRIGGER_MS)
        self._flights.mkdir(parents=True, exist_ok=True)
        for name, config in configs.items():
            self._until(lambda name=name, config=config: self._post(name, config), 60, f"{name} is created")  # type: ignore[misc]
            self._display.say(
                f"Posted {name}: {config.get('transforms', 'no transforms')} into {config['sink.format']}"
            )

    def _post(self, name: str, config: dict[str, str]) -> bool:
        """Create the connector; returns whether it exists. False if a process cannot be reached: call again then."""
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
            raise WorldError(f"{name} was refused: {response.text}")
        # 409: an earlier attempt, whose response was lost, has created it.
        return response.status_code in (httpx.codes.CREATED, httpx.codes.CONFLICT)

    def _kill(self) -> tuple[int, list[BatchInFlight]]:
        """Kill the worker, not the leader, that owns most tasks; returns its number and the interrupted batches."""
        cut: list[BatchInFlight] = []
        while not cut:
            number = self._choose_victim()
            child, tasks = self._fleet.workers[number], self._tasks_of(number)
            self._display.say(
                f"{child.name} will be killed: it owns most tasks ({listed(tasks)}) and is not the leader"
            )
            cut = kill_in_mid_batch(child, tasks, self._checkpoints, deadline_s=30, meanwhile=self._look)
            if not cut:
                self._display.say(f"{child.name} has ended before the demo killed it, so another worker is chosen")
        self._fleet.forget(number)
        self._count()
        share = self._share()
        at = ", ".join(f"N = {one.batch} of {one.task}" for one in cut)
        self._display.say(
            f"SIGKILL for worker-{number} and its JVM in the middle of a batch, at {share:.0%} of the rows: "
            f"offsets/N exists and commits/N does not, for {at}, also after both processes have ended"
        )
        # If a worker ended before for another reason, its rebalance takes time, and the fraction may be any.
        if not KILL_FROM <= share <= KILL_UNTIL and not self._fleet.gone:
            raise WorldError(f"The kill came at {share:.0%}, not between {KILL_FROM:.0%} and {KILL_UNTIL:.0%}.")
        return number, cut

    def _choose_victim(self) -> int:
        """The worker, not the leader, that owns most tasks; waits until one worker reports that it leads the group."""
        owners: list[int] = []

        def is_known() -> bool:
            leaders = [number for number in self._fleet.workers if is_leader(self._settings.rest_url(number))]
            owners[:] = [number for number in self._fleet.workers if number not in leaders and self._owns(number)]
            return self._lives_whole() and len(leaders) == 1 and bool(owners)

        self._until(is_known, 60, "all tasks run and there is a worker to kill beside the leader")
        return max(owners, key=lambda number: (len(self._tasks_of(number)), -number))

    def _await_survivors(self, cut: list[BatchInFlight]) -> None:
        self._until(
            lambda: assert_continued(cut, self._checkpoints) and self._lives_whole(),
            60,
            "the other workers have taken over the tasks and repeated the interrupted batches",
        )
        for one in cut:
            self._display.say(
                f"{one.task}: the new owner's first batch was N = {one.batch}, planned as before the kill"
            )

    def _await_all_rows(self) -> None:
        """Wait until all rows are committed, or until no row was committed for ``_STANDSTILL_S``.

        In the latter case the checker reports the missing rows.
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

        self._until(is_over, 150, "all rows are committed")

    def _check_untouched(self) -> None:
        untouched = sorted(task for task, count in self._checkpoints.starts().items() if count == 1)
        self._display.say(
            f"Started once and never stopped: {len(untouched)} of {len(ALL_TASKS)} tasks ({listed(untouched)})"
        )
        # If a worker ended meanwhile for another reason, its tasks were stopped too, and there may be fewer.
        if len(untouched) < UNTOUCHED_MIN and not self._fleet.gone:
            raise WorldError(f"Fewer than {UNTOUCHED_MIN} tasks were never stopped.")

    # -- observing ----------------------------------------------------------------------------------------------------

    def _until(self, condition: Callable[[], bool], deadline_s: float, what: str) -> None:
        """Wait until ``condition`` is true.

        :raises OverdueError: when it does not become true in time.
        :raises WorldError: when a task failed.
        """
        deadline = time.monotonic() + deadline_s
        while True:
            self._look()
            if condition():
                return
            if time.monotonic() > deadline:
                raise OverdueError(
                    f"Timed out after {deadline_s:.0f} s waiting until {what}; logs are in {self._settings.data}/logs"
                )
            time.sleep(0.1)

    def _look(self) -> None:
        """Check the child processes and, every ``_LOOK_EVERY_S``, read and show the progress."""
        self._fleet.tend()
        if not self._fleet.workers:
            raise WorldError("No worker is left.")
        if self._feed is not None and self._feed.exit_code not in (None, 0):
            raise WorldError(f"The feed has failed. The end of its log:\n{self._feed.tail()}")
        if time.monotonic() - self._looked_at < _LOOK_EVERY_S:
            return
        self._looked_at = time.monotonic()
        self._count()
        seen = placement([self._settings.rest_url(number) for number in sorted(self._fleet.workers)])
        if seen is not None:
            self._placement = seen
            for task, trace in seen.failed.items():
                raise WorldError(f"{task} has failed:\n{trace}")
        if self._lives_whole():
            names = {task: self._name(owner) for task, owner in self._placement.owners.items()}
            self._rebalances.settled(names, self._checkpoints.starts())
        owners = {f"worker-{number}": list(map(str, self._tasks_of(number))) for number in sorted(self._fleet.workers)}
        self._display.show(self._done, owners)

    def _count(self) -> None:
        self._done = {FED: len(list(self._flights.glob("*.csv")))}
        self._done |= {name: self._progress.committed(name) for name in self._expected}

    def _share(self) -> float:
        """The fraction of all rows, of both connectors, that is committed."""
        return sum(self._done.get(name, 0) for name in self._expected) / sum(self._expected.values())

    def _lives_whole(self) -> bool:
        """Whether every task runs on a worker whose process runs."""
        living = {self._worker_id(number) for number in self._fleet.workers}
        return self._placement.is_whole and set(self._placement.owners.values()) <= living

    def _is_settled(self) -> bool:
        return self._lives_whole() and is_settled([self._settings.rest_url(number) for number in self._fleet.workers])

    def _owns(self, number: int) -> bool:
        return bool(self._tasks_of(number))

    def _tasks_of(self, number: int) -> list[ConnectorTaskId]:
        return self._placement.tasks_of(self._worker_id(number))

    def _worker_id(self, number: int) -> str:
        return f"{HOST}:{self._settings.rest_port + number}"

    def _name(self, worker_id: str) -> str:
        return f"worker-{int(worker_id.rpartition(':')[2]) - self._settings.rest_port}"


# -- helpers ----------------------------------------------------------------------------------------------------------


def _free_ports(count: int, *, preferred: int) -> int:
    """The first of ``count`` consecutive free ports, starting at the preferred one.

    It does not use a port that the system chooses: the system could also give that port to an outgoing connection of
    another process before the demo opens it.

    :raises WorldError: when there are no such ports.
    """
    for first in range(preferred, 65537 - count):
        if all(is_free(port) for port in range(first, first + count)):
            return first
    raise WorldError(f"There are no {count} consecutive free ports from {preferred} on.")
