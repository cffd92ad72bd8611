"""``GET /metrics``: the metrics of a worker, as a scraper of Prometheus reads them."""

import base64
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from coterie.config.reloaded_files import ReloadedFiles
from coterie.herder.seams import PluginThreadsLost
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.nouns.membership import GroupProtocolName
from coterie.rest.access import AccessRules
from coterie.rest.endpoints import ADMIN_ENDPOINTS, MAIN_ENDPOINTS, Operation, Role
from coterie.rest.users import PasswordHash, RestUser, read_users, write_users
from coterie.wire.connect import ConnectProtocol
from tests.rest.served import GROUP_ID, ServedCluster, ServedWorker
from tests.worker.simulated import SimulatedRuntime, until

CONFIG = {"connector.class": "SimulatedSource", "tasks.max": "3"}
PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
COUNTS = "kafka_connect_connect_worker_metrics_connector"
REBALANCES = "kafka_connect_connect_worker_rebalance_metrics"

Labels = frozenset[tuple[str, str]]
Samples = Mapping[str, Mapping[Labels, float]]
"""The values of the samples of each metric, by their labels."""


async def scrape(worker: ServedWorker) -> Samples:
    """The metrics of the worker, as Prometheus's own parser reads them."""
    answer = await worker.get("/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return parsed(answer.text)


def parsed(text: str) -> Samples:
    """The samples in Prometheus's text. All have the label of the group, which is left out here."""
    samples: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("kafka_connect_cluster_id") == GROUP_ID
            by_labels = samples.setdefault(sample.name, {})
            assert frozenset(labels.items()) not in by_labels, "two samples have the same labels"
            by_labels[frozenset(labels.items())] = sample.value
    return samples


def labels(**values: str) -> Labels:
    return frozenset(values.items())


def task_counts(samples: Samples, connector: str) -> Mapping[str, float]:
    """How many tasks of the connector are in each state, and in total; without zeros."""
    found = {name: values.get(labels(connector=connector), 0) for name, values in samples.items()}
    pattern = re.compile(rf"{COUNTS}_(\w+)_task_count")
    return {match[1]: count for name, count in found.items() if (match := pattern.fullmatch(name)) and count}


async def create(worker: ServedWorker, name: str, config: Mapping[str, str] = CONFIG) -> None:
    created = await worker.ask("POST", "/connectors", {"name": name, "config": config})
    assert created.status_code == 201, created.text


async def has_task_states(worker: ServedWorker, name: str, states: list[str]) -> bool:
    status = (await worker.get(f"/connectors/{name}/status")).json()
    return [task["state"] for task in status.get("tasks", [])] == states


async def test_the_tasks_of_each_connector_are_counted_by_state(cluster: ServedCluster) -> None:
    runtime = SimulatedRuntime()
    worker = await cluster.serve(runtime=runtime)
    for name in ("runs", "fails", "waits"):
        await create(worker, name)
        await worker.until_running(name, 3)
    runtime.fail_query(ConnectorTaskId(ConnectorName("fails"), 1), "boom", can_restart=False)
    await until(lambda: has_task_states(worker, "fails", ["RUNNING", "FAILED", "RUNNING"]))
    assert (await worker.ask("PUT", "/connectors/waits/pause")).status_code == 202
    await until(lambda: has_task_states(worker, "waits", ["PAUSED"] * 3))

    samples = await scrape(worker)
    assert task_counts(samples, "runs") == {"total": 3, "running": 3}
    assert task_counts(samples, "fails") == {"total": 3, "running": 2, "failed": 1}
    assert task_counts(samples, "waits") == {"total": 3, "paused": 3}
    assert samples[f"{COUNTS}_destroyed_task_count"] == {labels(connector=n): 0 for n in ("runs", "fails", "waits")}
    assert samples["kafka_connect_connect_worker_metrics_connector_count"] == {labels(): 3}
    assert samples["kafka_connect_connect_worker_metrics_task_count"] == {labels(): 9}
    connector_statuses = samples["kafka_connect_connector_metrics_status_info"]
    assert connector_statuses[labels(connector="fails", status="running")] == 1
    assert connector_statuses[labels(connector="waits", status="paused")] == 1
    task_statuses = samples["kafka_connect_connector_task_metrics_status_info"]
    assert len(task_statuses) == 9
    assert task_statuses[labels(connector="fails", task="1", status="failed")] == 1

    assert (await worker.ask("DELETE", "/connectors/fails")).status_code == 204

    async def is_gone() -> bool:
        return task_counts(await scrape(worker), "fails") == {}

    await until(is_gone)
    samples = await scrape(worker)
    assert samples["kafka_connect_connect_worker_metrics_task_count"] == {labels(): 6}
    assert samples["kafka_connect_connect_worker_metrics_connector_count"] == {labels(): 2}


async def test_each_worker_counts_its_own_jobs_and_all_have_the_same_leader(cluster: ServedCluster) -> None:
    workers = [await cluster.serve() for _ in range(2)]
    for name in ("a", "b"):
        await create(workers[0], name)
        await workers[0].until_running(name, 3)
    await cluster.settle()
    scraped = [await scrape(worker) for worker in workers]
    for metric, number in (("connector", 2), ("task", 6)):
        counts = [one[f"kafka_connect_connect_worker_metrics_{metric}_count"][labels()] for one in scraped]
        assert counts == [number / 2] * 2
    for name in ("a", "b"):
        assert sum(task_counts(one, name)["total"] for one in scraped) == 3
        assert sum(task_counts(one, name)["running"] for one in scraped) == 3
    leaders = [one[f"{REBALANCES}_leader_name_info"] for one in scraped]
    leader = cluster.leader.worker.settings.url
    assert leaders == [{labels(leader_name=leader): 1}] * 2


async def test_rebalances_are_counted_and_shown(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    before = await scrape(worker)
    view = (await worker.get("/coterie/worker")).json()["group"]
    is_connect = view["protocol"] == GroupProtocolName.CONNECT
    assert before[f"{REBALANCES}_connect_protocol_info"] == {labels(connect_protocol=view["protocol"].upper()): 1}
    assert before[f"{REBALANCES}_epoch"] == {labels(): view["generation"]}
    assert before[f"{REBALANCES}_rebalancing"] == {labels(): 0}
    await cluster.serve()
    await cluster.settle()
    after = await scrape(worker)
    completed = f"{REBALANCES}_completed_rebalances_total"
    if is_connect:
        assert completed not in after, "a connect group has no rounds"
        return
    rounds = after[f"{REBALANCES}_epoch"][labels()] - before[f"{REBALANCES}_epoch"][labels()]
    assert rounds >= 1
    assert after[completed][labels()] - before[completed][labels()] == rounds


async def test_a_rebalance_that_runs_is_shown(classic_cluster: ServedCluster) -> None:
    worker = await classic_cluster.serve()
    classic_cluster.group.members.clear()  # Without members, the rebalance that begins now does not end.
    worker.running.simulated_membership.begin_endless_rebalance()

    async def is_rebalancing() -> bool:
        return (await scrape(worker))[f"{REBALANCES}_rebalancing"] == {labels(): 1}

    await until(is_rebalancing)
    worker.running.simulated_membership.enter()
    await classic_cluster.settle()
    assert not await is_rebalancing()


async def test_lost_threads_are_shown(cluster: ServedCluster) -> None:
    runtime = SimulatedRuntime()
    worker = await cluster.serve(runtime=runtime)
    for count, takes_new_jobs in ((64, 1), (65, 0), (3, 0)):
        runtime.emit(PluginThreadsLost(lost_threads_total=count))

        async def are_shown(expected: int = count) -> bool:
            return (await scrape(worker))["coterie_plugin_lost_threads"] == {labels(): expected}

        await until(are_shown)
        samples = await scrape(worker)
        assert samples["coterie_plugin_lost_threads_max"] == {labels(): 64}
        assert samples["coterie_worker_takes_new_jobs"] == {labels(): takes_new_jobs}


async def test_a_worker_that_starts_has_no_metrics(cluster: ServedCluster) -> None:
    runtime = SimulatedRuntime()
    runtime.opens.clear()
    worker = await cluster.serve(runtime=runtime, wait=False)
    answer = await worker.get("/metrics")
    assert answer.status_code == 503
    assert "starting up" in answer.json()["message"]
    runtime.opens.set()

    async def is_served() -> bool:
        return (await worker.get("/metrics")).status_code == 200

    await until(is_served)


# -- with one protocol ------------------------------------------------------------------------------------------------


@pytest.fixture
async def worker() -> AsyncIterator[ServedWorker]:
    async with ServedCluster(protocol=ConnectProtocol.STATIC) as cluster:
        yield await cluster.serve()


@pytest.mark.parametrize("name", ["größe 😀", 'say "hi"', "back\\slash", "{a}", 'a\\"b'])
async def test_every_name_of_a_connector_is_a_label(worker: ServedWorker, name: str) -> None:
    await create(worker, name)

    async def is_counted() -> bool:
        return task_counts(await scrape(worker), name) == {"total": 3, "running": 3}

    await until(is_counted)


async def test_the_page_of_the_documentation_has_exactly_these_metrics(worker: ServedWorker) -> None:
    await create(worker, "a")
    await worker.until_running("a", 3)
    families = {
        (family.name + ("_total" if family.type == "counter" else "")): family
        for family in text_string_to_metric_families((await worker.get("/metrics")).text)
    }
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", PAGE.read_text(), re.MULTILINE))
    documented = {name: set(re.findall(r"`(\w+)`", cell)) for name, cell in rows.items()}
    assert documented == {
        name: set(family.samples[0].labels) - {"kafka_connect_cluster_id"} for name, family in families.items()
    }
    assert all(family.documentation for family in families.values())


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1", 200),
        ("text/plain", 200),
        ("text/*", 200),
        ("application/openmetrics-text", 406),
        ("application/json", 406),
        ("*", 200),
    ],
)
async def test_a_scraper_that_accepts_text_gets_the_metrics(worker: ServedWorker, accept: str, status: int) -> None:
    answer = await worker.ask("GET", "/metrics", raw=b"", headers={"Accept": accept})
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/plain;" if status == 200 else "application/json")


async def test_a_scraper_logs_in_as_a_user_with_the_role_read(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    write_users(path, {"prometheus": RestUser(role=Role.READ, password_hash=PasswordHash.from_password("secret"))})
    access = AccessRules(users=ReloadedFiles("users", [path], lambda: read_users(path)), health_needs_no_login=True)
    encoded = base64.b64encode(b"prometheus:secret").decode()
    async with ServedCluster(protocol=ConnectProtocol.STATIC) as cluster:
        worker = await cluster.serve(access=access)
        assert (await worker.get("/metrics")).status_code == 401
        answer = await worker.ask("GET", "/metrics", raw=b"", headers={"Authorization": f"Basic {encoded}"})
        assert answer.status_code == 200
        assert parsed(answer.text)["coterie_plugin_lost_threads"] == {labels(): 0}


def test_both_kinds_of_listeners_serve_the_metrics() -> None:
    for endpoints in (MAIN_ENDPOINTS, ADMIN_ENDPOINTS):
        assert Operation.DESCRIBE_METRICS in {endpoint.operation for endpoint in endpoints}
