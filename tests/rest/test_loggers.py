"""The levels of loggers, at workers over real HTTP: the calls recorded from a Kafka Connect 4.3.1, and the scopes."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping

import pytest

from coterie.nouns.errors import WorldError
from coterie.nouns.logger_levels import LoggerLevel
from coterie.wire.connect import ConnectProtocol
from coterie.worker.logger_levels import COTERIE_LOGGER_BY_CONNECT_NAME
from tests.rest.served import ServedCluster, ServedWorker
from tests.worker.simulated import SimulatedRuntime, until

PARENT, CHILD = "tests.levels", "tests.levels.child"
PATH = f"/admin/loggers/{PARENT}"
NO_LEVEL = "Desired 'level' parameter was not specified in request."


@pytest.fixture(autouse=True)
def loggers() -> Iterator[None]:
    """``CHILD`` exists, ``PARENT`` does not."""
    root_level = logging.root.level
    logging.root.setLevel(logging.INFO)
    logging.getLogger(CHILD)
    yield
    logging.root.setLevel(root_level)
    for name in (PARENT, CHILD):
        logging.root.manager.loggerDict.pop(name, None)


@pytest.fixture
async def cluster() -> AsyncIterator[ServedCluster]:
    async with ServedCluster(protocol=ConnectProtocol.STATIC) as cluster:
        yield cluster


async def put(worker: ServedWorker, body: str, query: str = "") -> tuple[int, object]:
    answer = await worker.ask("PUT", PATH + query, raw=body.encode())
    return answer.status_code, answer.json() if answer.content else ""


async def level(worker: ServedWorker, path: str = PATH) -> str:
    shown: str = (await worker.get(path)).json()["level"]
    return shown


async def test_a_level_is_set_for_a_logger_and_its_descendants(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    missing = await worker.get(PATH)
    assert (missing.status_code, missing.json()["message"]) == (404, f"Logger {PARENT} not found.")
    begun_ms = time.time_ns() // 1_000_000
    assert await put(worker, '{"level": "DEBUG"}') == (200, [PARENT, CHILD])
    state = (await worker.get(PATH)).json()
    assert state["level"] == "DEBUG"
    assert begun_ms <= state["last_modified"] <= time.time_ns() // 1_000_000
    assert logging.getLogger(CHILD).isEnabledFor(logging.DEBUG)
    assert await put(worker, '{"level": "debug"}') == (200, []), "the level is the same"
    assert (await worker.get(PATH)).json() == state
    for query in ("?scope=worker", "?scope=bogus", "?scope="):
        assert (await put(worker, '{"level": "WARN"}', query))[0] == 200
    listed = (await worker.get("/admin/loggers")).json()
    assert listed["root"] == {"level": "INFO", "last_modified": None}
    assert listed[PARENT]["level"] == listed[CHILD]["level"] == "WARN"


async def test_a_new_logger_with_the_level_that_it_has_is_not_modified(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    assert await put(worker, '{"level": "INFO"}') == (200, [])
    assert (await worker.get(PATH)).json() == {"level": "INFO", "last_modified": None}


@pytest.mark.parametrize("name", ["ALL", "TRACE", " debug\t", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "OFF"])
async def test_every_level_is_shown_as_it_was_set(cluster: ServedCluster, name: str) -> None:
    worker = await cluster.serve()
    await put(worker, json.dumps({"level": name}))
    assert await level(worker) == name.strip().upper()
    assert logging.getLogger(CHILD).isEnabledFor(logging.CRITICAL) is (name != "OFF")


async def test_the_root_has_its_name_in_any_case(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    assert CHILD in (await worker.ask("PUT", "/admin/loggers/ROOT", {"level": "WARN"})).json()
    assert [await level(worker, f"/admin/loggers/{name}") for name in ("root", "Root")] == ["WARN", "WARN"]
    assert "ROOT" not in (await worker.get("/admin/loggers")).json()


async def test_the_first_of_two_scopes_counts(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    assert (await put(worker, '{"level": "WARN"}', "?scope=worker&scope=cluster"))[0] == 200
    assert (await put(worker, '{"level": "INFO"}', "?scope=cluster&scope=worker"))[0] == 204


@pytest.mark.parametrize("query", ["", "?scope=cluster"])
@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ('{"level": "LOUD"}', 404, "invalid log level 'LOUD'."),
        ('{"level": 1}', 404, "invalid log level '1'."),
        ("{}", 400, NO_LEVEL),
        ('{"level": null}', 400, NO_LEVEL),
        ('{"other": "x"}', 400, NO_LEVEL),
    ],
)
async def test_an_invalid_level_is_refused_with_connects_message(
    cluster: ServedCluster, body: str, status: int, message: str, query: str
) -> None:
    worker = await cluster.serve()
    assert await put(worker, body, query) == (status, {"error_code": status, "message": message})
    assert (await worker.get(PATH)).status_code == 404


@pytest.mark.parametrize("body", ["", "null", "[]", '"INFO"', "{"])
async def test_an_unreadable_body_is_refused(cluster: ServedCluster, body: str) -> None:
    worker = await cluster.serve()
    assert (await put(worker, body))[0] == 400


async def test_a_level_with_the_scope_cluster_is_written_by_any_worker_and_set_by_each(cluster: ServedCluster) -> None:
    workers = [await cluster.serve() for _ in range(2)]
    for worker, name in zip(workers, ("DEBUG", "ERROR"), strict=True):
        assert await put(worker, json.dumps({"level": name}), "?scope=CLUSTER") == (204, "")
        assert cluster.config_log.latest()[f"logger-cluster-{PARENT}".encode()] == f'{{"level":"{name}"}}'.encode()
        for one in workers:

            async def is_set(one: ServedWorker = one, name: str = name) -> bool:
                states = one.running.worker.logger_levels
                return await states.logger_state(PARENT) is not None and await level(one) == name

            await until(is_set)


async def test_a_level_with_the_scope_cluster_waits_while_the_worker_starts(cluster: ServedCluster) -> None:
    runtime = SimulatedRuntime()
    runtime.opens.clear()
    worker = await cluster.serve(runtime=runtime, wait=False)
    waiting = asyncio.create_task(put(worker, '{"level": "DEBUG"}', "?scope=cluster"))
    assert (await worker.get("/connectors")).status_code == 503
    runtime.opens.set()
    assert await waiting == (204, "")
    assert f"logger-cluster-{PARENT}".encode() in cluster.config_log.latest()


async def test_a_level_that_a_starting_worker_cannot_write_within_the_time_limit_is_refused_with_what_it_does(
    cluster: ServedCluster,
) -> None:
    cluster.request_timeout_ms = 1
    runtime = SimulatedRuntime()
    runtime.opens.clear()
    worker = await cluster.serve(runtime=runtime, wait=False)
    await until(lambda: worker.running.worker.startup_step == "starting the task runtime")
    status, body = await put(worker, '{"level": "DEBUG"}', "?scope=cluster")
    message = "Worker is still starting up. It is starting the task runtime"
    assert (status, body) == (503, {"error_code": 503, "message": message})
    assert not cluster.config_log.latest()
    runtime.opens.set()
    await cluster.settle()


async def test_a_level_that_cannot_be_written_is_refused(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    cluster.config_log.broken = True
    status, body = await put(worker, '{"level": "DEBUG"}', "?scope=cluster")
    assert status == 500
    assert isinstance(body, dict)
    assert body["message"].startswith("Failed to write to the config topic")
    cluster.config_log.broken = False


JVM_LEVELS = {"root": LoggerLevel.WARN, "org.apache.spark.sql.Dataset": LoggerLevel.WARN, CHILD: LoggerLevel.ERROR}


async def serve_with_jvm(cluster: ServedCluster) -> tuple[ServedWorker, SimulatedRuntime]:
    runtime = SimulatedRuntime()
    runtime.loggers = dict(JVM_LEVELS)
    return await cluster.serve(runtime=runtime), runtime


WORKER_SOURCE_TASK = "org.apache.kafka.connect.runtime.WorkerSourceTask"


async def test_the_loggers_of_connects_classes_have_and_set_the_levels_of_coteries(cluster: ServedCluster) -> None:
    worker, runtime = await serve_with_jvm(cluster)
    path, own_path = f"/admin/loggers/{WORKER_SOURCE_TASK}", "/admin/loggers/coterie.spark"
    assert (await worker.get(path)).json() == {"level": "INFO", "last_modified": None}
    assert WORKER_SOURCE_TASK in (await worker.get("/admin/loggers")).json()
    assert (await worker.ask("PUT", path, {"level": "DEBUG"})).json() == [WORKER_SOURCE_TASK]
    assert logging.getLogger("coterie.spark").isEnabledFor(logging.DEBUG)
    assert (await worker.get(own_path)).json() == (await worker.get(path)).json()
    assert (await worker.ask("PUT", own_path, {"level": "WARN"})).status_code == 200
    assert await level(worker, path) == "WARN"
    answer = await worker.ask("PUT", "/admin/loggers/org.apache.kafka.connect.runtime", {"level": "ERROR"})
    assert set(answer.json()) == {"org.apache.kafka.connect.runtime", *COTERIE_LOGGER_BY_CONNECT_NAME}
    assert not logging.getLogger("coterie.worker").isEnabledFor(logging.WARNING)
    assert not any(name.startswith("org.apache.kafka") for name in runtime.loggers)


async def test_loggers_of_the_jvm_are_listed_and_set(cluster: ServedCluster) -> None:
    worker, runtime = await serve_with_jvm(cluster)
    listed = (await worker.get("/admin/loggers")).json()
    assert listed["org.apache.spark.sql.Dataset"] == {"level": "WARN", "last_modified": None}
    assert listed[CHILD]["level"] == listed["root"]["level"] == "INFO", "Python's, of two with one name"
    spark_path = "/admin/loggers/org.apache.spark"
    assert (await worker.get(spark_path)).status_code == 404
    answer = await worker.ask("PUT", spark_path, {"level": "DEBUG"})
    assert answer.json() == ["org.apache.spark", "org.apache.spark.sql.Dataset"]
    assert runtime.loggers["org.apache.spark.sql.Dataset"] is LoggerLevel.DEBUG
    assert (await worker.get(spark_path)).json()["last_modified"] is not None
    assert "org.apache.spark" not in logging.root.manager.loggerDict


async def test_a_new_logger_with_the_name_of_a_java_class_is_one_of_the_jvm(cluster: ServedCluster) -> None:
    worker, runtime = await serve_with_jvm(cluster)
    assert (await worker.ask("PUT", "/admin/loggers/org.example.New", {"level": "ERROR"})).json() == ["org.example.New"]
    assert runtime.loggers["org.example.New"] is LoggerLevel.ERROR
    assert (await put(worker, '{"level": "DEBUG"}')) == (200, [PARENT, CHILD])
    assert runtime.loggers[CHILD] is LoggerLevel.DEBUG, "a name of both is set in both"


async def test_a_level_of_root_is_that_of_both_roots(cluster: ServedCluster) -> None:
    worker, runtime = await serve_with_jvm(cluster)
    changed = (await worker.ask("PUT", "/admin/loggers/root", {"level": "ERROR"})).json()
    assert {"root", CHILD, "org.apache.spark.sql.Dataset"} <= set(changed)
    assert set(runtime.loggers.values()) == {LoggerLevel.ERROR}
    assert logging.root.level == logging.ERROR


async def test_levels_with_the_scope_cluster_are_set_in_the_jvm_in_their_order(cluster: ServedCluster) -> None:
    worker, runtime = await serve_with_jvm(cluster)
    runtime.blocked["set logger org.apache"] = asyncio.Event()
    for name in ("DEBUG", "ERROR"):
        answer = await worker.ask("PUT", "/admin/loggers/org.apache?scope=cluster", {"level": name})
        assert answer.status_code == 204, "nothing waits for the JVM"
    runtime.blocked["set logger org.apache"].set()

    async def is_set() -> bool:
        return runtime.loggers.get("org.apache") is LoggerLevel.ERROR

    await until(is_set)
    assert (await level(worker, "/admin/loggers/org.apache.spark.sql.Dataset")) == "ERROR"


async def test_a_jvm_that_does_not_answer_is_an_error_in_words(cluster: ServedCluster) -> None:
    class DeafRuntime(SimulatedRuntime):
        async def logger_levels(self) -> Mapping[str, LoggerLevel]:
            raise WorldError("The loggers of Spark's JVM cannot be read: it hangs")

    worker = await cluster.serve(runtime=DeafRuntime())
    answer = await worker.get("/admin/loggers")
    assert (answer.status_code, answer.json()["message"]) == (
        500,
        "The loggers of Spark's JVM cannot be read: it hangs",
    )
    assert (await worker.get("/admin/loggers/root")).status_code == 200, "Python's loggers need no JVM"
