import re
from pathlib import Path

import pytest

from coterie.config.properties import parse_properties
from coterie.config.rest import RestListener, RestScheme
from coterie.config.worker import WorkerSettings
from coterie.nouns.errors import ConfigError
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs

REQUIRED = {
    "group.id": "fleet",
    "config.storage.topic": "fleet-configs",
    "offset.storage.topic": "fleet-offsets",
    "status.storage.topic": "fleet-status",
    "checkpoint.location": "/shared/checkpoints",
}


EXAMPLE = Path(__file__).parents[2] / "docs" / "worker.properties"


def task(connector: str, number: int) -> ConnectorTaskId:
    return ConnectorTaskId(ConnectorName(connector), number)


def settings(**changes: str) -> WorkerSettings:
    return WorkerSettings.from_properties({**REQUIRED, **{key.replace("_", "."): v for key, v in changes.items()}})


def test_defaults_are_kafka_connects() -> None:
    worker_settings = settings()
    assert worker_settings.bootstrap_servers == ("localhost:9092",)
    assert (worker_settings.plugin_call_timeout_ms, worker_settings.plugin_lost_threads_max) == (60_000, 64)
    assert (
        worker_settings.heartbeat_interval_ms,
        worker_settings.session_timeout_ms,
        worker_settings.rebalance_timeout_ms,
    ) == (3_000, 10_000, 60_000)
    assert (worker_settings.rebalance_heartbeat_interval_ms, worker_settings.config_rebalance_window_ms) == (
        200,
        300,
    ), "Coterie's own"
    assert (worker_settings.worker_sync_timeout_ms, worker_settings.scheduled_rebalance_max_delay_ms) == (
        3_000,
        300_000,
    )
    assert (worker_settings.rebalance_max_moves_per_round, worker_settings.rebalance_round_interval_ms) == (None, 0), (
        "no limit"
    )
    assert (worker_settings.offset_storage_partitions, worker_settings.status_storage_partitions) == (25, 5)
    assert worker_settings.config_storage_replication_factor == 3
    assert worker_settings.rest_listeners == (RestListener(RestScheme.HTTP, "", 8083),)
    assert worker_settings.task_shutdown_graceful_timeout_ms == 5_000


def test_every_missing_required_key_is_reported() -> None:
    with pytest.raises(ConfigError) as raised:
        WorkerSettings.from_properties({})
    assert raised.value.errors.keys() == REQUIRED.keys()
    for key, (message,) in raised.value.errors.items():
        assert message.startswith(f'Missing required configuration "{key}" which has no default value. It is: ')
    assert (
        "The folder of all checkpoints, an absolute path, by which all workers of the group reach it"
        in raised.value.errors["checkpoint.location"][0]
    )


@pytest.mark.parametrize(
    "text",
    [EXAMPLE.read_text(), re.sub(r"(?m)^#(?=\S)", "", EXAMPLE.read_text())],
    ids=["as it is", "with all keys"],
)
def test_the_example_file_is_valid_as_it_is_and_with_all_commented_keys(text: str) -> None:
    properties = parse_properties(text)
    worker_settings = WorkerSettings.from_properties(properties)
    assert WorkerSettings.unknown_keys(properties) == []
    assert worker_settings.bootstrap_servers == ("127.0.0.1:9092",), "the address on which `coterie broker` listens"


def test_the_example_file_contains_every_key() -> None:
    shown = set(re.findall(r"(?m)^#?([a-z.]+)=", EXAMPLE.read_text()))
    assert {name.replace("_", ".") for name in WorkerSettings.model_fields} - shown == {
        "spark",
        "security",
        "rest.tls",
        "providers",
    }


def test_the_example_file_marks_each_commented_key_as_default_or_example() -> None:
    text = EXAMPLE.read_text()
    as_it_is = parse_properties(text)
    example = WorkerSettings.from_properties(as_it_is)
    marked: dict[str, dict[str, str]] = {"Default": {}, "Example": {}}
    for mark, keys in re.findall(r"(?m)^# (Default|Example):\n((?:#\S.*\n)+)", text):
        marked[mark] |= dict(re.findall(r"(?m)^#([a-z.]+)=(.*)", keys))
    assert len(marked["Default"]) + len(marked["Example"]) == len(re.findall(r"(?m)^#[a-z.]+=", text))
    depends_on_another_key = {"group.local.assignors", "inter.worker.key.size"}
    for key, value in marked["Default"].items():
        if key not in depends_on_another_key:
            assert WorkerSettings.from_properties({**as_it_is, key: value}) == example, key
    set_together = ("listeners.https.", "config.providers")
    for key, value in marked["Example"].items():
        if not key.startswith(set_together):
            assert WorkerSettings.from_properties({**as_it_is, key: value}) != example, key


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("bootstrap.servers", "", "must not be empty"),
        ("bootstrap.servers", "one:9092,two", "two is not host:port"),
        ("bootstrap.servers", "one:99999", "one:99999 is not host:port"),
        ("group.id", " ", "must not be empty"),
        ("group.instance.id", "", "must not be empty"),
        ("group.instance.id", "worker one", "letters, digits, dots, underscores or hyphens"),
        ("group.instance.id", "..", "not . or .."),
        ("group.instance.id", "w" * 250, "must be 1 to 249 letters"),
        ("session.timeout.ms", "ten", "not a whole number"),
        ("session.timeout.ms", "0", "must be at least 1"),
        ("session.timeout.ms", "10.5", "not a whole number"),
        ("heartbeat.interval.ms", "10000", "must be less than session.timeout.ms (10000)"),
        ("scheduled.rebalance.max.delay.ms", "-1", "must be at least 0"),
        ("rebalance.heartbeat.interval.ms", "0", "must be at least 1"),
        ("config.rebalance.window.ms", "soon", "not a whole number"),
        ("rebalance.max.moves.per.round", "0", "must be at least 1"),
        ("rebalance.max.moves.per.round", "few", "not a whole number"),
        ("rebalance.round.interval.ms", "-1", "must be at least 0"),
        ("status.storage.partitions", "0", "must be at least 1, or -1 for the broker's own default"),
        ("offset.storage.topic", "fleet-configs", "config.storage.topic has the same topic"),
        ("group.protocol", "consumer", "must be one of classic, connect"),
        ("group.local.assignors", "a,,b", "a name is missing"),
        ("rebalance.listeners", "a,", "a name is missing"),
        ("group.local.assignors", "", "must not be empty without group.remote.assignor"),
        (
            "connect.protocol",
            "fast",
            "must be one of the group protocols eager, compatible, sessioned (Kafka Connect's) and static",
        ),
        ("static.connectors", "orders,,stock", "a name is missing"),
        ("static.tasks", "orders", "'orders' is not <connector>-<task number>"),
        ("static.tasks", "stock-0,orders-", "'orders-' is not <connector>-<task number>"),
        ("static.tasks", "-1", "'-1' is not <connector>-<task number>"),
        ("static.tasks", "orders-x", "'orders-x' is not <connector>-<task number>"),
        ("static.tasks", "orders-01", "'orders-01' is not a task id"),
        ("static.tasks", "orders-2147483648", "a number from 0 to 2147483647, without leading zeros"),
        ("static.tasks", "orders-0,", "a name is missing"),
        ("checkpoint.location", "", "must not be empty"),
        ("checkpoint.location", "checkpoints", "must be an absolute path, such as /data/checkpoints: a relative path"),
        ("checkpoint.location", "./checkpoints", "would be another folder for each worker"),
        ("checkpoint.location", "file:///data/checkpoints", "must be an absolute path"),
        ("inter.worker.key.ttl.ms", "-1", "must be at least 0"),
        ("inter.worker.key.ttl.ms", "1h", "not a whole number"),
        ("inter.worker.key.size", "39", "must be at least 40"),
        ("inter.worker.key.generation.algorithm", "AES", "AES is not one of HmacMD5, HmacSHA1,"),
        ("inter.worker.signature.algorithm", "HmacSHA-256", "HmacSHA-256 is not one of"),
        ("inter.worker.signature.algorithm", "HmacSHA512", "must be in inter.worker.verification.algorithms"),
        ("inter.worker.verification.algorithms", "", "must not be empty"),
        ("inter.worker.verification.algorithms", "HmacSHA256,nope", "nope is not one of"),
        ("inter.worker.verification.algorithms", "HmacSHA256,", "'' is not one of"),
        ("session.timeout.ms", "2147483648", "must be at most 2147483647"),
        ("rebalance.timeout.ms", "99999999999", "must be at most 2147483647"),
        ("scheduled.rebalance.max.delay.ms", "99999999999", "must be at most 2147483647"),
        ("rebalance.round.interval.ms", "99999999999", "must be at most 2147483647"),
        ("rebalance.max.moves.per.round", "99999999999", "must be at most 2147483647"),
        ("config.rebalance.window.ms", "99999999999", "must be at most 2147483647"),
        ("inter.worker.key.ttl.ms", "99999999999", "must be at most 2147483647"),
        ("inter.worker.key.size", "99999999999999", "must be at most 65536"),
        ("config.storage.replication.factor", "32768", "must be at most 32767"),
        ("offset.storage.partitions", "99999999999", "must be at most 2147483647"),
        ("log.level", "loud", "must be one of DEBUG, INFO, WARNING, ERROR"),
    ],
)
def test_an_invalid_value_is_one_sentence_with_key_value_and_reason(key: str, value: str, reason: str) -> None:
    with pytest.raises(ConfigError) as raised:
        WorkerSettings.from_properties({**REQUIRED, key: value})
    (message,) = raised.value.errors[key]
    assert message.startswith(f"Invalid value {value.strip() or chr(39) * 2} for configuration {key}: ")
    assert reason in message
    assert "\n" not in message


def test_all_invalid_keys_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        settings(session_timeout_ms="x", listeners="y", connect_protocol="z")
    assert sorted(raised.value.errors) == ["connect.protocol", "listeners", "session.timeout.ms"]


def test_spark_keys_pass_through_and_unknown_keys_are_listed() -> None:
    properties = {**REQUIRED, "spark.master": "local[2]", "spark.ui.enabled": "false", "key.converter": "Json"}
    assert WorkerSettings.from_properties(properties).spark == {"spark.master": "local[2]", "spark.ui.enabled": "false"}
    assert WorkerSettings.unknown_keys(properties) == ["key.converter"]


def test_a_connect_group_offers_the_local_assignor_unless_the_broker_is_to_compute() -> None:
    assert settings().local_assignors == ("cooperative",)
    assert settings(group_remote_assignor="cooperative").local_assignors == ()
    both = settings(group_remote_assignor="cooperative", group_local_assignors="mine, cooperative")
    assert both.local_assignors == ("mine", "cooperative")


def test_keys_of_the_other_group_protocol_are_ineffective() -> None:
    timeouts = {"session_timeout_ms": "20000", "heartbeat_interval_ms": "2000"}
    connect = settings(group_protocol="Connect", connect_protocol="static", **timeouts).ineffective_keys()
    assert set(connect) == {"session.timeout.ms", "heartbeat.interval.ms", "connect.protocol"}
    assert set(connect.values()) == {"with group.protocol=connect the group's coordinator decides this"}
    plugins = {"group_local_assignors": "cooperative", "rebalance_listeners": "journal"}
    classic = settings(**plugins, **timeouts).ineffective_keys()
    assert classic == dict.fromkeys(["group.local.assignors", "rebalance.listeners"], "it needs group.protocol=connect")


def test_ineffective_keys_are_listed_with_the_reason() -> None:
    interval = {"rebalance_round_interval_ms": "1000"}
    assert settings(connect_protocol="sessioned", static_tasks="orders-0", **interval).ineffective_keys() == {
        "static.tasks": "it needs connect.protocol=static, but connect.protocol is sessioned",
        "rebalance.round.interval.ms": "without rebalance.max.moves.per.round one rebalance makes all moves",
    }
    assert not settings(static_tasks="orders-0", rebalance_max_moves_per_round="2", **interval).ineffective_keys()


def test_a_worker_is_identified_by_its_advertised_address() -> None:
    worker_settings = settings(listeners="http://127.0.0.1:8084")
    assert (worker_settings.worker_id(), worker_settings.advertised_url(), worker_settings.display_name()) == (
        "127.0.0.1:8084",
        "http://127.0.0.1:8084/",
        "127.0.0.1:8084",
    )
    behind = WorkerSettings.from_properties(
        {**REQUIRED, "rest.advertised.host.name": "worker-1.fleet", "rest.advertised.port": "80", "worker.name": "one"}
    )
    assert (behind.worker_id(), behind.advertised_url(), behind.display_name()) == (
        "worker-1.fleet:80",
        "http://worker-1.fleet:80/",
        "one",
    )


@pytest.mark.parametrize(
    ("keys", "claims"),
    [
        ({}, None),
        ({"static_connectors": ""}, Jobs()),
        ({"static_tasks": " "}, Jobs()),
        ({"static_connectors": "orders, stock"}, Jobs.of([ConnectorName("orders"), ConnectorName("stock")])),
        ({"static_tasks": "a-b-3,a--0"}, Jobs.of([task("a-b", 3), task("a-", 0)])),
        ({"static_connectors": "a", "static_tasks": "b-1"}, Jobs.of([ConnectorName("a"), task("b", 1)])),
    ],
)
def test_an_empty_claim_claims_nothing_and_without_a_claim_any_job_may_run(
    keys: dict[str, str], claims: Jobs | None
) -> None:
    assert settings(**keys).claims == claims


def test_the_protocol_is_the_newest_by_default_and_may_be_in_upper_case() -> None:
    assert settings().connect_protocol == "static"
    assert settings(connect_protocol="EAGER").connect_protocol == "eager"


def test_session_keys_have_javas_sizes_and_algorithm_names() -> None:
    worker_settings = settings()
    assert (worker_settings.inter_worker_key_ttl_ms, worker_settings.inter_worker_key_size_bytes) == (3_600_000, 32)
    assert (worker_settings.inter_worker_signature_algorithm, worker_settings.inter_worker_verification_algorithms) == (
        "HmacSHA256",
        ("HmacSHA256",),
    )
    sized = settings(inter_worker_key_size="41", inter_worker_key_ttl_ms="0")
    assert (sized.inter_worker_key_ttl_ms, sized.inter_worker_key_size_bytes) == (0, 6)
    other = settings(inter_worker_key_generation_algorithm="hmacsha384")
    assert other.inter_worker_key_generation_algorithm == "HmacSHA384", "Java's spelling in the config topic"
    assert other.inter_worker_key_size_bytes == 48


def test_the_signature_algorithms_are_those_of_the_settings() -> None:
    both = settings(
        inter_worker_signature_algorithm="HmacSHA512", inter_worker_verification_algorithms="HmacSHA256, HmacSHA512"
    )
    assert both.inter_worker_verification_algorithms == ("HmacSHA256", "HmacSHA512")
    assert both.inter_worker_signature_algorithm == "HmacSHA512"


def test_a_worker_fetches_jars_only_if_that_is_configured() -> None:
    worker_settings = settings()
    assert (worker_settings.jars_dir, worker_settings.jars_fetch) == (None, False)
    assert settings(jars_fetch="true").jars_fetch
    assert settings(jars_mirror="http://maven.example.org/").ineffective_keys() == {
        "jars.mirror": "without jars.fetch=true a worker fetches no jars"
    }
    reason = "with spark.jars.packages a worker adds no jars itself"
    assert settings(
        jars_dir="/jars", jars_fetch="true", spark_jars_packages="org.example:jar:1"
    ).ineffective_keys() == {
        "jars.dir": reason,
        "jars.fetch": reason,
    }


def test_only_configured_modules_are_allowed() -> None:
    assert (settings().pipeline_modules, settings().python_executable) == ((), None)
    assert settings(pipeline_modules="acme.pipelines, other").pipeline_modules == ("acme.pipelines", "other")
    for key, value, message in (
        ("pipeline_modules", "acme-pipelines", "'acme-pipelines' is not the name of a Python module"),
        ("python_executable", "python3", "must be an absolute path"),
    ):
        with pytest.raises(ConfigError, match=message):
            settings(**{key: value})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("jars_fetch", "maybe", "Invalid value maybe for configuration jars.fetch: must be true or false"),
        ("jars_dir", "/a:b", "Invalid value /a:b for configuration jars.dir: Java cannot load jars from a folder with"),
        ("jars_mirror", "http://me:pass@x:99999", "Invalid value [hidden] for configuration jars.mirror: must be the"),
        ("jars_mirror", "ftp://me:pass@x", "Invalid value [hidden] for configuration jars.mirror: must be the http://"),
    ],
)
def test_an_invalid_jar_setting_is_reported_without_its_password(key: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        settings(**{key: value})
    assert raised.value.errors[key.replace("_", ".")][0].startswith(message)


def test_the_mirror_of_jars_is_not_shown_because_it_may_contain_a_password() -> None:
    assert "pass" not in repr(settings(jars_mirror="http://me:pass@maven.example.org"))
