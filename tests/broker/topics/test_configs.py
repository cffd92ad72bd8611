from coterie.broker.topics.configs import (
    BROKER_NAMES,
    TOPIC,
    config_error,
    has_append_time,
    items_of,
    number_of,
    text_of,
)


def test_kafkas_defaults_are_within_kafkas_bounds() -> None:
    assert TOPIC.errors({}) == {}
    assert set(BROKER_NAMES) <= {key.name for key in TOPIC.keys}


def test_keys_that_change_nothing_here_say_so() -> None:
    unread = [key for key in TOPIC.keys if key.name.startswith(("compression.", "segment."))]
    assert len(unread) == 8
    assert all("this broker" in key.documentation for key in unread)


def test_what_is_not_set_has_its_default() -> None:
    assert number_of({}, "retention.ms") == 604_800_000
    assert items_of({}, "cleanup.policy") == ["delete"]
    assert not has_append_time({})


def test_what_is_set_is_read_without_its_blanks() -> None:
    configs = {"retention.ms": " +5 ", "cleanup.policy": "compact, delete", "message.timestamp.type": "LogAppendTime "}
    assert config_error(configs) is None
    assert number_of(configs, "retention.ms") == 5
    assert items_of(configs, "cleanup.policy") == ["compact", "delete"]
    assert text_of(configs, "message.timestamp.type") == "LogAppendTime"
    assert has_append_time(configs)


def test_keys_are_checked_together_where_they_contradict() -> None:
    assert config_error({"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"}) == (
        "conflict topic config setting min.compaction.lag.ms (2) > max.compaction.lag.ms (1)"
    )
