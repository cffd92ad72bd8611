import pytest

from coterie.broker.topics.config_changes import ConfigChange, altered
from coterie.broker.topics.configs import TOPIC
from coterie.wire.errors import ErrorCode, KafkaRefusal

SET, DELETE, APPEND, SUBTRACT = range(4)


def change(name: str, operation: int, value: str | None = None) -> ConfigChange:
    return ConfigChange(name=name, operation=operation, value=value)


def test_each_change_is_made_and_the_rest_stays() -> None:
    own = {"retention.ms": "1", "segment.ms": "2", "max.message.bytes": "3"}
    changes = [change("retention.ms", SET, "9"), change("segment.ms", DELETE), change("flush.ms", SET, "4")]
    assert altered(TOPIC, own, changes) == {"retention.ms": "9", "max.message.bytes": "3", "flush.ms": "4"}
    assert own == {"retention.ms": "1", "segment.ms": "2", "max.message.bytes": "3"}


def test_lists_grow_and_shrink_from_their_default() -> None:
    assert altered(TOPIC, {}, [change("cleanup.policy", APPEND, "compact, delete")]) == {
        "cleanup.policy": "delete,compact"
    }
    assert altered(TOPIC, {}, [change("cleanup.policy", SUBTRACT, "delete")]) == {"cleanup.policy": ""}
    both = {"cleanup.policy": "delete, compact"}
    assert altered(TOPIC, both, [change("cleanup.policy", SUBTRACT, "delete,x")]) == {"cleanup.policy": "compact"}


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
def test_changes_without_sense_are_refused(changes: list[ConfigChange], error: ErrorCode) -> None:
    with pytest.raises(KafkaRefusal) as refused:
        altered(TOPIC, {}, changes)
    assert refused.value.error is error
