"""AlterConfigs: replaces all configs set on a topic or a group; used by older tools. Not supported, as in
IncrementalAlterConfigs: brokers, loggers and client metrics."""

from collections.abc import Mapping
from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.incremental_alter_configs import answered
from coterie.broker.apis.needs import Operation, on_resources
from coterie.broker.node import ApiRequest, Node
from coterie.broker.topics.config_changes import check_names, given
from coterie.config.definition import Definition
from coterie.wire.shapes import Values


async def handle(node: Node, request: ApiRequest) -> Values:
    return await answered(node, request, _replaced)


def _replaced(asked: Any, _definition: Definition, _own: Mapping[str, str]) -> dict[str, str]:
    check_names(one.name for one in asked.configs)
    return {one.name: given(one.name, one.value) for one in asked.configs}


_NEEDS = on_resources(Operation.ALTER_CONFIGS, answers="responses")
API = KafkaApi(key=33, versions=range(3), handle=handle, needs=_NEEDS)
