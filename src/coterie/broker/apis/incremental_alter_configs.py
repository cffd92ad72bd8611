"""IncrementalAlterConfigs: set, delete, append, subtract for topics and groups; with validate-only (KIP-339). Not
supported: brokers, whose settings are fixed at start; loggers and client metrics, because there are none."""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import Operation, on_resources
from coterie.broker.apis.resources import ConfigResourceType, broker_error
from coterie.broker.groups.configs import GROUP, group_config_error
from coterie.broker.node import ApiRequest, Node
from coterie.broker.outcome import outcome
from coterie.broker.topics.config_changes import ConfigChange, altered
from coterie.broker.topics.configs import TOPIC, config_error
from coterie.broker.topics.names import is_internal, name_error
from coterie.broker.turns import in_turns
from coterie.config.definition import Definition
from coterie.wire.errors import ErrorCode, KafkaRefusal
from coterie.wire.shapes import Values

Alter = Callable[[Definition, Mapping[str, str]], dict[str, str]]
"""Returns a resource's new configs, given its definition and old configs; may raise a `KafkaRefusal`."""
AlterAsked = Callable[[Any, Definition, Mapping[str, str]], dict[str, str]]
"""The same with the request's entry for the resource as first argument."""


async def handle(node: Node, request: ApiRequest) -> Values:
    return await answered(node, request, _changed)


def _changed(asked: Any, definition: Definition, own: Mapping[str, str]) -> dict[str, str]:
    changes = [ConfigChange(name=one.name, operation=one.config_operation, value=one.value) for one in asked.configs]
    return altered(definition, own, changes)


async def answered(node: Node, request: ApiRequest, alter: AlterAsked) -> Values:
    """The response to a request that alters resources: each is altered by ``alter``, one after the other."""
    often = Counter((asked.resource_type, asked.resource_name) for asked in request.body.resources)
    answers: list[Values] = []
    async for asked in in_turns(request.body.resources):
        error, sentence = await outcome(
            _alter(node, asked, partial(alter, asked), often, validate_only=request.body.validate_only)
        )
        answers.append(
            {
                "error_code": error,
                "error_message": sentence,
                "resource_type": asked.resource_type,
                "resource_name": asked.resource_name,
            }
        )
    return {"responses": answers}


async def _alter(node: Node, asked: Any, alter: Alter, often: Counter[Any], *, validate_only: bool) -> None:
    """:raises KafkaRefusal, WorldError: nothing was changed."""
    name = asked.resource_name
    if often[asked.resource_type, name] > 1:
        raise KafkaRefusal(ErrorCode.invalid_request, "Each resource must appear at most once.")
    # Locked, because configs are read, changed and written back.
    async with node.log.altering:
        match asked.resource_type:
            case ConfigResourceType.TOPIC:
                await _alter_topic(node, name, alter, validate_only=validate_only)
            case ConfigResourceType.GROUP:
                await _alter_group(node, name, alter, validate_only=validate_only)
            case ConfigResourceType.BROKER:
                _alter_broker(name, alter)
            case type_:
                raise KafkaRefusal(ErrorCode.invalid_request, f"Unknown resource type {type_}")


async def _alter_topic(node: Node, name: str, alter: Alter, *, validate_only: bool) -> None:
    if sentence := name_error(name):
        raise KafkaRefusal(ErrorCode.invalid_topic_exception, sentence)
    topic = node.log.topics.get(name)
    if topic is None:
        raise KafkaRefusal(ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist.")
    configs = alter(TOPIC, topic.configs)
    _refuse(config_error(configs))
    if is_internal(name) and configs != topic.configs:
        raise KafkaRefusal(ErrorCode.invalid_config, f"The configs of the internal topic {name} cannot be changed.")
    if not validate_only:
        await node.log.set_topic_configs(topic, configs)


async def _alter_group(node: Node, name: str, alter: Alter, *, validate_only: bool) -> None:
    if not name:
        raise KafkaRefusal(ErrorCode.invalid_request, "Default group resources are not allowed.")
    configs = alter(GROUP, node.log.group_configs.get(name, {}))
    _refuse(group_config_error(configs))
    if not validate_only:
        await node.log.set_group_configs(name, configs)


def _alter_broker(name: str, alter: Alter) -> None:
    # An empty name means all brokers of the cluster.
    if name and (sentence := broker_error(name)):
        raise KafkaRefusal(ErrorCode.invalid_request, sentence)
    if alter(Definition(()), {}):
        raise KafkaRefusal(
            ErrorCode.invalid_request,
            "This broker's settings cannot be changed while it runs: restart it with other settings.",
        )


def _refuse(sentence: str | None) -> None:
    if sentence is not None:
        raise KafkaRefusal(ErrorCode.invalid_config, sentence)


_NEEDS = on_resources(Operation.ALTER_CONFIGS, answers="responses")
API = KafkaApi(key=44, versions=range(2), handle=handle, needs=_NEEDS)
