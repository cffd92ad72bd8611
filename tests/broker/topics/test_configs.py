from coterie.broker.topics.configs import (
    BROKER_CONFIG_NAMES,
    TOPIC_CONFIGS,
    int_config_or_default,
    list_config_or_default,
    text_config_or_default,
    topic_configs_error,
    uses_log_append_time,
)


def test_kafkas_defaults_are_within_kafkas_bounds() -> None:
    assert TOPIC_CONFIGS.errors({}) == {}
    assert set(BROKER_CONFIG_NAMES) <= {key.name for key in TOPIC_CONFIGS.keys}


def test_keys_without_effect_are_documented_as_such() -> None:
    unread = [key for key in TOPIC_CONFIGS.keys if key.name.startswith(("compression.", "segment."))]
    assert len(unread) == 8
    assert all("this broker" in key.documentation for key in unread)


def test_a_config_that_is_not_set_has_its_default() -> None:
    assert int_config_or_default({}, "retention.ms") == 604_800_000
    assert list_config_or_default({}, "cleanup.policy") == ["delete"]
    assert not uses_log_append_time({})


def test_config_values_are_read_without_blanks() -> None:
    configs = {"retention.ms": " +5 ", "cleanup.policy": "compact, delete", "message.timestamp.type": "LogAppendTime "}
    assert topic_configs_error(configs) is None
    assert int_config_or_default(configs, "retention.ms") == 5
    assert list_config_or_default(configs, "cleanup.policy") == ["compact", "delete"]
    assert text_config_or_default(configs, "message.timestamp.type") == "LogAppendTime"
    assert uses_log_append_time(configs)


def test_contradicting_config_values_are_refused() -> None:
    assert topic_configs_error({"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"}) == (
        "conflict topic config setting min.compaction.lag.ms (2) > max.compaction.lag.ms (1)"
    )
