import pytest

from coterie.broker.topics.config_changes import ConfigChange, apply_changes
from coterie.broker.topics.configs import TOPIC_CONFIGS
from coterie.wire.errors import ErrorCode, KafkaRefusal

SET, DELETE, APPEND, SUBTRACT = range(4)


def change(name: str, operation: int, value: str | None = None) -> ConfigChange:
    return ConfigChange(name=name, operation=operation, value=value)


def test_each_change_is_applied_and_other_configs_stay() -> None:
    own = {"retention.ms": "1", "segment.ms": "2", "max.message.bytes": "3"}
    changes = [change("retention.ms", SET, "9"), change("segment.ms", DELETE), change("flush.ms", SET, "4")]
    assert apply_changes(TOPIC_CONFIGS, own, changes) == {
        "retention.ms": "9",
        "max.message.bytes": "3",
        "flush.ms": "4",
    }
    assert own == {"retention.ms": "1", "segment.ms": "2", "max.message.bytes": "3"}


def test_append_and_subtract_start_from_the_default_of_a_list() -> None:
    assert apply_changes(TOPIC_CONFIGS, {}, [change("cleanup.policy", APPEND, "compact, delete")]) == {
        "cleanup.policy": "delete,compact"
    }
    assert apply_changes(TOPIC_CONFIGS, {}, [change("cleanup.policy", SUBTRACT, "delete")]) == {"cleanup.policy": ""}
    both = {"cleanup.policy": "delete, compact"}
    assert apply_changes(TOPIC_CONFIGS, both, [change("cleanup.policy", SUBTRACT, "delete,x")]) == {
        "cleanup.policy": "compact"
    }


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ([change("retention.ms", SET, "1"), change("retention.ms", DELETE)], ErrorCode.invalid_request),
        ([change("retention.ms", SET, None)], ErrorCode.invalid_request),
        ([change("retention.ms", 9, "1")], ErrorCode.invalid_request),
        ([change("retention.ms", APPEND, "1")], ErrorCode.invalid_config),
        ([change("no.such.config", SUBTRACT, "1")], ErrorCode.invalid_config),
    ],
)
def test_invalid_changes_are_refused(changes: list[ConfigChange], error: ErrorCode) -> None:
    with pytest.raises(KafkaRefusal) as refused:
        apply_changes(TOPIC_CONFIGS, {}, changes)
    assert refused.value.error is error
