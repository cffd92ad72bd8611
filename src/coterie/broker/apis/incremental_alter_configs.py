"""IncrementalAlterConfigs: sets and deletes single configs of topics and groups, and appends items to or subtracts
items from configs that are lists; or only checks the changes (validate-only; KIP-339). Not supported: the configs of
brokers, because a broker's settings are fixed at its start; of loggers and of client metrics, because there are
none."""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import Operation, config_resources_authorization
from coterie.broker.apis.config_resources import ConfigResourceType, broker_id_error
from coterie.broker.connect_configs import GROUP_PREFIX
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.broker.error_reply import await_error_and_message
from coterie.broker.groups.configs import group_config_definition, group_config_error
from coterie.broker.loop_yield import yielding
from coterie.broker.topics.config_changes import ConfigChange, apply_changes
from coterie.broker.topics.configs import TOPIC_CONFIGS, topic_configs_error
from coterie.broker.topics.names import is_internal_topic, topic_name_error
from coterie.config.definition import ConfigDef
from coterie.groups.connect.messages import ErrorOnlyResponse, SetGroupConfigs
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.ids import GroupId
from coterie.wire.errors import ErrorCode, KafkaRefusal
from coterie.wire.kio_entities import Values

Alter = Callable[[ConfigDef, Mapping[str, str]], dict[str, str]]
"""Returns the new configs of a resource, given the definition of the possible configs and the configs that are set on
the resource now. May raise a `KafkaRefusal`."""
AlterRequested = Callable[[Any, ConfigDef, Mapping[str, str]], dict[str, str]]
"""Like `Alter`, with the request's entry for the resource as an additional first argument."""


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    return await alter_resources(broker, request, _with_requested_changes_or_raise)


def _with_requested_changes_or_raise(asked: Any, definition: ConfigDef, own: Mapping[str, str]) -> dict[str, str]:
    """The configs ``own`` with the changes of the request's entry ``asked`` applied.

    :raises KafkaRefusal: when a change is invalid.
    """
    changes = [ConfigChange(name=one.name, operation=one.config_operation, value=one.value) for one in asked.configs]
    return apply_changes(definition, own, changes)


async def alter_resources(broker: BrokerContext, request: ApiRequest, alter: AlterRequested) -> Values:
    """Alter the request's resources, one after the other: the new configs of each resource are those that ``alter``
    returns. Returns the response, with an error code for each resource."""
    resource_counts = Counter((asked.resource_type, asked.resource_name) for asked in request.body.resources)
    answers: list[Values] = []
    async for asked in yielding(request.body.resources):
        error, error_message = await await_error_and_message(
            _alter_resource(
                broker, asked, partial(alter, asked), resource_counts, validate_only=request.body.validate_only
            )
        )
        answers.append(
            {
                "error_code": error,
                "error_message": error_message,
                "resource_type": asked.resource_type,
                "resource_name": asked.resource_name,
            }
        )
    return {"responses": answers}


async def _alter_resource(
    broker: BrokerContext, asked: Any, alter: Alter, resource_counts: Counter[Any], *, validate_only: bool
) -> None:
    """Alter the configs of the resource in the request's entry ``asked``; if ``validate_only``, only check the new
    configs. ``resource_counts`` counts how often the request contains each resource, by type and name.

    :raises KafkaRefusal: when there is no such resource, or a change is invalid or not supported.
    :raises WorldError: when the topic was deleted meanwhile, or the log cannot be written. After an error nothing was
        changed, except that a group's configs may be changed in part, see :func:`_alter_group_configs`.
    """
    name = asked.resource_name
    if resource_counts[asked.resource_type, name] > 1:
        raise KafkaRefusal(ErrorCode.invalid_request, "Each resource must appear at most once.")
    # Locked, because configs are read, changed and written back.
    async with broker.log.configs_lock:
        match asked.resource_type:
            case ConfigResourceType.TOPIC:
                await _alter_topic_configs(broker, name, alter, validate_only=validate_only)
            case ConfigResourceType.GROUP:
                await _alter_group_configs(broker, name, alter, validate_only=validate_only)
            case ConfigResourceType.BROKER:
                _check_sets_no_broker_config(name, alter)
            case type_:
                raise KafkaRefusal(ErrorCode.invalid_request, f"Unknown resource type {type_}")


async def _alter_topic_configs(broker: BrokerContext, name: str, alter: Alter, *, validate_only: bool) -> None:
    """Alter the configs of the topic ``name``; if ``validate_only``, only check the new configs.

    :raises KafkaRefusal: when there is no such topic, or a change is invalid or not supported.
    :raises WorldError: when the topic was deleted meanwhile, or the log cannot be written. After each error nothing was
        changed.
    """
    if error_message := topic_name_error(name):
        raise KafkaRefusal(ErrorCode.invalid_topic_exception, error_message)
    topic = broker.log.topics.get(name)
    if topic is None:
        raise KafkaRefusal(ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist.")
    configs = alter(TOPIC_CONFIGS, topic.configs)
    _refuse_if_config_error(topic_configs_error(configs))
    if is_internal_topic(name) and configs != topic.configs:
        raise KafkaRefusal(ErrorCode.invalid_config, f"The configs of the internal topic {name} cannot be changed.")
    if not validate_only:
        await broker.log.replace_topic_configs(topic, configs)


async def _alter_group_configs(broker: BrokerContext, name: str, alter: Alter, *, validate_only: bool) -> None:
    """Alter the configs of the group ``name``, which need not exist; if ``validate_only``, only check the new configs.

    All changes are made or none, as in Kafka, with one exception. There are two writes: first all configs that are not
    for connect groups, then those for connect groups. Only the first write is made if the broker is killed between the
    two, or if the second write fails and the first cannot be undone. The configs are then valid, because no config of
    one part depends on a config of the other. The client received no success, so it can send the request again, which
    makes the missing changes. A repeated change has the same result, because no group config is a list.

    :raises KafkaRefusal: when ``name`` is empty, a change is invalid, or the coordinator of connect groups refuses it,
        also because the log cannot be written.
    :raises WorldError: when the log cannot be written.
    """
    if not name:
        raise KafkaRefusal(ErrorCode.invalid_request, "Default group resources are not allowed.")
    before = await broker.group_configs(name)
    configs = alter(group_config_definition(broker.settings), before)
    _refuse_if_config_error(group_config_error(configs, broker.settings))
    if validate_only:
        return
    others = {key: value for key, value in configs.items() if not key.startswith(GROUP_PREFIX)}
    others_before = broker.log.group_configs.get(name, {})
    if others != others_before:
        await broker.log.replace_group_configs(name, others)
    try:
        await _set_connect_configs_if_changed(
            broker, GroupId(name), _select_connect_configs(before), _select_connect_configs(configs)
        )
    except KafkaRefusal:
        # This undo needs no space on a full disk; an undo of the coordinator's record would need more.
        if others != others_before:
            await broker.log.replace_group_configs(name, others_before)
        raise


def _select_connect_configs(configs: Mapping[str, str]) -> dict[str, str]:
    """Those of ``configs`` whose names begin with ``GROUP_PREFIX``. The coordinator of the connect group stores them;
    the broker's log stores all others."""
    return {key: value for key, value in configs.items() if key.startswith(GROUP_PREFIX)}


async def _set_connect_configs_if_changed(
    broker: BrokerContext, group_id: GroupId, before: Mapping[str, str], configs: Mapping[str, str]
) -> None:
    """Replace the configs ``before`` of a connect group by ``configs``. Does nothing if they are equal, or if the
    broker serves no connect groups.

    :raises KafkaRefusal: when the coordinator refuses the configs: the broker has too many groups or stops, the group
        is being loaded, or the log cannot be written.
    """
    if configs == before or broker.connect_groups is None:
        return
    response = await broker.connect_groups.ask(
        group_id, lambda reply_to: SetGroupConfigs(reply_to=reply_to, configs=configs)
    )
    assert isinstance(response, ErrorOnlyResponse)
    if response.error is not ConnectErrorCode.NONE:
        raise KafkaRefusal(ErrorCode(response.error), response.message)


def _check_sets_no_broker_config(name: str, alter: Alter) -> None:
    """Check a request to alter the configs of a broker: only a request that sets no config is allowed.

    :raises KafkaRefusal: when ``name`` is not this broker's id, or the request sets a config.
    """
    # An empty name means all brokers of the cluster.
    if name and (error_message := broker_id_error(name)):
        raise KafkaRefusal(ErrorCode.invalid_request, error_message)
    if alter(ConfigDef(()), {}):
        raise KafkaRefusal(
            ErrorCode.invalid_request,
            "This broker's settings cannot be changed while it runs: restart it with other settings.",
        )


def _refuse_if_config_error(error_message: str | None) -> None:
    """Refuse the request with INVALID_CONFIG if there is an error message.

    :raises KafkaRefusal: when ``error_message`` is not None.
    """
    if error_message is not None:
        raise KafkaRefusal(ErrorCode.invalid_config, error_message)


_AUTHORIZATION = config_resources_authorization(Operation.ALTER_CONFIGS, response_field="responses")
API = KafkaApi(key=44, versions=range(2), handle=handle, authorization=_AUTHORIZATION)
