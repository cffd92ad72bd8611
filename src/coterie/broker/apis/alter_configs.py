"""AlterConfigs: replaces all configs that are set on a topic or a group by those of the request; used by older tools.
Not supported, as in IncrementalAlterConfigs: the configs of brokers, loggers and client metrics."""

from collections.abc import Mapping
from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import Operation, config_resources_authorization
from coterie.broker.apis.incremental_alter_configs import alter_resources
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.broker.topics.config_changes import check_unique_names, require_value
from coterie.config.definition import ConfigDef
from coterie.wire.kio_entities import Values


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    return await alter_resources(broker, request, _only_requested_configs_or_raise)


def _only_requested_configs_or_raise(asked: Any, _definition: ConfigDef, _own: Mapping[str, str]) -> dict[str, str]:
    """The new configs of a topic or group: only those in the request's entry ``asked``. The configs set before are
    dropped.

    :raises KafkaRefusal: when a config name occurs twice, or a value is null.
    """
    check_unique_names(one.name for one in asked.configs)
    return {one.name: require_value(one.name, one.value) for one in asked.configs}


_AUTHORIZATION = config_resources_authorization(Operation.ALTER_CONFIGS, response_field="responses")
API = KafkaApi(key=33, versions=range(3), handle=handle, authorization=_AUTHORIZATION)
