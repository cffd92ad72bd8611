"""The configs in examples/, created by the commands of their README on a real cluster."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from benchmarks.http_client import http
from coterie.spark.plugins import SINK_BY_CLASS_NAME, configured_sink, configured_source, source_by_name
from tests.cli.waiting import wait_until
from tests.sink_files import counted
from tests.spark.conftest import Rig, rows_of
from tests.spark.examples.cluster import REPOSITORY, TUTORIAL, Cluster, scripts
from tests.spark.sinks.postgres_server import PASSWORD, USER, PostgresServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(500)]

EXAMPLES = REPOSITORY / "examples"
README = EXAMPLES / "README.md"
COMMANDS = re.findall(r"\| `(coterie connectors create .*?)` \|", README.read_text())
PYTHON = "python-to-json"
"""Needs a worker that allows the module, which `coterie up` does not start."""
PLACES = {"/var/tmp/coterie-examples": "{folder}", "localhost:5432": "127.0.0.1:{port}", "change-me": PASSWORD}
"""The values that users replace in the files."""
ROWS = {1, 2, 3}
"""The flights that the README puts into a folder."""


def config_of(name: str) -> dict[str, str]:
    config: dict[str, str] = json.loads((EXAMPLES / f"{name}.json").read_text())["config"]
    return config


def names() -> list[str]:
    return [Path(command.rpartition(" ")[2]).stem for command in COMMANDS]


def test_the_readme_has_a_command_for_each_file_and_each_file_is_named_after_its_connector() -> None:
    files = {path.stem: json.loads(path.read_text()) for path in EXAMPLES.glob("*.json")}
    assert sorted(names()) == sorted(files)
    assert {name: example["name"] for name, example in files.items()} == {name: name for name in files}


def test_each_source_and_each_sink_has_an_example() -> None:
    configs = [config_of(name) for name in names()]
    assert {configured_source(config, {}).plugin for config in configs} == set(source_by_name().values())
    assert {configured_sink(config, {}).plugin for config in configs} == set(SINK_BY_CLASS_NAME.values())


def test_each_line_of_the_readme_names_the_source_and_the_sink() -> None:
    for command, name in zip(COMMANDS, names(), strict=True):
        config = config_of(name)
        ends = f"`{configured_source(config, {}).plugin.__name__}` → `{configured_sink(config, {}).plugin.__name__}`"
        assert re.search(rf"^\| {ends}: .*{re.escape(command)}", README.read_text(), re.MULTILINE), name


@pytest.fixture(scope="module")
def folder(cluster: Cluster, postgres: PostgresServer) -> Path:
    """The folder in which the examples read and write files; the copied configs contain it."""
    folder = cluster.folder / "coterie-examples"
    places = {place: there.format(folder=folder, port=postgres.port) for place, there in PLACES.items()}
    places['"connection.user": "postgres"'] = f'"connection.user": "{USER}"'
    texts = {path.name: path.read_text() for path in EXAMPLES.glob("*.json")}
    assert all(any(place in text for text in texts.values()) for place in places)
    (cluster.folder / "examples").mkdir()
    for name, text in texts.items():
        for place, there in places.items():
            text = text.replace(place, there)
        (cluster.folder / "examples" / name).write_text(text)
    start, data = scripts(README)
    assert start == scripts(TUTORIAL)[0], "the README starts the cluster as the tutorial does"
    cluster.run(data.replace("/var/tmp/coterie-examples", str(folder)))
    return folder


@pytest.fixture(scope="module")
def customers(cluster: Cluster) -> dict[int, tuple[str, str | None]]:
    """The current rows of a table whose changes are in the topic to which Debezium would write them."""
    producer = Producer({"bootstrap.servers": cluster.servers})
    rows: dict[int, tuple[str, str | None]] = {}

    def row(id_: int) -> dict[str, object] | None:
        return {"id": id_, "name": rows[id_][0], "email": rows[id_][1]} if id_ in rows else None

    def send(id_: int, value: dict[str, object] | None) -> None:
        key = {"schema": {"type": "struct"}, "payload": {"id": id_}}
        whole = None if value is None else json.dumps({"schema": {"type": "struct"}, "payload": value})
        producer.produce("inventory.customers", whole, key=json.dumps(key))

    def put(id_: int, name: str, email: str | None) -> None:
        before, op = row(id_), "u" if id_ in rows else "c"
        rows[id_] = (name, email)
        send(id_, {"before": before, "after": row(id_), "op": op})

    for id_ in range(1001, 1006):
        put(id_, f"customer {id_}", None)
    put(1002, "Edward", "ed@example.org")
    send(1003, {"before": row(1003), "after": None, "op": "d"})
    send(1003, None)
    del rows[1003]
    assert producer.flush(30) == 0
    return rows


@pytest.fixture(scope="module")
def created(cluster: Cluster, folder: Path, customers: dict[int, tuple[str, str | None]]) -> Iterator[Cluster]:
    """The cluster with a connector of each example. The connectors are deleted at the end, since their queries would
    take CPU time from all later tests."""
    admin = AdminClient({"bootstrap.servers": cluster.servers})
    for command in COMMANDS:
        if not command.endswith(f"/{PYTHON}.json"):
            cluster.run(command)
            wait_until(lambda: "flights" in admin.list_topics(timeout=10).topics, "its topic", within_s=120)
    yield cluster
    for name in set(names()) - {PYTHON}:
        http.delete(f"{cluster.url}/connectors/{name}", timeout=90).raise_for_status()


def test_a_file_of_flights_goes_through_a_topic_to_parquet_delta_and_another_topic(
    created: Cluster, folder: Path
) -> None:
    def in_parquet() -> dict[Any, int]:
        return dict(counted(folder / "flights-parquet", "id"))

    def in_delta() -> list[int]:
        table = folder / "flights-delta"
        found = DeltaTable(table).to_pyarrow_table()["id"].to_pylist() if DeltaTable.is_deltatable(str(table)) else []
        return sorted(found)

    wait_until(lambda: in_parquet() == dict.fromkeys(ROWS, 1), "the rows in Parquet files", within_s=120)
    assert counted(folder / "flights-parquet" / "carrier=AA", "is_late") == {True: 1}
    wait_until(lambda: in_delta() == sorted(ROWS), "the rows in a Delta table", within_s=120)
    assert first_record(created, "flights-late") == (b"AA", {"id": 2, "carrier": "AA", "delay": 40})


def test_a_config_of_connects_jdbc_sink_runs_with_its_class_changed(
    created: Cluster, customers: dict[int, tuple[str, str | None]], postgres: PostgresServer
) -> None:
    def table() -> dict[object, object]:
        if not postgres.rows("SELECT 1 WHERE to_regclass('customers') IS NOT NULL"):
            return {}
        return {id_: rest for id_, *rest in postgres.rows("SELECT id, name, email FROM customers")}

    expected = {id_: list(rest) for id_, rest in customers.items()}
    wait_until(lambda: table() == expected, "the customers", within_s=120)
    assert PASSWORD not in created.everything_logged()


def test_rows_of_the_rate_source_are_discarded_or_written_to_the_jvms_log(created: Cluster) -> None:
    checkpoints = created.folder / "coterie-data" / "checkpoints"

    def batches(name: str) -> int:
        return sum(1 for path in checkpoints.glob(f"{name}-*/**/commits/*") if path.name.isdigit())

    wait_until(lambda: batches("rate-to-noop") >= 3, "batches without a sink", within_s=120)
    printed = re.compile(r"^\|\d{4}-\d\d-\d\d .*\| *\d+ *\|$", re.MULTILINE)
    log = created.logs / "worker-0.jvm.log"
    wait_until(lambda: printed.search(log.read_text(errors="replace")) is not None, "a printed row", within_s=120)


def test_no_example_fails(created: Cluster) -> None:
    def states() -> dict[str, list[str]]:
        statuses = http.get(f"{created.url}/connectors?expand=status", timeout=30).json()
        return {
            name: [task["state"] for task in shown["status"]["tasks"]]
            for name, shown in statuses.items()
            if name in names()
        }

    def are_running(shown: dict[str, list[str]]) -> bool:
        return len(shown) == len(COMMANDS) - 1 and all(set(tasks) == {"RUNNING"} for tasks in shown.values())

    wait_until(lambda: are_running(states()), f"all run: {states()}", within_s=120)


@pytest.mark.asyncio(loop_scope="session")
async def test_the_stream_of_a_function_is_written_to_json_files(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses a worker that can import the module and allows it."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    place = "/var/tmp/coterie-examples"
    config = {key: value.replace(place, str(tmp_path)) for key, value in config_of(PYTHON).items()}
    (tmp_path / "flights").mkdir()
    (tmp_path / "flights" / "1.csv").write_text("id,carrier,delay\n1,UA,5\n2,AA,40\n3,UA,-2\n")
    assert await rig.config_errors(config, ()) == {}
    start = await rig.start(config, PYTHON)
    await rig.wait_until(lambda: rows_of(tmp_path / "flights-json", "id") == sorted(ROWS))
    assert rows_of(tmp_path / "flights-json", "is_late") == [False, False, True]
    await rig.runtime.stop(start.task, grace_ms=10_000)


def first_record(cluster: Cluster, topic: str) -> tuple[bytes, dict[str, object]]:
    """Key and value of the first committed record of a topic; waits for it."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    try:
        message = consumer.poll(60)
        assert message is not None, f"no record in {topic}"
        assert message.error() is None, message.error()
        key, value = message.key(), message.value()
        assert key is not None
        assert value is not None
        return key, json.loads(value)
    finally:
        consumer.close()
