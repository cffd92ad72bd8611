"""A JVM among us: an unmodified Kafka Connect worker and two of ours are one group, whoever leads it.

Who is there first leads. Each side has a connector class that the other has not; what is assigned to whoever lacks it
fails there, and nothing else does. With ``COTERIE_RECORD=FOLDER`` in the environment the bytes that passed are kept
there, for `tests.kafka.mixed_vectors`.
"""

import os
import signal
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from coterie.herder.seams import TaskStart
from coterie.nouns.errors import WorldError
from coterie.nouns.jobs import ConnectorName
from coterie.rest.leader import open_client
from coterie.wire.connect import ConnectProtocol
from coterie.wire.connect_events import AssignmentReceived
from tests.broker.conftest import raw_client
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.kafka.faults.row import KEYS
from tests.kafka.jvm_connect import JvmWorker
from tests.kafka.mixed_vectors import record
from tests.kafka.tools import Tools
from tests.worker.composed import Composed, ComposedFleet
from tests.worker.simulated import SimulatedRuntime, until

pytestmark = [pytest.mark.kafka, pytest.mark.processes, pytest.mark.timeout(240)]

DELAY_MS = 2_000
TASKS = 3
BOTH, THEIRS, OURS = "FileStreamSink", "FileStreamSource", "SimulatedSource"
"""Connector classes by who has them."""
TASK_CLASSES = {BOTH: "org.apache.kafka.connect.file.FileStreamSinkTask", OURS: "SimulatedSourceTask"}
SPOKEN = {"eager": ConnectProtocol.EAGER, "compatible": ConnectProtocol.COMPATIBLE, "static": ConnectProtocol.SESSIONED}
"""By what ours are set to: what a group speaks in which the JVM worker offers all that Kafka has."""


def on(*brokers_and_protocols: str) -> pytest.MarkDecorator:
    """Everywhere, and in each run of the tests ``brokers_and_protocols``."""
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
    """Tasks that only say that they run, of all classes but the one that is Kafka's own."""

    async def split(self, connector: ConnectorName, config: Mapping[str, str]) -> Sequence[Mapping[str, str]]:
        self._check(config)
        tasks = await super().split(connector, config)
        # What Kafka's own workers need, and add themselves where they split a connector.
        return [{**task, "task.class": TASK_CLASSES[config["connector.class"]]} for task in tasks]

    async def start(self, start: TaskStart) -> None:
        self._check(start.config)
        await super().start(start)

    def _check(self, config: Mapping[str, str]) -> None:
        if THEIRS in (config.get("connector.class"), config.get("task.class", "").rpartition(".")[2][:-4]):
            raise WorldError(f"No such connector: {THEIRS}")


class Mixed:
    """One JVM worker and some of ours, in one group of the test's own."""

    def __init__(self, jvm: JvmWorker, fleet: ComposedFleet, client: httpx.AsyncClient, folder: Path) -> None:
        self.jvm = jvm
        self.fleet = fleet
        self._client = client
        self._folder = folder

    async def start_jvm(self) -> str:
        """Start Kafka's own worker and wait until it is in the group; where its REST listens."""
        self.jvm.start()
        await until(lambda: self.jvm.logged("Finished starting connectors and tasks"), within_s=100)
        assert self.jvm.url is not None, self.jvm.tail()
        url = self.jvm.url.rstrip("/")

        async def serves() -> bool:
            """It says 404 to everything until a moment after its herder has started."""
            return (await self._client.get(f"{url}/connectors")).status_code == 200

        await until(serves, within_s=100)
        return url

    async def start_ours(self, name: str, protocol: str) -> tuple[Composed, LightRuntime]:
        runtime = LightRuntime()
        one = await self.fleet.start(name, runtime, {"connect.protocol": protocol})
        await until(lambda: one.worker is not None and one.worker.phase == "running", within_s=100)
        return one, runtime

    async def until_one_group(self, *ours: Composed, leader: str) -> None:
        """All of ours are settled in one generation that ``leader`` leads."""

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

    async def create(self, url: str, name: str, connector_class: str, *, status: int = 201) -> None:
        """Ask the worker at ``url`` for a connector; it has to answer with ``status``."""
        config = {"connector.class": connector_class, "tasks.max": str(TASKS), "file": str(self._folder / name)}
        topic = f"{name}-{uuid.uuid4().hex[:8]}"
        config |= {"topic": topic} if connector_class == THEIRS else {"topics": topic}
        answer = await self._client.post(f"{url}/connectors", json={"name": name, "config": config})
        assert answer.status_code == status, f"{url}: {answer.status_code} {answer.text}"

    async def until_all(
        self, urls: Sequence[str], names: Sequence[str], good: Callable[[Status], bool]
    ) -> list[Status]:
        """Until every worker of ``urls`` says of each connector something that is ``good``, and all the same.

        Returns it, by ``names``.
        """
        seen: dict[tuple[str, str], Status] = {}

        async def is_so() -> bool:
            for url in urls:
                for name in names:
                    answer = await self._client.get(f"{url}/connectors/{name}/status")
                    seen[url, name] = answer.json()
                    if answer.status_code != 200 or not good(seen[url, name]):
                        return False
            return all(where(seen[url, name]) == where(seen[urls[0], name]) for url in urls for name in names)

        try:
            await until(is_so, within_s=60)
        except TimeoutError:
            raise AssertionError(str(seen)) from None
        return [seen[urls[0], name] for name in names]


def where(status: Status) -> list[tuple[str, str]]:
    """State and worker of the connector and then of each of its tasks."""
    return [(job["state"], job["worker_id"]) for job in (status["connector"], *status["tasks"])]


def host(url: str) -> str:
    return url.removeprefix("http://")


def runs_except_on(strangers: set[str], tasks: int) -> Callable[[Status], bool]:
    """Of a connector whose class the ``strangers`` lack: what is theirs has FAILED, all else runs.

    Where the connector itself is a stranger's, nobody splits it.
    """

    def good(status: Status) -> bool:
        (connector, owner), *rest = where(status)
        if owner in strangers:
            return connector == "FAILED" and not rest
        states = [state == ("FAILED" if worker in strangers else "RUNNING") for state, worker in rest]
        return connector == "RUNNING" and states == [True] * tasks

    return good


def waited(one: Composed) -> bool:
    """Whether ``one`` was told of jobs that wait for whoever had them."""
    return any(isinstance(event, AssignmentReceived) and event.assignment.delay_ms > 0 for event in one.events)


@pytest.fixture
async def mixed(bootstrap: str, tools: Tools, connect_plugins: Path, tmp_path: Path) -> AsyncIterator[Mixed]:
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
    jvm = JvmWorker(tools, tmp_path, {**common, "plugin.path": str(connect_plugins)})
    async with AsyncExitStack() as stack:
        client = open_client()
        stack.push_async_callback(client.aclose)
        stack.callback(jvm.end)
        fleet = ComposedFleet({**common, "checkpoint.location": str(tmp_path / "checkpoints")}, stack)
        yield Mixed(jvm, fleet, client, tmp_path)
        await fleet.stop()


@on("embedded-eager", "embedded-compatible", "kafka-static")
async def test_ours_leads_and_a_jvm_takes_and_reports_what_it_is_assigned(
    mixed: Mixed, protocol: str, request: pytest.FixtureRequest
) -> None:
    (a, runs_a), (b, runs_b) = await mixed.start_ours("a", protocol), await mixed.start_ours("b", protocol)
    await mixed.until_one_group(a, b, leader=a.url)
    jvm = await mixed.start_jvm()
    await mixed.until_one_group(a, b, leader=a.url)
    urls = [a.url, b.url, jvm]

    classes = {"c1": BOTH, "c2": OURS, "c3": BOTH, "c4": BOTH, "c5": BOTH, "c6": OURS}
    known = [name for name, class_ in classes.items() if class_ == BOTH]
    for (name, class_), url in zip(classes.items(), [a.url, b.url, jvm] * 2, strict=True):
        # Kafka's worker judges a config before it hands it on, so that what it lacks cannot come by it.
        await mixed.create(a.url if class_ == OURS else url, name, class_)
    statuses = await mixed.until_all(urls, known, runs_except_on(set(), TASKS))
    statuses += await mixed.until_all(urls, ["c2", "c6"], runs_except_on({host(jvm)}, TASKS))
    jobs = [where(status) for status in statuses]
    assert Counter(worker for (_, worker), *_ in jobs) == {host(url): 2 for url in urls}
    tasks = Counter(worker for _, *rest in jobs for _, worker in rest)
    assert tasks.keys() == {host(url) for url in urls}
    assert max(tasks.values()) - min(tasks.values()) <= 1
    assert any(owner == host(jvm) for (_, owner), *rest in jobs if rest), "tasks that the JVM has published to us"
    assert any(state == "FAILED" for job in jobs for state, _ in job), "the JVM lacks a class of ours"

    mixed.jvm.signal(signal.SIGTERM)
    await mixed.until_all([a.url, b.url], list(classes), runs_except_on(set(), TASKS))
    assert [len(runs.running) for runs in (runs_a, runs_b)] == [9, 9]
    if protocol != "eager":
        assert waited(a)
        assert waited(b)
        # A connector that moves is split anew, and its new owner's tasks have configs of another kind.
        moved = {status["name"] for status in statuses if status["connector"]["worker_id"] == host(jvm)}
        starts = Counter(task for task in runs_a.starts + runs_b.starts if task.connector not in moved)
        assert set(starts.values()) == {1}, "nothing of ours was ever stopped"
    assert a.losses == b.losses == []
    with_jvm = {heard.protocol for heard in a.heard if heard.member.startswith("connect-")}
    assert with_jvm == {SPOKEN[protocol].wire_name}
    record(os.environ.get("COTERIE_RECORD"), f"ours lead, {request.node.callspec.id}", a.heard)


@on("embedded-static", "kafka-static")
async def test_a_jvm_leads_and_ours_take_and_report_what_they_are_assigned(
    mixed: Mixed, protocol: str, request: pytest.FixtureRequest
) -> None:
    jvm = await mixed.start_jvm()
    (a, runs_a), (b, runs_b) = await mixed.start_ours("a", protocol), await mixed.start_ours("b", protocol)
    await mixed.until_one_group(a, b, leader=jvm)
    urls = [a.url, b.url, jvm]
    ours = {host(a.url), host(b.url)}

    # Handed on to a leader that lacks the class.
    await mixed.create(a.url, "no", OURS, status=400)
    shared, theirs = ["c1", "c2", "c3"], ["d1", "d2", "d3"]
    for name, url in zip([*shared, *theirs], urls * 2, strict=True):
        await mixed.create(url, name, BOTH if name in shared else THEIRS)
    statuses = await mixed.until_all(urls, shared, runs_except_on(set(), TASKS))
    statuses += await mixed.until_all(urls, theirs, runs_except_on(ours, 1))
    jobs = [where(status) for status in statuses]
    assert Counter(worker for (_, worker), *_ in jobs) == {host(url): 2 for url in urls}
    assert any(owner in ours for (_, owner), *_ in jobs[:3]), "tasks that one of ours has published to the JVM"
    assert any(state == "FAILED" for job in jobs[3:] for state, _ in job), "ours lack a class of the JVM's"
    record(os.environ.get("COTERIE_RECORD"), f"a JVM leads, {request.node.callspec.id}", a.heard + b.heard)

    await a.stop()
    await mixed.until_all([b.url, jvm], shared, runs_except_on(set(), TASKS))
    assert waited(b) == (protocol != "eager")
    mixed.jvm.signal(signal.SIGTERM)
    await mixed.until_all([b.url], shared, runs_except_on(set(), TASKS))
    await mixed.until_one_group(b, leader=b.url)
    assert len(runs_b.running) == 3 * TASKS
    assert not runs_a.running
    assert b.losses == []


def test_a_connect_worker_with_exactly_once_joins_the_embedded_broker_works_and_leaves(
    tools: Tools, embedded_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """With exactly-once its leader writes to the config topic in transactions, and fences the leader before it."""
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
