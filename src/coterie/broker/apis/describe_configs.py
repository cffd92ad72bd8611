"""DescribeConfigs: the configs of topics, groups and this broker: value, source, synonyms, type and documentation
(KIP-569). Not supported: loggers and client metrics (KIP-714), because this broker has none with configs."""

from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.config_entries import broker_entries, group_entries, topic_entries
from coterie.broker.apis.needs import Operation, on_resources
from coterie.broker.apis.resources import ConfigResourceType, broker_error
from coterie.broker.node import ApiRequest, Node
from coterie.broker.topics.names import name_error
from coterie.broker.turns import in_turns
from coterie.wire.errors import ErrorCode, KafkaRefusal
from coterie.wire.shapes import Values


async def handle(node: Node, request: ApiRequest) -> Values:
    return {
        "results": [_described(node, request, asked) async for asked in in_turns(request.body.resources)],
    }


def _described(node: Node, request: ApiRequest, asked: Any) -> Values:
    error, sentence, configs = ErrorCode.none, "", list[Values]()
    try:
        entries = _entries(node, asked.resource_type, asked.resource_name)
    except KafkaRefusal as refused:
        error, sentence = refused.error, refused.sentence or ""
    else:
        # Without keys the request is for every key, as in Kafka.
        wanted = asked.configuration_keys or [entry["name"] for entry in entries]
        configs = [_shown(request, entry) for entry in entries if entry["name"] in wanted]
    return {
        "error_code": error,
        "error_message": sentence,
        "resource_type": asked.resource_type,
        "resource_name": asked.resource_name,
        "configs": configs,
    }


def _entries(node: Node, type_: int, name: str) -> list[Values]:
    """:raises KafkaRefusal: there is no such resource."""
    match type_:
        case ConfigResourceType.TOPIC:
            if sentence := name_error(name):
                raise KafkaRefusal(ErrorCode.invalid_topic_exception, sentence)
            if name not in node.log.topics:
                raise KafkaRefusal(ErrorCode.unknown_topic_or_partition)
            return topic_entries(node, node.log.topics[name].configs)
        case ConfigResourceType.GROUP:
            if not name:
                raise KafkaRefusal(ErrorCode.invalid_request, "Group name must not be empty")
            return group_entries(node.log.group_configs.get(name, {}))
        case ConfigResourceType.BROKER:
            if not name:
                # Dynamic configs of all brokers: there are none.
                return []
            if sentence := broker_error(name):
                raise KafkaRefusal(ErrorCode.invalid_request, sentence)
            return broker_entries(node)
        case _:
            raise KafkaRefusal(ErrorCode.invalid_request, f"Resources of type {type_} have no configs on this broker.")


def _shown(request: ApiRequest, entry: Values) -> Values:
    """The fields of a config that the request includes."""
    return {
        **entry,
        "synonyms": entry["synonyms"] if request.body.include_synonyms else (),
        "documentation": entry["documentation"] if request.told("include_documentation", False) else None,
    }


_NEEDS = on_resources(Operation.DESCRIBE_CONFIGS, answers="results")
API = KafkaApi(key=32, versions=range(1, 5), handle=handle, needs=_NEEDS)
