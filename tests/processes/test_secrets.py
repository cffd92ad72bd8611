"""Secrets in a connector's config, by reference and written out: where a real worker with Spark's UI and event log
shows them, and where not."""

import json
import re
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import confluent_kafka
import httpx
import pytest

from benchmarks.http_client import http
from coterie.config.secrets import MASK
from tests.ports import free_port
from tests.processes.cluster import Cluster, WorkerProcess, until
from tests.spark.sinks.postgres_server import PASSWORD, PostgresServer, running_server

pytestmark = [pytest.mark.processes, pytest.mark.spark, pytest.mark.timeout(400)]

ENV_SECRET = 'needle-env-"f00'
"""Has a character that JSON escapes."""
JVM_SECRET = "needle-jvm-4715"
"""Part of a path, which Spark's plans and the exceptions of its jobs quote."""
QUERY_SECRET = "needle-query-4716"
"""Part of a query of Sql."""
CONDITION_SECRET = "needle-condition-4717"
"""Part of a condition of Filter."""
FOLDER_SECRET = "needle-folder-4718"
"""The name of a folder that a file source reads."""
TOPIC_SECRET = "needle-topic-4719"
"""The name of a topic that a Kafka source reads."""
WRONG_PASSWORD = "needle-file-4711"
DIRECTORY_SECRET = "needle-directory-4712\n"
PLAIN_PASSWORD = "needle-plain-4713"
"""Written in a config as it is."""
HIDDEN = (
    ENV_SECRET.split('"')[0],
    WRONG_PASSWORD,
    DIRECTORY_SECRET.strip(),
    JVM_SECRET,
    QUERY_SECRET,
    CONDITION_SECRET,
)
"""Texts that only resolved references contain."""
QUOTING_MODULE = """
import os

def build_or_raise(spark, config):
    if os.path.exists(config["flag"]):
        raise LookupError(f"nothing can be read with {config}")
    return spark.readStream.format("rate").load().select("value")
"""
"""A module with a source's function that raises an error with the whole config, if the file `flag` exists."""
VISIBLE = "needle-visible-4714"
"""The value of an option that is no secret: it proves that the search finds what is there."""


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    with running_server() as server:
        yield server


class SecretsRig:
    """One worker with the three providers, and the texts of everything that it writes and answers."""

    def __init__(self, cluster: Cluster, jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = cluster
        self.folder = cluster.folder
        self.ui_port = free_port()
        self.secret_file = self.folder / "secrets" / "pg.properties"
        self.secret_file.parent.mkdir()
        (self.secret_file.parent / "token").write_text(DIRECTORY_SECRET)
        (self.folder / "events").mkdir()
        (self.folder / "quoting.py").write_text(QUOTING_MODULE)
        monkeypatch.setenv("PYTHONPATH", str(self.folder))
        monkeypatch.setenv("NEEDLE_ENV", ENV_SECRET)
        monkeypatch.setenv("NEEDLE_JVM", JVM_SECRET)
        monkeypatch.setenv("NEEDLE_QUERY", QUERY_SECRET)
        monkeypatch.setenv("NEEDLE_CONDITION", CONDITION_SECRET)
        monkeypatch.setenv("NEEDLE_FOLDER", FOLDER_SECRET)
        monkeypatch.setenv("NEEDLE_TOPIC", TOPIC_SECRET)
        monkeypatch.setenv("WORKER_NAME_TOO", "by-reference")
        monkeypatch.setenv("OTHER", "other-value")
        self.cluster.start_broker()
        self.worker: WorkerProcess = cluster.start_worker(
            "keeper",
            properties={
                "client.id": "${env:WORKER_NAME_TOO}",
                "log.level": "DEBUG",
                "log.jvm.file": str(self.folder / "jvm.log"),
                "pipeline.modules": "quoting",
                "jars.dir": str(jars),
                "spark.ui.enabled": "true",
                "spark.ui.port": str(self.ui_port),
                "spark.eventLog.enabled": "true",
                "spark.eventLog.compress": "false",
                "spark.eventLog.dir": (self.folder / "events").as_uri(),
                "config.providers": "env,file,directory",
                **{
                    f"config.providers.{name}.class": f"org.apache.kafka.common.config.provider.{class_name}"
                    for name, class_name in (
                        ("env", "EnvVarConfigProvider"),
                        ("file", "FileConfigProvider"),
                        ("directory", "DirectoryConfigProvider"),
                    )
                },
                "config.providers.env.param.allowlist.pattern": "NEEDLE_.*|WORKER_.*",
                "config.providers.file.param.allowed.paths": str(self.secret_file.parent),
                "config.providers.directory.param.allowed.paths": str(self.secret_file.parent),
            },
        )
        cluster.wait_ready(self.worker)
        self.answers: list[str] = []
        """The bodies of all REST answers but those of :attr:`name_answers`."""
        self.name_answers: list[str] = []
        """The bodies of the answers about offsets and used topics, which consist of names of files and topics."""

    def ask(self, method: str, path: str, content: Mapping[str, Any] | None = None) -> httpx.Response:
        answer = http.request(method, self.worker.url + path, json=content, timeout=90)
        (self.name_answers if path.endswith(("/offsets", "/topics")) else self.answers).append(answer.text)
        return answer

    def create(self, name: str, config: Mapping[str, str]) -> None:
        common = {"connector.class": "RateSource", "trigger.interval.ms": "1000", "errors.restart.max": "0"}

        def is_created() -> bool:
            answer = self.ask("POST", "/connectors", {"name": name, "config": {**common, **config}})
            # The JVM's first request to Kafka takes seconds; on a busy machine it may time out.
            assert answer.status_code == 201 or "did not answer" in answer.text, answer.text
            return answer.status_code == 201

        until(is_created, within_s=120, what=f"{name} is created")

    def wait_for(self, connector: str, state: str) -> str:
        """Wait until the connector's task has this state; returns its trace."""

        def trace() -> str | None:
            # A connector that was just created has no status yet, and its response is 404.
            tasks = self.ask("GET", f"/connectors/{connector}/status").json().get("tasks")
            return tasks[0].get("trace", "-") if tasks and tasks[0]["state"] == state else None

        return until(trace, within_s=60, what=f"{connector} is {state}")

    def restart(self, connector: str) -> None:
        answer = self.ask("POST", f"/connectors/{connector}/restart?includeTasks=true")
        assert answer.status_code in (202, 204), answer.text

    def produce(self, topic: str, value: bytes) -> None:
        """Write one record to ``topic``, which is created."""
        producer = confluent_kafka.Producer({"bootstrap.servers": f"127.0.0.1:{self.cluster.broker_port}"})
        producer.produce(topic, value)
        assert producer.flush(30) == 0

    def topic_text(self, topic: str) -> str:
        """All keys and values of a topic, without compression."""
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": f"127.0.0.1:{self.cluster.broker_port}",
                "group.id": "grep",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
            }
        )
        partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in partitions])
        texts, ended = list[bytes](), 0
        while ended < len(partitions):
            message = consumer.poll(20)
            assert message is not None, topic
            if message.error() is not None:
                ended += 1
            else:
                texts += [message.key() or b"", message.value() or b""]
        consumer.close()
        return b"\n".join(texts).decode()

    def ui_texts(self) -> Iterator[str]:
        """The answers of Spark's REST API, and pages of its UI."""
        base = f"http://127.0.0.1:{self.ui_port}"
        with httpx.Client(base_url=base, timeout=60, follow_redirects=True) as client:
            application = client.get("/api/v1/applications").json()[0]["id"]
            api = f"/api/v1/applications/{application}"
            executions = client.get(f"{api}/sql?details=true&planDescription=true&length=1000")
            yield executions.text
            for path in ("environment", "jobs", "stages?details=true", "streaming/statistics"):
                yield client.get(f"{api}/{path}").text
            for page in ("SQL/", "environment/", "jobs/", "stages/", "StreamingQuery/"):
                yield client.get(f"/{page}").text
            # One page of each plan and end: a page takes long.
            id_by_plan = {
                (execution["status"], *(node["nodeName"] for node in execution["nodes"])): execution["id"]
                for execution in executions.json()
            }
            for execution_id in id_by_plan.values():
                yield client.get(f"/SQL/execution/?id={execution_id}").text
            for job in client.get(f"{api}/jobs?status=failed").json():
                yield client.get(f"/jobs/job/?id={job['jobId']}").text

    def file_texts(self, *names: str) -> str:
        """The files of these names, and of the folders of these names, one after the other."""
        files = [
            file
            for name in names
            for file in ([self.folder / name] if (self.folder / name).is_file() else (self.folder / name).rglob("*"))
            if file.is_file()
        ]
        assert files, names
        return "\n".join(file.read_text(errors="replace") for file in files)


def test_resolved_references_are_in_no_log_topic_trace_answer_page_or_event_log(
    cluster: Cluster, postgres: PostgresServer, spark_jars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = SecretsRig(cluster, spark_jars, monkeypatch)
    flag = rig.folder / "flag"
    rig.secret_file.write_text(f"password={PASSWORD}\n")
    reference = f"${{file:{rig.secret_file}:password}}"
    postgres_keys = {f"sink.{key}": value for key, value in postgres.keys.items()}
    rig.create(
        "pg",
        {
            "sink.class": "PostgresSink",
            **postgres_keys,
            "sink.connection.password": reference,
            "sink.table.name.format": "rates",
            "sink.auto.create": "true",
        },
    )
    rig.create(
        "raises",
        {
            "connector.class": "PythonSource",
            "pipeline.function": "quoting:build_or_raise",
            "flag": str(flag),
            "note": f"${{directory:{rig.secret_file.parent}:token}}",
            "sink.format": "noop",
        },
    )
    options = {"sink.option.note": "${env:NEEDLE_ENV}", "sink.option.visible": VISIBLE}
    transforms = {
        "transforms": "query,kept",
        "transforms.query.type": "Sql",
        "transforms.query.query": "SELECT * FROM source WHERE string(value) <> '${env:NEEDLE_QUERY}'",
        "transforms.kept.type": "Filter",
        "transforms.kept.condition": "string(value) <> '${env:NEEDLE_CONDITION}'",
    }
    rig.create(
        "options",
        {"sink.class": "SparkSink", "sink.format": "json", "sink.option.path": str(rig.folder / "o")}
        | options
        | transforms,
    )
    (rig.folder / FOLDER_SECRET).mkdir()
    (rig.folder / FOLDER_SECRET / "a.json").write_text('{"a": 1}\n')
    rig.create(
        "files",
        {
            "connector.class": "FileSource",
            "source.format": "json",
            "source.path": f"{rig.folder}/${{env:NEEDLE_FOLDER}}",
            "source.schema": "a INT",
            "sink.format": "json",
            "sink.path": str(rig.folder / "f"),
        },
    )
    rig.produce(TOPIC_SECRET, b"1")
    rig.create(
        "topic",
        {
            "connector.class": "KafkaSource",
            "topics": "${env:NEEDLE_TOPIC}",
            "sink.format": "json",
            "sink.path": str(rig.folder / "t"),
        },
    )
    rig.create(
        "jvm",
        {"sink.class": "SparkSink", "sink.format": "json", "sink.option.path": "/proc/${env:NEEDLE_JVM}/x"},
    )
    rig.create(
        "plain",
        {
            "sink.class": "SparkSink",
            "sink.format": "json",
            "sink.option.path": str(rig.folder / "p"),
            "sink.option.password": PLAIN_PASSWORD,
        },
    )
    for running in ("pg", "raises", "options", "plain"):
        rig.wait_for(running, "RUNNING")
    for folder in ("o", "f", "t"):
        until(lambda: list((rig.folder / folder).glob("*.json")), within_s=60, what=f"rows arrive in {folder}")  # noqa: B023
    assert MASK in rig.wait_for("jvm", "FAILED")

    # A changed secret counts from the next start on, also in the other direction.
    rig.secret_file.write_text(f"password={WRONG_PASSWORD}\n")
    flag.touch()
    rig.restart("pg")
    rig.restart("raises")
    assert "password authentication failed" in rig.wait_for("pg", "FAILED")
    trace = rig.wait_for("raises", "FAILED")
    assert "nothing can be read with" in trace
    assert f"'note': '{MASK}" in trace
    rig.secret_file.write_text(f"password={PASSWORD}\n")
    rig.restart("pg")
    rig.wait_for("pg", "RUNNING")
    until(lambda: postgres.rows("SELECT count(*) FROM rates")[0][0], within_s=60, what="rows arrive")

    # If a provider fails, the response has one error, and the trace of the failed task contains the reason.
    for value, words in (
        ("${env:OTHER}", "allowlist.pattern does not allow the environment variable OTHER"),
        ("${env:NEEDLE_NONE}", "no environment variable NEEDLE_NONE"),
        ("${file:/etc/hostname:a}", "allowed.paths do not allow the path /etc/hostname"),
        (f"${{file:{rig.secret_file.parent}/none:a}}", "Could not read properties from file"),
        (f"${{file:{rig.secret_file}:none}}", "has no key none"),
        (f"${{directory:{rig.secret_file.parent}:../pg}}", "is not the name of a file"),
    ):
        config = {"connector.class": "RateSource", "sink.format": "noop", "source.rows.per.second": value}
        answer = rig.ask("POST", "/connectors", {"name": "bad", "config": config})
        assert answer.status_code == 400, answer.text
        assert words in answer.json()["message"]
        assert "contains the following 1 error(s)" in answer.json()["message"]
        validated = rig.ask("PUT", "/connector-plugins/RateSource/config/validate", {"name": "bad", **config})
        assert validated.json()["error_count"] == 1
        assert words in validated.text
    secret_number = {"connector.class": "RateSource", "sink.format": "noop", "tasks.max": "${env:NEEDLE_ENV}"}
    assert rig.ask("POST", "/connectors", {"name": "bad", "config": secret_number}).status_code == 400
    rig.secret_file.write_text("nothing=1\n")
    rig.restart("pg")
    assert "has no key password" in rig.wait_for("pg", "FAILED")

    for name in ("pg", "raises", "options", "jvm", "plain", "files", "topic"):
        for path in ("", "/config", "/tasks", "/status", "/topics", "/offsets", "/tasks/0/status"):
            rig.ask("GET", f"/connectors/{name}{path}")
    for path in ("/connectors?expand=info&expand=status", "/coterie/worker", "/coterie/group"):
        rig.ask("GET", path)
    ui_text = "\n".join(rig.ui_texts())
    # The files are read when the worker has ended: a running query renames and deletes files of its checkpoint.
    rig.worker.kill_group(signal.SIGTERM)
    assert rig.worker.wait(within_s=60) == 0
    texts = {
        "answers": "\n".join(rig.answers),
        "answers with names": "\n".join(rig.name_answers),
        "config topic": rig.topic_text("configs"),
        "status topic": rig.topic_text("statuses"),
        "offset topic": rig.topic_text("offsets"),
        "Spark's UI": ui_text,
        "worker's log": rig.file_texts("keeper.log"),
        "JVM's log": rig.file_texts("jvm.log"),
        "event log": rig.file_texts("events"),
        "checkpoints": rig.file_texts("checkpoints"),
        "broker's log": rig.file_texts("broker.log"),
    }

    def places_of(needle: str) -> set[str]:
        return {place for place, text in texts.items() if needle in text}

    assert {needle: places_of(needle) for needle in HIDDEN} == {needle: set() for needle in HIDDEN}
    # The names of files and topics are in the offsets, and a Kafka source's task configs have them (docs/security.md).
    assert places_of(FOLDER_SECRET) == {"answers with names", "checkpoints"}
    assert places_of(TOPIC_SECRET) == {
        "answers",
        "answers with names",
        "config topic",
        "status topic",
        "checkpoints",
    }
    # A password that is written out is stored, and is in no log, trace or page.
    assert places_of(PLAIN_PASSWORD) == {"answers", "config topic", "checkpoints"}
    # The search finds what is there: a value that is no secret (the audit log, too, has it), the references, and what
    # stands in place of secrets.
    assert places_of(VISIBLE) == {
        "answers",
        "config topic",
        "checkpoints",
        "worker's log",
        "Spark's UI",
        "event log",
    }
    assert places_of("NEEDLE_ENV}") >= {"answers", "config topic", "checkpoints"}
    assert places_of(MASK) >= {"answers", "status topic", "worker's log", "JVM's log", "Spark's UI", "event log"}
    # Spark's UI and event log show the plans and exceptions that contained the secrets.
    for place in ("Spark's UI", "event log"):
        assert f" as string) = {MASK})" in texts[place], place
        assert f"/proc/{MASK}/x" in texts[place]
        assert f"{rig.folder}/{MASK}" in texts[place]
    assert "nothing can be read with" in texts["worker's log"]
    assert re.search(r"other-value", json.dumps(texts)) is None
