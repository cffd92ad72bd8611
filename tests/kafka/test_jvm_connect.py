"""An unmodified Kafka Connect worker and two of our workers in one group, led by either side.

The first member leads. Each side has a connector class that the other side lacks: jobs of that class fail on workers
that lack it, and no other job fails. In a part of the tests all workers require that users log in. With
``COTERIE_RECORD=FOLDER`` in the environment the exchanged bytes are written there, for `tests.kafka.mixed_vectors`.
"""

import asyncio
import os
import signal
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from coterie.cli.options import with_login_options
from coterie.cli.plan import preview
from coterie.cli.workers import commands
from coterie.herder.seams import SplitResult, TaskSpec
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.nouns.membership import Assigned
from coterie.rest.access import NOT_LOGGED_IN_MESSAGE
from coterie.rest.endpoints import Role
from coterie.rest.leader import open_http_client
from coterie.rest.users import PasswordHash, RestUser, write_users
from coterie.wire.connect import ClassicAssignmentDetails, ConnectProtocol
from tests.broker.conftest import raw_client
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.kafka.faults.row import KEYS
from tests.kafka.jvm_connect import JvmWorker
from tests.kafka.mixed_vectors import record
from tests.kafka.tools import Tools
from tests.logger_levels import kept_logger_levels
from tests.worker.composed import Composed, ComposedFleet
from tests.worker.simulated import SimulatedRuntime, until

pytestmark = [pytest.mark.kafka, pytest.mark.processes, pytest.mark.timeout(240)]

DELAY_MS = 500
TASKS = 3
BOTH, THEIRS, OURS = "FileStreamSink", "FileStreamSource", "SimulatedSource"
"""Connector classes, by the workers that have them."""
TASK_CLASSES = {BOTH: "org.apache.kafka.connect.file.FileStreamSinkTask", OURS: "SimulatedSourceTask"}
CLAIMS = {
    "static_connectors": "c1,c2,c3",
    "static_tasks": ",".join(f"c{c}-{t}" for c in (1, 2, 3) for t in range(TASKS)),
}
SPOKEN = {"eager": ConnectProtocol.EAGER, "compatible": ConnectProtocol.COMPATIBLE, "static": ConnectProtocol.SESSIONED}
"""By our workers' setting: the protocol of a group whose JVM worker offers all of Kafka's protocols."""

USER, PASSWORD = "operator", "a-password"
"""The log-in of most requests, if users must log in; all users have this password."""
ROLES = {USER: Role.ADMIN, "reader": Role.READ, "ours-only": Role.ADMIN}
"""The users of our workers."""
JVM_USERS = (USER, "reader", "theirs-only")
"""The users of the JVM worker, which has no roles."""
LOGGER = "org.apache.kafka.connect.runtime.WorkerSinkTask"
"""A logger of the JVM worker, and on our workers another name of one of ours."""


def on(*brokers_and_protocols: str) -> pytest.MarkDecorator:
    """Run with all brokers and protocols in the soak tests, and with ``brokers_and_protocols`` in every test run."""
    return pytest.mark.parametrize(
        ("bootstrap", "protocol"),
        [
            pytest.param(
                broker,
                protocol,
                id=f"{broker}-{protocol}",
                marks=[] if f"{broker}-{protocol}" in brokers_and_protocols else [pytest.mark.soak],
            )
            for broker in ("embedded", "kafka")
            for protocol in SPOKEN
        ],
        indirect=["bootstrap"],
    )


Status = Mapping[str, Any]
"""As ``GET /connectors/{name}/status`` shows it."""


class LightRuntime(SimulatedRuntime):
    """Tasks that only report that they run, of all classes except Kafka's own one."""

    async def split(
        self,
        connector: ConnectorName,
        incarnation: Incarnation,
        config: Mapping[str, str],
        configs_of_checkpointed_tasks: Sequence[Mapping[str, str]],
        *,
        keeps_source_parts: bool = False,
    ) -> SplitResult:
        self._check(config)
        tasks = (await super().split(connector, incarnation, config, configs_of_checkpointed_tasks)).task_configs
        # Kafka's workers need these keys, and add them when they split a connector themselves.
        return SplitResult(
            task_configs=[{**task, "task.class": TASK_CLASSES[config["connector.class"]]} for task in tasks]
        )

    async def start(self, spec: TaskSpec) -> None:
        self._check(spec.config)
        await super().start(spec)

    def _check(self, config: Mapping[str, str]) -> None:
        if THEIRS in (config.get("connector.class"), config.get("task.class", "").rpartition(".")[2][:-4]):
            raise WorldError(f"No such connector: {THEIRS}")


class MixedGroup:
    """One JVM worker and some of our workers, in a new group."""

    def __init__(
        self, jvm: JvmWorker, fleet: ComposedFleet, client: httpx.AsyncClient, folder: Path, *, users_log_in: bool
    ) -> None:
        self.jvm = jvm
        self.fleet = fleet
        self.folder = folder
        self.users_log_in = users_log_in
        self._client = client

    async def start_jvm(self) -> str:
        """Start Kafka's own worker and wait until it is in the group; returns its REST URL."""
        self.jvm.start()
        await until(lambda: self.jvm.logged("Finished starting connectors and tasks"), within_s=100)
        assert self.jvm.url is not None, self.jvm.tail()
        url = self.jvm.url.rstrip("/")

        async def serves() -> bool:
            """It responds 404 to all requests until shortly after its herder has started."""
            return (await self._client.get(f"{url}/connectors")).status_code == 200

        await until(serves, within_s=100)
        return url

    async def start_ours(self, name: str, protocol: str, **claims: str) -> tuple[Composed, LightRuntime]:
        """``claims`` are ``static_connectors`` and ``static_tasks``."""
        runtime = LightRuntime()
        properties = {key.replace("_", "."): value for key, value in claims.items()}
        one = await self.fleet.start(name, runtime, {"connect.protocol": protocol, **properties})
        if self.users_log_in:
            one.client.auth = (USER, PASSWORD)
        await until(lambda: one.worker is not None and one.worker.phase == "running", within_s=100)
        return one, runtime

    async def until_one_group(self, *ours: Composed, leader: str) -> None:
        """Wait until all of our workers are settled in one generation that ``leader`` leads."""

        async def is_so() -> bool:
            views = [await one.view() for one in ours]
            groups = [view["group"] for view in views if view is not None and view["group"]["settled"]]
            return len(groups) == len(ours) and {
                (group["generation"], group["leader_url"].rstrip("/")) for group in groups
            } == {(groups[0]["generation"], leader)}

        try:
            await until(is_so, within_s=90)
        except TimeoutError:
            raise AssertionError([await one.view() for one in ours]) from None

    async def until_shown(self, url: str, states: Mapping[str, str]) -> Any:
        """Wait until the group's view at ``url`` shows these states by worker id; returns the view. A worker that does
        not respond within a second is UNREACHABLE for the moment."""
        shown: Any = None

        async def is_so() -> bool:
            nonlocal shown
            shown = await self.request("GET", f"{url}/coterie/group", status=200)
            return {member["worker_id"]: member["state"] for member in shown["members"]} == states

        try:
            await until(is_so, within_s=30)
        except TimeoutError:
            raise AssertionError(shown) from None
        return shown

    async def request(
        self, method: str, url: str, *, status: int, body: object = None, user: str = USER, password: str = PASSWORD
    ) -> Any:
        """The response's body, or the message of an error. ``user`` logs in, if users must."""
        answer = await self.send(method, url, status=status, body=body, user=user, password=password)
        if answer.is_error:
            return answer.json()["message"]
        return answer.json() if answer.content else None

    async def send(
        self, method: str, url: str, *, status: int, body: object = None, user: str = USER, password: str = PASSWORD
    ) -> httpx.Response:
        """As :meth:`request`, for a response whose body is no JSON or whose headers matter."""
        login = (user, password) if self.users_log_in else None
        answer = await self._client.request(method, url, json=body, auth=login)
        assert answer.status_code == status, f"{method} {url}: {answer.status_code} {answer.text}"
        return answer

    async def create(self, url: str, name: str, connector_class: str, *, status: int = 201) -> None:
        """Create a connector at the worker of ``url``; the response must have ``status``."""
        config = {"connector.class": connector_class, "tasks.max": str(TASKS), "file": str(self.folder / name)}
        topic = f"{name}-{uuid.uuid4().hex[:8]}"
        config |= {"topic": topic} if connector_class == THEIRS else {"topics": topic}
        answer = await self._client.post(f"{url}/connectors", json={"name": name, "config": config})
        assert answer.status_code == status, f"{url}: {answer.status_code} {answer.text}"

    async def until_all(
        self, urls: Sequence[str], names: Sequence[str], good: Callable[[Status], bool]
    ) -> list[Status]:
        """Wait until every worker of ``urls`` shows the same status of each connector, and it is ``good``.

        Returns the statuses in the order of ``names``.
        """
        seen: dict[tuple[str, str], Status] = {}

        async def is_so() -> bool:
            for url in urls:
                for name in names:
                    answer = await self._client.get(f"{url}/connectors/{name}/status")
                    seen[url, name] = answer.json()
                    if answer.status_code != 200 or not good(seen[url, name]):
                        return False
            return all(
                states_and_workers(seen[url, name]) == states_and_workers(seen[urls[0], name])
                for url in urls
                for name in names
            )

        try:
            await until(is_so, within_s=60)
        except TimeoutError:
            raise AssertionError(str(seen)) from None
        return [seen[urls[0], name] for name in names]

    def starts_of(self, task: str) -> int:
        """How often ``task`` has been started, by workers of either kind."""
        runtimes = [one.runtime for one in self.fleet.workers]
        ours = [str(start) for runtime in runtimes if isinstance(runtime, LightRuntime) for start in runtime.starts]
        return ours.count(task) + self.jvm.starts_of(task)

    async def until_started_again(self, starts: Mapping[str, int], *restarted: str) -> None:
        """Wait until the tasks ``restarted`` have been started once more than in ``starts``, which has the number of
        starts by task; the other tasks of ``starts`` must not have been started again."""
        expected = {task: count + (task in restarted) for task, count in starts.items()}
        try:
            await until(lambda: {task: self.starts_of(task) for task in starts} == expected)
        except TimeoutError:
            raise AssertionError(({task: self.starts_of(task) for task in starts}, expected)) from None


def states_and_workers(status: Status) -> list[tuple[str, str]]:
    """State and worker of the connector, then of each of its tasks."""
    return [(job["state"], job["worker_id"]) for job in (status["connector"], *status["tasks"])]


async def run_command(act: Callable[..., None]) -> None:
    """Run a command, with a log-in, in a thread."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("COTERIE_PASSWORD", PASSWORD)
        await asyncio.to_thread(with_login_options(act), user=USER)


async def error_of(act: Callable[[], None]) -> str:
    """The error of a command."""
    with pytest.raises(WorldError) as raised:
        await run_command(act)
    return str(raised.value)


def host(url: str) -> str:
    return url.removeprefix("http://")


def is_unassigned_by_claims(status: Status) -> bool:
    """Whether the connector is UNASSIGNED because no worker may run it."""
    connector = status["connector"]
    return connector["state"] == "UNASSIGNED" and "claim" in connector.get("trace", "")


def runs_except_on(workers_without_class: set[str], tasks: int) -> Callable[[Status], bool]:
    """Whether, of one connector, the jobs of ``workers_without_class`` have FAILED and all others run.

    If such a worker has the connector itself, the connector is not split into tasks.
    """

    def good(status: Status) -> bool:
        (connector, owner), *rest = states_and_workers(status)
        if owner in workers_without_class:
            return connector == "FAILED" and not rest
        states = [state == ("FAILED" if worker in workers_without_class else "RUNNING") for state, worker in rest]
        return connector == "RUNNING" and states == [True] * tasks

    return good


def has_waiting_jobs(one: Composed) -> bool:
    """Whether ``one`` received an assignment with a delay, for jobs of a departed worker."""
    return any(
        isinstance(event, Assigned) and ClassicAssignmentDetails.checked_instance(event.protocol_details).delay_ms > 0
        for event in one.events
    )


@pytest.fixture
def users_log_in(request: pytest.FixtureRequest) -> bool:
    """Whether users must log in at all workers of the group. Our workers require the protocols with a session key for
    that. With one broker only, so that the groups of that protocol are tested without a log-in, too."""
    params: Mapping[str, object] = request.node.callspec.params
    return (params.get("protocol"), params["bootstrap"]) == ("static", "kafka")


@pytest.fixture
async def mixed(
    bootstrap: str, tools: Tools, connect_plugins: Path, tmp_path: Path, users_log_in: bool
) -> AsyncIterator[MixedGroup]:
    group = f"mixed-{uuid.uuid4().hex[:8]}"
    common = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "config.storage.topic": f"{group}-configs",
        "offset.storage.topic": f"{group}-offsets",
        "status.storage.topic": f"{group}-statuses",
        "status.storage.partitions": "1",
        "scheduled.rebalance.max.delay.ms": str(DELAY_MS),
        "heartbeat.interval.ms": "500",
        "task.shutdown.graceful.timeout.ms": "2000",
    }
    passwords = dict.fromkeys(JVM_USERS, PASSWORD) if users_log_in else None
    jvm = JvmWorker(tools, tmp_path, common, plugin_jars=connect_plugins, passwords=passwords)
    ours = {**common, "checkpoint.location": str(tmp_path / "checkpoints")}
    async with AsyncExitStack() as stack:
        stack.enter_context(kept_logger_levels())
        client = open_http_client()
        stack.push_async_callback(client.aclose)
        if users_log_in:
            client.auth = (USER, PASSWORD)
            users, password = tmp_path / "users.json", PasswordHash.from_password(PASSWORD)
            write_users(users, {user: RestUser(role=role, password_hash=password) for user, role in ROLES.items()})
            ours["rest.users.file"] = str(users)
        stack.callback(jvm.end)
        fleet = ComposedFleet(ours, stack)
        yield MixedGroup(jvm, fleet, client, tmp_path, users_log_in=users_log_in)
        await fleet.stop()


@on("embedded-eager", "embedded-compatible", "kafka-static")
async def test_a_jvm_worker_runs_and_reports_what_our_leader_assigns(
    mixed: MixedGroup, protocol: str, request: pytest.FixtureRequest
) -> None:
    (a, runs_a), (b, runs_b) = await mixed.start_ours("a", protocol), await mixed.start_ours("b", protocol)
    await mixed.until_one_group(a, b, leader=a.url)
    jvm = await mixed.start_jvm()
    await mixed.until_one_group(a, b, leader=a.url)
    urls = [a.url, b.url, jvm]

    classes = {"c1": BOTH, "c2": OURS, "c3": BOTH, "c4": BOTH, "c5": BOTH, "c6": OURS}
    expected = [name for name, class_ in classes.items() if class_ == BOTH]
    for (name, class_), url in zip(classes.items(), [a.url, b.url, jvm] * 2, strict=True):
        # Kafka's worker validates a config before it forwards it, so it refuses classes that it lacks.
        await mixed.create(a.url if class_ == OURS else url, name, class_)
    statuses = await mixed.until_all(urls, expected, runs_except_on(set(), TASKS))
    statuses += await mixed.until_all(urls, ["c2", "c6"], runs_except_on({host(jvm)}, TASKS))
    jobs = [states_and_workers(status) for status in statuses]
    assert Counter(worker for (_, worker), *_ in jobs) == {host(url): 2 for url in urls}
    tasks = Counter(worker for _, *rest in jobs for _, worker in rest)
    assert tasks.keys() == {host(url) for url in urls}
    assert max(tasks.values()) - min(tasks.values()) <= 1
    assert any(owner == host(jvm) for (_, owner), *rest in jobs if rest), "no task of ours was published by the JVM"
    assert any(state == "FAILED" for job in jobs for state, _ in job), (
        "no job failed although the JVM lacks a class of ours"
    )
    await check_a_group_that_ours_leads(mixed, a, b, jvm, speaks=SPOKEN[protocol], jobs=jobs)

    moving = {status["name"] for status in statuses if status["connector"]["worker_id"] == host(jvm)}

    def starts() -> Counter[ConnectorTaskId]:
        """How often our workers have started each task. Without the tasks of the JVM worker's connectors: when that
        worker leaves, the new owner of a connector writes task configs of another kind."""
        return Counter(task for task in runs_a.starts + runs_b.starts if task.connector not in moving)

    assert protocol == "eager" or set(starts().values()) == {1}, "a task of ours was restarted"
    await check_requests_across_kinds(mixed, expected, b.url, jvm, urls)
    await check_a_restart_of_failed_tasks(mixed, ["c2", "c6"], b.url, jvm)
    if mixed.users_log_in:
        await check_log_ins_at_a_leader_of_ours(mixed, expected[0], jvm)

    before, running = starts(), {*runs_a.running, *runs_b.running}
    mixed.jvm.signal(signal.SIGTERM)
    await mixed.until_all([a.url, b.url], list(classes), runs_except_on(set(), TASKS))
    # A JVM that stops may leave RUNNING as the status of its last tasks: only what runs at a and b counts.
    await until(lambda: [len(runs.running) for runs in (runs_a, runs_b)] == [9, 9], within_s=60)
    if protocol != "eager":
        assert has_waiting_jobs(a)
        assert has_waiting_jobs(b)
        assert running.isdisjoint(starts() - before), "a task of ours was restarted"
    assert a.losses == b.losses == []
    with_jvm = {message_bytes.protocol for message_bytes in a.captured if message_bytes.member.startswith("connect-")}
    assert with_jvm == {SPOKEN[protocol].wire_name}
    record(os.environ.get("COTERIE_RECORD"), f"ours lead, {request.node.callspec.id}", a.captured)


async def check_a_group_that_ours_leads(
    mixed: MixedGroup,
    a: Composed,
    b: Composed,
    jvm: str,
    *,
    speaks: ConnectProtocol,
    jobs: Sequence[Sequence[tuple[str, str]]],
) -> None:
    """``a`` leads: the group's view contains all members, also the JVM worker, and every drain is refused."""
    states = {host(a.url): "STABLE", host(b.url): "STABLE", host(jvm): "UNREACHABLE"}
    shown = await mixed.until_shown(b.url, states)
    assert (shown["protocol"], shown["leader"]["worker_id"]) == (speaks.setting, host(a.url))
    owned = Counter(worker for job in jobs for _, worker in job)
    assert owned == {
        member["worker_id"]: len(member["owned"]["connectors"]) + len(member["owned"]["tasks"])
        for member in shown["members"]
    }
    for via in (a, b):
        for worker in (host(a.url), host(b.url)):
            message = await mixed.request("POST", f"{via.url}/coterie/workers/{worker}/drain", status=409)
            assert message.startswith(f"The group uses protocol {speaks.setting}, which cannot announce a drain")
        for order in ("drain", "restart"):
            message = await mixed.request("POST", f"{via.url}/coterie/workers/{host(jvm)}/{order}", status=409)
            assert message.startswith(f"The worker at {jvm}/ is a Kafka Connect worker")
    drain = partial(commands.drain_worker_and_wait, b.url, host(b.url))
    assert f"The group uses protocol {speaks.setting}, which cannot announce a drain" in await error_of(drain)
    leaves = partial(preview.show_plan, preview.ChangeOptions(remove=(host(jvm),)), url=b.url, file=None, as_json=False)
    if speaks is ConnectProtocol.EAGER:
        assert "protocol is eager" in await error_of(leaves)
    else:
        await run_command(leaves)
    await check_nothing_has_happened(mixed, a, b, generation=shown["generation"])


async def check_nothing_has_happened(mixed: MixedGroup, *ours: Composed, generation: int) -> None:
    for one in ours:
        view = await mixed.request("GET", f"{one.url}/coterie/worker", status=200)
        assert (view["draining"], view["group"]["generation"]) == (False, generation)


@on("embedded-static", "kafka-static")
async def test_our_workers_run_and_report_what_a_jvm_leader_assigns(
    mixed: MixedGroup, protocol: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    jvm = await mixed.start_jvm()
    (a, runs_a), (b, runs_b) = await mixed.start_ours("a", protocol), await mixed.start_ours("b", protocol, **CLAIMS)
    await mixed.until_one_group(a, b, leader=jvm)
    urls = [a.url, b.url, jvm]
    ours = {host(a.url), host(b.url)}

    # Forwarded to a leader that lacks the class.
    await mixed.create(a.url, "no", OURS, status=400)
    shared, theirs = ["c1", "c2", "c3"], ["d1", "d2", "d3"]
    for name, url in zip([*shared, *theirs], urls * 2, strict=True):
        await mixed.create(url, name, BOTH if name in shared else THEIRS)
    statuses = await mixed.until_all(urls, shared, runs_except_on(set(), TASKS))
    statuses += await mixed.until_all(urls, theirs, runs_except_on(ours, 1))
    jobs = [states_and_workers(status) for status in statuses]
    assert Counter(worker for (_, worker), *_ in jobs) == {host(url): 2 for url in urls}
    assert any(owner in ours for (_, owner), *_ in jobs[:3]), "no task of the JVM was published by one of ours"
    assert any(state == "FAILED" for job in jobs[3:] for state, _ in job), (
        "no job failed although our workers lack a class of the JVM's"
    )
    record(os.environ.get("COTERIE_RECORD"), f"a JVM leads, {request.node.callspec.id}", a.captured + b.captured)
    ignored = [line for line in caplog.messages if "static.connectors and static.tasks are ignored" in line]
    assert len(ignored) == (protocol == "static"), "a worker with claims logs once that they are ignored"
    await check_a_group_that_a_jvm_leads(mixed, a, b, jvm)
    await check_requests_across_kinds(mixed, shared, b.url, jvm, urls)
    if mixed.users_log_in:
        await check_log_ins_at_a_jvm_leader(mixed, shared[0], b.url)

    await a.stop()
    await mixed.until_all([b.url, jvm], shared, runs_except_on(set(), TASKS))
    assert has_waiting_jobs(b) == (protocol != "eager")
    mixed.jvm.signal(signal.SIGTERM)
    await mixed.until_all([b.url], shared, runs_except_on(set(), TASKS))
    await mixed.until_one_group(b, leader=b.url)
    await until(lambda: len(runs_b.running) == 3 * TASKS, within_s=60)
    assert not runs_a.running
    assert b.losses == []
    if protocol == "static":
        # The group uses static now, so claims apply: no worker may run jobs of a connector other than c1, c2 and c3.
        # A worker that releases a job reports UNASSIGNED without a reason; the leader's status with the reason follows.
        await mixed.until_all([b.url], theirs, is_unassigned_by_claims)


async def check_a_group_that_a_jvm_leads(mixed: MixedGroup, a: Composed, b: Composed, jvm: str) -> None:
    """A Connect leader has no view of the group: our workers report that and their own view at once."""
    before = await mixed.request("GET", f"{b.url}/coterie/worker", status=200)
    place = before["group"]
    expected = (
        f"The leader at {jvm}/ is a Kafka Connect worker",
        "drains and static assignments are not possible",
        f"Generation {place['generation']} uses protocol {place['protocol']}",
        "GET /connectors?expand=status",
    )
    outputs = [
        await mixed.request("GET", f"{a.url}/coterie/group", status=409),
        await mixed.request("POST", f"{a.url}/coterie/workers/b/drain", status=409),
        await mixed.request("POST", f"{a.url}/coterie/workers/{host(b.url)}/restart", status=409),
        await error_of(partial(commands.show_group, b.url, as_json=False)),
        await error_of(partial(commands.drain_worker_and_wait, b.url, "a")),
        await error_of(
            partial(preview.show_plan, preview.ChangeOptions(remove=("a",)), url=a.url, file=None, as_json=False)
        ),
    ]
    assert all(part in text for part in expected for text in outputs), outputs
    message = await mixed.request("POST", f"{b.url}/coterie/workers/{host(b.url)}/drain", status=409)
    assert message.startswith(f"The group uses protocol {place['protocol']}, which cannot announce a drain")
    await check_nothing_has_happened(mixed, a, b, generation=place["generation"])


async def check_requests_across_kinds(
    mixed: MixedGroup, connectors: Sequence[str], ours: str, jvm: str, urls: Sequence[str]
) -> None:
    """Requests at a worker of ours act on the jobs of the JVM worker, and the other way round.

    One of ``connectors`` must have tasks on workers of both kinds.
    """
    for status in await mixed.until_all(urls, connectors, runs_except_on(set(), TASKS)):
        name = status["name"]
        jobs = states_and_workers(status)
        theirs = [task["id"] for task in status["tasks"] if task["worker_id"] == host(jvm)]
        if theirs and len(theirs) < TASKS:
            break
    else:
        raise AssertionError(f"no connector of {connectors} has tasks on workers of both kinds")
    await check_restarts(mixed, name, ours, jvm, theirs)
    [status] = await mixed.until_all(urls, [name], runs_except_on(set(), TASKS))
    assert states_and_workers(status) == jobs, "a restart has moved a job"
    await check_target_states(mixed, name, ours, jvm, urls)
    await check_logger_levels(mixed, ours, jvm)


async def check_restarts(mixed: MixedGroup, name: str, ours: str, jvm: str, theirs: Sequence[int]) -> None:
    """The whole connector, then each task, is restarted through a worker of the other kind than its own. ``theirs`` are
    the numbers of the tasks that the JVM worker has."""
    tasks = [f"{name}-{number}" for number in range(TASKS)]
    for url in (ours, jvm):
        starts = {task: mixed.starts_of(task) for task in tasks}
        shown = await mixed.request("POST", f"{url}/connectors/{name}/restart?includeTasks=true", status=202)
        assert {state for state, _ in states_and_workers(shown)} == {"RESTARTING"}
        await mixed.until_started_again(starts, *tasks)
    for number, task in enumerate(tasks):
        starts = {one: mixed.starts_of(one) for one in tasks}
        url = ours if number in theirs else jvm
        await mixed.request("POST", f"{url}/connectors/{name}/tasks/{number}/restart", status=204)
        await mixed.until_started_again(starts, task)


async def check_a_restart_of_failed_tasks(mixed: MixedGroup, connectors: Sequence[str], ours: str, jvm: str) -> None:
    """A restart of only what is FAILED is a restart of the JVM worker's tasks, whose class it lacks."""

    def states_by_task(status: Status) -> Mapping[str, str]:
        return {f"{status['name']}-{task['id']}": task["state"] for task in status["tasks"]}

    statuses = await mixed.until_all([ours], connectors, runs_except_on({host(jvm)}, TASKS))
    status, *_ = [one for one in statuses if "FAILED" in states_by_task(one).values()]
    states = states_by_task(status)
    starts = {task: mixed.starts_of(task) for task in states}
    path = f"/connectors/{status['name']}/restart?includeTasks=true&onlyFailed=true"
    shown = await mixed.request("POST", f"{ours}{path}", status=202)
    restarted = {task: "RESTARTING" if state == "FAILED" else state for task, state in states.items()}
    assert states_by_task(shown) == restarted
    await mixed.until_started_again(starts, *(task for task, state in states.items() if state == "FAILED"))
    # Kafka's worker does not report that a restart has failed because it lacks the class.
    await mixed.until_all([ours, jvm], [status["name"]], lambda one: states_by_task(one) == restarted)


async def check_target_states(mixed: MixedGroup, name: str, ours: str, jvm: str, urls: Sequence[str]) -> None:
    """The connector is paused, resumed, stopped and resumed, through workers of different kinds."""
    runs = runs_except_on(set(), TASKS)
    for first, second in ((ours, jvm), (jvm, ours)):
        await mixed.request("PUT", f"{first}/connectors/{name}/pause", status=202)
        await mixed.until_all(urls, [name], is_paused)
        await mixed.request("PUT", f"{second}/connectors/{name}/resume", status=202)
        await mixed.until_all(urls, [name], runs)
        await mixed.request("PUT", f"{first}/connectors/{name}/stop", status=204)
        await mixed.until_all(urls, [name], is_stopped)
        await mixed.request("PUT", f"{second}/connectors/{name}/resume", status=202)
        await mixed.until_all(urls, [name], runs)


async def check_logger_levels(mixed: MixedGroup, ours: str, jvm: str) -> None:
    """A level for all workers, set at one worker, is applied by a worker of the other kind."""
    for url, other, level in ((ours, jvm, "DEBUG"), (jvm, ours, "ERROR")):
        path = f"/admin/loggers/{LOGGER}"
        before = await mixed.request("GET", f"{other}{path}", status=200)
        assert before["level"] != level
        await mixed.request("PUT", f"{url}{path}?scope=cluster", status=204, body={"level": level})

        async def is_applied(shown_at: str = f"{other}{path}", level: str = level) -> bool:
            return bool((await mixed.request("GET", shown_at, status=200))["level"] == level)

        await until(is_applied)


async def check_log_ins_at_a_leader_of_ours(mixed: MixedGroup, connector: str, jvm: str) -> None:
    """The JVM worker checks a log-in, and forwards it to our leader, which checks it again and has roles."""
    url = f"{jvm}/connectors/{connector}"
    refusal = await mixed.send("DELETE", url, status=401, password="wrong")
    assert refusal.text == NOT_LOGGED_IN_MESSAGE
    message = await mixed.request("DELETE", url, status=403, user="reader")
    assert message.startswith("User reader has the role read")
    # The leader responds 401 with Connect's text. A JVM worker can read only JSON, from a JVM leader, too.
    message = await mixed.request("DELETE", url, status=500, user="theirs-only")
    assert message.startswith(
        f"IO Error trying to forward REST request: Unrecognized token '{NOT_LOGGED_IN_MESSAGE[:4]}'"
    )


async def check_log_ins_at_a_jvm_leader(mixed: MixedGroup, connector: str, ours: str) -> None:
    """Our worker checks a log-in and its role, and forwards it to the JVM leader, which checks the log-in again."""
    url = f"{ours}/connectors/{connector}"
    await mixed.request("DELETE", url, status=403, user="reader")
    for user, password in ((USER, "wrong"), ("ours-only", PASSWORD)):
        refusal = await mixed.send("DELETE", url, status=401, user=user, password=password)
        assert refusal.text == NOT_LOGGED_IN_MESSAGE
        assert refusal.headers["WWW-Authenticate"].startswith("Basic ")


def test_a_connect_worker_with_exactly_once_runs_on_the_embedded_broker(
    tools: Tools, embedded_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """With exactly-once the leader writes to the config topic in transactions, and fences the former leader."""
    group_id = f"connect-{uuid.uuid4().hex[:8]}"
    topics = {f"{what}.storage.topic": f"{group_id}-{what}" for what in ("config", "offset", "status")}
    worker = JvmWorker(
        tools,
        tmp_path,
        {
            "bootstrap.servers": embedded_broker.bootstrap_servers,
            "group.id": group_id,
            **topics,
            "plugin.path": str(tmp_path),
            "exactly.once.source.support": "enabled",
        },
    )
    worker.start()
    try:
        worker.wait_logged("Finished starting connectors and tasks")
        worker.wait_logged(f"transactionalId=connect-cluster-{group_id}] ProducerId set to")
        with raw_client(embedded_broker.port) as client:
            found = client.ask(KEYS["ListConfigResources"], 1, resource_types=(2,)).config_resources
        assert set(topics.values()) <= {topic.resource_name for topic in found}
        worker.signal(signal.SIGTERM)
        worker.wait_logged("Kafka Connect stopped")
    finally:
        worker.end()
    assert not worker.logged(" ERROR ")


@pytest.mark.soak
@pytest.mark.parametrize("bootstrap", ["embedded", "kafka"], indirect=True)
async def test_a_connect_cluster_is_migrated_in_place_and_back(mixed: MixedGroup, bootstrap: str) -> None:
    """The steps of docs/migration.md; each line of the file is read exactly once before and after."""
    jvm = await mixed.start_jvm()
    topic, lines = f"lines-{uuid.uuid4().hex[:8]}", mixed.folder / "lines"
    made = {f"topic.creation.default.{key}": "1" for key in ("partitions", "replication.factor")}
    theirs = {"connector.class": THEIRS, "tasks.max": "1", "file": str(lines), "topic": topic, **made}
    lines.write_text("1\n2\n3\n")
    await mixed.request("POST", f"{jvm}/connectors", status=201, body={"name": "c", "config": theirs})
    await mixed.until_all([jvm], ["c"], runs_except_on(set(), 1))
    await asyncio.to_thread(read_until, bootstrap, topic, ["1", "2", "3"])

    await mixed.request("PUT", f"{jvm}/connectors/c/stop", status=204)
    await mixed.until_all([jvm], ["c"], is_stopped)
    (a, _), (b, _) = await mixed.start_ours("a", "static"), await mixed.start_ours("b", "static")
    await mixed.until_one_group(a, b, leader=jvm)
    await mixed.until_all([a.url, b.url, jvm], ["c"], is_stopped)
    mixed.jvm.signal(signal.SIGTERM)
    await until(lambda: mixed.jvm.logged("Kafka Connect stopped"), within_s=60)
    leader = await until_ours_lead(a, b)
    await mixed.until_all([a.url, b.url], ["c"], is_stopped)

    ours = {"connector.class": OURS, "tasks.max": str(TASKS)}
    await mixed.request("PUT", f"{leader}/connectors/c/config", status=200, body=ours)
    await mixed.request("PUT", f"{a.url}/connectors/c/resume", status=202)
    await mixed.until_all([a.url, b.url], ["c"], runs_except_on(set(), TASKS))

    await mixed.request("PUT", f"{a.url}/connectors/c/stop", status=204)
    await mixed.until_all([a.url, b.url], ["c"], is_stopped)
    await a.stop()
    await b.stop()
    mixed.jvm.end()
    jvm = await mixed.start_jvm()
    await mixed.request("PUT", f"{jvm}/connectors/c/config", status=200, body=theirs)
    await mixed.request("PUT", f"{jvm}/connectors/c/resume", status=202)
    await mixed.until_all([jvm], ["c"], runs_except_on(set(), 1))
    with lines.open("a") as more:
        more.write("4\n5\n")
    await asyncio.to_thread(read_until, bootstrap, topic, ["1", "2", "3", "4", "5"])


def is_paused(status: Status) -> bool:
    return {state for state, _ in states_and_workers(status)} == {"PAUSED"} and len(status["tasks"]) == TASKS


def is_stopped(status: Status) -> bool:
    return bool(status["connector"]["state"] == "STOPPED") and not status["tasks"]


async def until_ours_lead(*ours: Composed) -> str:
    """Wait until one of ``ours`` leads all of them in a group that uses static; returns its URL."""
    urls: set[str] = set()

    async def is_so() -> bool:
        groups = [view["group"] for one in ours if (view := await one.view()) is not None]
        urls.clear()
        urls.update(group["leader_url"].rstrip("/") for group in groups)
        return {(group["protocol"], group["settled"]) for group in groups} == {("static", True)} and len(urls) == 1

    await until(is_so, within_s=60)
    (leader,) = urls
    assert leader in {one.url for one in ours}
    return leader


def read_until(bootstrap: str, topic: str, expected: Sequence[str]) -> None:
    """Read ``topic`` from its beginning to the last value of ``expected``; it must contain exactly these values."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[str] = []
    try:
        while len(found) < len(expected):
            if (message := reader.poll(60)) is None:
                raise AssertionError(f"only {found} came")
            value = message.value()
            assert value is not None
            found.append(value.decode())
    finally:
        reader.close()
    assert found == expected
