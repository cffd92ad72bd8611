"""What each API needs, as in Kafka: which operation on what, and the code that says no."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from coterie.broker.security.authorizer import Operation
from coterie.broker.security.permissions import (
    CLUSTER,
    GROUP,
    TOPIC,
    TRANSACTIONAL_ID,
    Asking,
    Each,
    Needs,
    Permission,
)
from coterie.wire.batches import HEAD_SIZE, TRANSACTIONAL
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values

_OF_TRANSACTIONS = 1
"""FindCoordinator's key type; every other is a group's here."""
_ATTRIBUTES_END = 23
"""In a batch."""
_TOPIC_TYPE, _GROUP_TYPE = 2, 32
"""Of a resource with configs; every other is the cluster's."""


def _in_group(operation: Operation, field: str = "group_id") -> Callable[[Asking], ErrorCode | None]:
    return lambda asking: asking.refusal(operation, GROUP, getattr(asking.request.body, field))


def _in_cluster(operation: Operation) -> Callable[[Asking], ErrorCode | None]:
    return lambda asking: asking.refusal(operation, CLUSTER)


def _in_transaction(field: str = "transactional_id") -> Callable[[Asking], ErrorCode | None]:
    return lambda asking: asking.refusal(Operation.WRITE, TRANSACTIONAL_ID, getattr(asking.request.body, field))


def _topic(operation: Operation, first: Callable[[Asking], ErrorCode | None] | None = None) -> Needs:
    """``operation`` on the topic, after what the whole request needs where that is told topic by topic."""

    def needs(asking: Asking, asked: Any) -> ErrorCode | None:
        error = first(asking) if first is not None else None
        return error if error is not None else asking.topic(operation, asked, _name_field(asked))

    return needs


def _name_field(asked: Any) -> str:
    return "topic" if hasattr(asked, "topic") else "name"


def _partitions(
    needs: Needs,
    *,
    asked: str = "topics",
    answers: str = "topics",
    parts: tuple[str, str] = ("partitions", "partitions"),
    number: tuple[str, str] = ("partition_index", "partition_index"),
) -> Each:
    """Topics with partitions, each of which is answered; a pair is what the request and the answer call the same."""

    def refused(topic: Any, error: ErrorCode) -> Values:
        field = _name_field(topic)
        return {
            field: getattr(topic, field, None),
            "topic_id": getattr(topic, "topic_id", None),
            parts[1]: [{number[1]: getattr(one, number[0]), "error_code": error} for one in getattr(topic, parts[0])],
        }

    return Each(asked=asked, answers=answers, needs=needs, refused=refused)


def _topics(operation: Operation, *, asked: str = "topics", answers: str = "topics") -> Each:
    return Each(
        asked=asked,
        answers=answers,
        needs=_topic(operation),
        refused=lambda topic, error: {
            "name": getattr(topic, "name", None),
            "topic_id": getattr(topic, "topic_id", None),
            "error_code": error,
            "error_message": _SENTENCE,
        },
    )


def _names(needs: Needs, *, asked: str, answers: str, name: str) -> Each:
    """A list of bare names."""
    return Each(asked=asked, answers=answers, needs=needs, refused=lambda one, error: {name: one, "error_code": error})


def _groups(operation: Operation, *, asked: str, answers: str) -> Each:
    return _names(
        lambda asking, group: asking.refusal(operation, GROUP, group), asked=asked, answers=answers, name="group_id"
    )


def _resources(operation: Operation, *, answers: str) -> Each:
    def needs(asking: Asking, asked: Any) -> ErrorCode | None:
        type_ = {_TOPIC_TYPE: TOPIC, _GROUP_TYPE: GROUP}.get(asked.resource_type)
        return (
            asking.refusal(operation, CLUSTER)
            if type_ is None
            else asking.refusal(operation, type_, asked.resource_name)
        )

    return Each(
        asked="resources",
        answers=answers,
        needs=needs,
        refused=lambda asked, error: {
            "error_code": error,
            "error_message": _SENTENCE,
            "resource_type": asked.resource_type,
            "resource_name": asked.resource_name,
        },
    )


_SENTENCE = "Authorization failed."


# -- what does not fit the patterns -----------------------------------------------------------------------------------


def _metadata_topic(asking: Asking, asked: Any) -> ErrorCode | None:
    """To describe it; and to create it, where that is what would happen."""
    error = asking.topic(Operation.DESCRIBE, asked)
    if error is not None or asked.name is None or asked.name in asking.node.log.topics:
        return error
    settings = asking.node.settings
    would_create = asking.request.told("allow_auto_topic_creation", True) and settings.auto_create_topics
    return _creation(asking, asked) if would_create else None


def _creation(asking: Asking, asked: Any) -> ErrorCode | None:
    if asking.may(Operation.CREATE, CLUSTER):
        return None
    return asking.refusal(Operation.CREATE, TOPIC, asked.name)


def _coordinator(asking: Asking, key: str) -> ErrorCode | None:
    type_ = TRANSACTIONAL_ID if asking.request.told("key_type", 0) == _OF_TRANSACTIONS else GROUP
    return asking.refusal(Operation.DESCRIBE, type_, key)


def _one_coordinator(asking: Asking) -> ErrorCode | None:
    """Before v4 there was one key."""
    key = asking.request.told("key", None)
    return None if key is None else _coordinator(asking, key)


def _producer(asking: Asking) -> ErrorCode | None:
    transactional_id = asking.request.body.transactional_id
    if transactional_id is not None:
        return asking.refusal(Operation.WRITE, TRANSACTIONAL_ID, transactional_id)
    if asking.may(Operation.IDEMPOTENT_WRITE, CLUSTER) or asking.may_anywhere(Operation.WRITE, TOPIC):
        return None
    return ErrorCode.cluster_authorization_failed


def _produced(asking: Asking) -> ErrorCode | None:
    """The transactional id counts where there is a batch of a transaction."""
    body = asking.request.body
    if body.transactional_id is None or not any(
        _is_transactional(data.records) for topic in body.topic_data for data in topic.partition_data
    ):
        return None
    return asking.refusal(Operation.WRITE, TRANSACTIONAL_ID, body.transactional_id)


def _is_transactional(batch: bytes | None) -> bool:
    return batch is not None and len(batch) >= HEAD_SIZE and bool(batch[_ATTRIBUTES_END - 1] & TRANSACTIONAL)


def _deletion(asking: Asking, asked: Any) -> ErrorCode | None:
    """That a topic is not there, whoever may describe it is told."""
    name = asked if isinstance(asked, str) else asked.name
    if name is not None and name not in asking.node.log.topics:
        return asking.refusal(Operation.DESCRIBE, TOPIC, name)
    return asking.refusal(Operation.DELETE, TOPIC, name) if name else asking.topic(Operation.DELETE, asked)


def _added_topic(asking: Asking, asked: Any) -> ErrorCode | None:
    """All of the topics or none: with one refused, the others are not attempted."""
    error = _in_transaction("v3_and_below_transactional_id")(asking)
    if error is not None:
        return error
    write = _topic(Operation.WRITE)
    if (error := write(asking, asked)) is not None:
        return error
    others = asking.request.body.v3_and_below_topics
    return ErrorCode.operation_not_attempted if any(write(asking, other) for other in others) else None


def _added_by_a_broker(asking: Asking) -> ErrorCode | None:
    """Since v4 for brokers only."""
    return (
        None if hasattr(asking.request.body, "v3_and_below_topics") else _in_cluster(Operation.CLUSTER_ACTION)(asking)
    )


def _fetched_group(asking: Asking) -> ErrorCode | None:
    """From v2 to v7 there is one group, and a code for it; before, its partitions tell; after, there are several."""
    group_id = asking.request.told("group_id", None)
    if group_id is None or asking.request.header.api_version < 2:
        return None
    return asking.refusal(Operation.DESCRIBE, GROUP, group_id)


def _seen_offsets(asking: Asking, answer: Values) -> Values:
    """Offsets of topics that the peer may describe; of the others those asked for by name are told as refused."""
    body = asking.request.body
    if not hasattr(body, "groups"):
        refusal = (
            None if asking.request.header.api_version > 1 else asking.refusal(Operation.DESCRIBE, GROUP, body.group_id)
        )
        return {**answer, "topics": _seen_topics(asking, answer["topics"], body.topics is not None, refusal)}
    by_id = {group.group_id: group for group in body.groups}
    return {
        **answer,
        "groups": [
            {
                **group,
                "topics": _seen_topics(asking, group["topics"], by_id[group["group_id"]].topics is not None, None),
            }
            for group in answer.get("groups", ())
        ],
    }


def _seen_topics(asking: Asking, topics: Any, are_named: bool, of_group: ErrorCode | None) -> list[Values]:
    seen: list[Values] = []
    for topic in topics:
        name = topic["name"]
        error = of_group or (None if name is None else asking.refusal(Operation.DESCRIBE, TOPIC, name))
        if error is None:
            seen.append(topic)
        elif are_named:
            hidden = [
                {"partition_index": one["partition_index"], "committed_offset": -1, "metadata": "", "error_code": error}
                for one in topic["partitions"]
            ]
            seen.append({**topic, "partitions": hidden})
    return seen


def _seen_transactions(asking: Asking, answer: Values) -> Values:
    """Without the topics that the peer may not describe; nothing says that there are such."""
    return {
        **answer,
        "transaction_states": [
            {
                **one,
                "topics": [topic for topic in one["topics"] if asking.may(Operation.DESCRIBE, TOPIC, topic["topic"])],
            }
            for one in answer.get("transaction_states", ())
        ],
    }


def _seen_configs(asking: Asking, answer: Values) -> Values:
    """Since v5 a new topic's configs are told (KIP-525), to whoever may describe them."""
    hidden = {
        "topic_config_error_code": int(ErrorCode.topic_authorization_failed),
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": (),
    }
    return {
        **answer,
        "topics": [
            topic
            if topic["error_code"] is not ErrorCode.none or asking.may(Operation.DESCRIBE_CONFIGS, TOPIC, topic["name"])
            else {**topic, **hidden}
            for topic in answer.get("topics", ())
        ],
    }


def _is_group_shown(asking: Asking, group: Values) -> bool:
    return asking.may(Operation.DESCRIBE, CLUSTER) or asking.may(Operation.DESCRIBE, GROUP, group["group_id"])


def _is_topic_shown(asking: Asking, topic: Values) -> bool:
    return topic["name"] is None or asking.may(Operation.DESCRIBE, TOPIC, topic["name"])


NOTHING = Permission()

NEEDS: Mapping[int, Permission] = {
    # Produce
    0: Permission(
        each=[
            _partitions(
                _topic(Operation.WRITE, _produced),
                asked="topic_data",
                answers="responses",
                parts=("partition_data", "partition_responses"),
                number=("index", "index"),
            )
        ]
    ),
    # Fetch
    1: Permission(
        each=[
            _partitions(_topic(Operation.READ), answers="responses", number=("partition", "partition_index")),
        ]
    ),
    # ListOffsets
    2: Permission(each=[_partitions(_topic(Operation.DESCRIBE))]),
    # Metadata
    3: Permission(
        each=[
            Each(
                asked="topics",
                answers="topics",
                needs=_metadata_topic,
                refused=lambda topic, error: {
                    "error_code": error,
                    "name": topic.name,
                    "topic_id": getattr(topic, "topic_id", None) if topic.name is None else None,
                    "partitions": (),
                },
            )
        ],
        shown={"topics": _is_topic_shown},
        is_asked_anyway=True,
    ),
    # OffsetCommit, OffsetFetch
    8: Permission(each=[_partitions(_topic(Operation.READ, _in_group(Operation.READ)))]),
    9: Permission(
        whole=_fetched_group,
        each=[
            Each(
                asked="groups",
                answers="groups",
                needs=lambda asking, group: asking.refusal(Operation.DESCRIBE, GROUP, group.group_id),
                refused=lambda group, error: {"group_id": group.group_id, "error_code": error},
            )
        ],
        rewritten=_seen_offsets,
    ),
    # FindCoordinator
    10: Permission(
        whole=_one_coordinator,
        each=[_names(_coordinator, asked="coordinator_keys", answers="coordinators", name="key")],
    ),
    # JoinGroup, Heartbeat, LeaveGroup, SyncGroup
    11: Permission(whole=_in_group(Operation.READ)),
    12: Permission(whole=_in_group(Operation.READ)),
    13: Permission(whole=_in_group(Operation.READ)),
    14: Permission(whole=_in_group(Operation.READ)),
    # DescribeGroups, ListGroups
    15: Permission(each=[_groups(Operation.DESCRIBE, asked="groups", answers="groups")]),
    16: Permission(shown={"groups": _is_group_shown}),
    # SaslHandshake, ApiVersions
    17: NOTHING,
    18: NOTHING,
    # CreateTopics, DeleteTopics, DeleteRecords
    19: Permission(
        each=[
            Each(
                asked="topics",
                answers="topics",
                needs=_creation,
                refused=lambda topic, error: {
                    "name": topic.name,
                    "error_code": error,
                    "error_message": _SENTENCE,
                    "configs": (),
                },
            )
        ],
        rewritten=_seen_configs,
    ),
    20: Permission(
        each=[
            replace(_topics(Operation.DELETE, answers="responses"), needs=_deletion),
            _names(_deletion, asked="topic_names", answers="responses", name="name"),
        ]
    ),
    21: Permission(each=[_partitions(_topic(Operation.DELETE))]),
    # InitProducerId
    22: Permission(whole=_producer),
    # OffsetForLeaderEpoch
    23: Permission(each=[_partitions(_topic(Operation.DESCRIBE), number=("partition", "partition"))]),
    # AddPartitionsToTxn, EndTxn
    24: Permission(
        whole=_added_by_a_broker,
        each=[
            Each(
                asked="v3_and_below_topics",
                answers="results_by_topic_v3_and_below",
                needs=_added_topic,
                refused=lambda topic, error: {
                    "name": topic.name,
                    "results_by_partition": [
                        {"partition_index": number, "partition_error_code": error} for number in topic.partitions
                    ],
                },
            )
        ],
    ),
    26: Permission(whole=_in_transaction()),
    # DescribeConfigs, AlterConfigs
    32: Permission(each=[_resources(Operation.DESCRIBE_CONFIGS, answers="results")]),
    33: Permission(each=[_resources(Operation.ALTER_CONFIGS, answers="responses")]),
    # DescribeLogDirs
    35: Permission(whole=_in_cluster(Operation.DESCRIBE)),
    # SaslAuthenticate
    36: NOTHING,
    # CreatePartitions
    37: Permission(each=[_topics(Operation.ALTER, answers="results")]),
    # DeleteGroups, IncrementalAlterConfigs, OffsetDelete
    42: Permission(each=[_groups(Operation.DELETE, asked="groups_names", answers="results")]),
    44: Permission(each=[_resources(Operation.ALTER_CONFIGS, answers="responses")]),
    47: Permission(whole=_in_group(Operation.DELETE), each=[_partitions(_topic(Operation.READ))]),
    # DescribeCluster: where the brokers are is no secret to whoever is in.
    60: NOTHING,
    # DescribeProducers, DescribeTransactions, ListTransactions
    61: Permission(
        each=[
            Each(
                asked="topics",
                answers="topics",
                needs=_topic(Operation.READ),
                refused=lambda topic, error: {
                    "name": topic.name,
                    "partitions": [
                        {"partition_index": number, "error_code": error} for number in topic.partition_indexes
                    ],
                },
            )
        ]
    ),
    65: Permission(
        each=[
            _names(
                lambda asking, name: asking.refusal(Operation.DESCRIBE, TRANSACTIONAL_ID, name),
                asked="transactional_ids",
                answers="transaction_states",
                name="transactional_id",
            )
        ],
        rewritten=_seen_transactions,
    ),
    66: Permission(
        shown={
            "transaction_states": lambda asking, one: asking.may(
                Operation.DESCRIBE, TRANSACTIONAL_ID, one["transactional_id"]
            )
        }
    ),
    # ListConfigResources, DescribeTopicPartitions
    74: Permission(whole=_in_cluster(Operation.DESCRIBE_CONFIGS)),
    75: Permission(
        each=[
            Each(
                asked="topics",
                answers="topics",
                needs=_topic(Operation.DESCRIBE),
                refused=lambda topic, error: {"error_code": error, "name": topic.name, "partitions": ()},
            )
        ],
        shown={"topics": _is_topic_shown},
    ),
}
"""By API key."""
