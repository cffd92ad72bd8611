"""DescribeConfigs: returns the configs of topics, groups and this broker, each with value, source, synonyms, type and
documentation (KIP-569). Not supported: the configs of loggers and of client metrics (KIP-714): this broker has none."""

from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import Operation, config_resources_authorization
from coterie.broker.apis.config_entries import broker_config_entries, group_config_entries, topic_config_entries
from coterie.broker.apis.config_resources import ConfigResourceType, broker_id_error
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.broker.loop_yield import yielding
from coterie.broker.topics.names import topic_name_error
from coterie.wire.errors import ErrorCode, KafkaRefusal
from coterie.wire.kio_entities import Values


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    return {
        "results": [await _resource_values(broker, request, asked) async for asked in yielding(request.body.resources)],
    }


async def _resource_values(broker: BrokerContext, request: ApiRequest, asked: Any) -> Values:
    """The response entry of one config resource: its requested configs, or an error. ``asked`` is the request's entry;
    if it contains no config names, all configs are requested."""
    error, error_message, configs = ErrorCode.none, "", list[Values]()
    try:
        entries = await _config_entries(broker, asked.resource_type, asked.resource_name)
    except KafkaRefusal as refused:
        error, error_message = refused.error, refused.message or ""
    else:
        # Without keys the request is for every key, as in Kafka.
        wanted = asked.configuration_keys or [entry["name"] for entry in entries]
        configs = [_with_requested_fields_only(request, entry) for entry in entries if entry["name"] in wanted]
    return {
        "error_code": error,
        "error_message": error_message,
        "resource_type": asked.resource_type,
        "resource_name": asked.resource_name,
        "configs": configs,
    }


async def _config_entries(broker: BrokerContext, type_: int, name: str) -> list[Values]:
    """The entries of all configs of the resource ``name``; ``type_`` is the number of its `ConfigResourceType`. Waits
    while a connect group is being reloaded.

    For the broker type, an empty name requests the configs that are set for all brokers of the cluster: there are none.

    :raises KafkaRefusal: when there is no such topic or broker, the name is invalid, or the type has no configs.
    """
    match type_:
        case ConfigResourceType.TOPIC:
            if error_message := topic_name_error(name):
                raise KafkaRefusal(ErrorCode.invalid_topic_exception, error_message)
            if name not in broker.log.topics:
                raise KafkaRefusal(ErrorCode.unknown_topic_or_partition)
            return topic_config_entries(broker, broker.log.topics[name].configs)
        case ConfigResourceType.GROUP:
            if not name:
                raise KafkaRefusal(ErrorCode.invalid_request, "Group name must not be empty")
            return group_config_entries(broker, await broker.group_configs(name))
        case ConfigResourceType.BROKER:
            if not name:
                # Dynamic configs of all brokers: there are none.
                return []
            if error_message := broker_id_error(name):
                raise KafkaRefusal(ErrorCode.invalid_request, error_message)
            return broker_config_entries(broker)
        case _:
            raise KafkaRefusal(ErrorCode.invalid_request, f"Resources of type {type_} have no configs on this broker.")


def _with_requested_fields_only(request: ApiRequest, entry: Values) -> Values:
    """``entry``, the entry of one config, without synonyms and documentation unless the request includes them."""
    return {
        **entry,
        "synonyms": entry["synonyms"] if request.body.include_synonyms else (),
        "documentation": entry["documentation"] if request.field_or_default("include_documentation", False) else None,
    }


_AUTHORIZATION = config_resources_authorization(Operation.DESCRIBE_CONFIGS, response_field="results")
API = KafkaApi(key=32, versions=range(1, 5), handle=handle, authorization=_AUTHORIZATION)
