"""Users' requests: each has the answer that its docstring names."""

import re
from typing import get_args

import pytest

from coterie.herder import config_records
from coterie.herder.requests.kinds import Answer, Request
from coterie.herder.requests.orders import (
    DrainWorker,
    RestartConnectorTask,
    RestartWorker,
    SetGroupLoggerLevel,
    UncordonWorker,
)
from coterie.herder.requests.questions import DescribePlugin, ListPlugins, ValidateConnectorConfig
from coterie.herder.requests.reads import (
    DescribeConnector,
    DescribeConnectorOffsets,
    DescribeConnectors,
    DescribeConnectorStatus,
    DescribeTaskConfigs,
    DescribeTaskStatus,
    ListConnectors,
)
from coterie.herder.requests.signatures import FenceTasks, SignContent, VerifySignature
from coterie.herder.requests.topics import DescribeActiveTopics, ResetActiveTopics
from coterie.herder.requests.views import DescribeWorker, DescribeWorkerGroup
from coterie.herder.requests.writes import (
    ChangeOffsets,
    DeleteConnector,
    PatchConnector,
    PutConnector,
    PutTaskConfigs,
    RestartConnector,
    SetTargetState,
)
from coterie.herder.session_keys import Signature
from coterie.nouns.connector_offsets import RESET_OFFSETS
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.logger_levels import LoggerLevel
from coterie.nouns.states import TargetState
from coterie.wire.connect import ConnectProtocol
from tests.herder.builders import CONFIG, ORDERS, ORDERS_TASK_CONFIGS, TASKS, configured_herder, lead_round
from tests.herder.herder_driver import ME, lease_renewed

HERE = "here:8083"
REQUESTS: list[Request] = [
    ListConnectors(),
    DescribeConnectors(connectors=(ORDERS,)),
    DescribeConnector(connector=ORDERS),
    DescribeConnectorOffsets(connector=ORDERS),
    DescribeTaskConfigs(connector=ORDERS),
    DescribeConnectorStatus(connector=ORDERS),
    DescribeTaskStatus(task=TASKS[0]),
    DescribeWorker(),
    PutConnector(connector=ORDERS, config=CONFIG, may_replace=True),
    PatchConnector(connector=ORDERS, patch={"tasks.max": "1"}),
    DeleteConnector(connector=ORDERS),
    ChangeOffsets(connector=ORDERS, change=RESET_OFFSETS),
    SetTargetState(connector=ORDERS, target_state=TargetState.PAUSED),
    PutTaskConfigs(connector=ORDERS, configs=ORDERS_TASK_CONFIGS),
    ListPlugins(connectors_only=True),
    DescribePlugin(name="Source", version_range=None),
    ValidateConnectorConfig(config=CONFIG),
    DescribeWorkerGroup(),
    DrainWorker(worker=HERE),
    UncordonWorker(worker=HERE),
    RestartWorker(worker=HERE),
    RestartConnector(connector=ORDERS, include_tasks=True, only_failed=False),
    RestartConnectorTask(task=TASKS[0]),
    SetGroupLoggerLevel(logger="a", level=LoggerLevel.INFO),
    SignContent(content=b"x"),
    VerifySignature(signature=Signature(algorithm="HmacSHA256", mac=b"x", body=b"x")),
    FenceTasks(connector=ORDERS, signature=None),
    DescribeActiveTopics(connector=ORDERS),
    ResetActiveTopics(connector=ORDERS),
]


def test_every_kind_of_request_has_a_case() -> None:
    assert {type(request) for request in REQUESTS} == set(get_args(Request))


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_the_answer_has_the_type_that_the_requests_docstring_names(request_: Request) -> None:
    herder = configured_herder()
    # Each protocol that supports drains requires signed task configs.
    is_unsigned = isinstance(request_, PutTaskConfigs)
    lead_round(herder, ConnectProtocol.COMPATIBLE if is_unsigned else ConnectProtocol.STATIC, {ME: NO_JOBS})
    herder.run_all_chores()
    if isinstance(request_, ChangeOffsets):
        herder.write(*config_records.task_config_and_commit_lines(ORDERS, ()))
        herder.write(config_records.target_state_line(ORDERS, TargetState.STOPPED))
        herder.feed(lease_renewed(sent_at_ms=herder.now_ms))
    id_ = herder.send_request(request_)
    herder.run_all_chores()
    answers = {kind.__name__ for kind in get_args(Answer)}
    named = set(re.findall(r":class:`(\w+)`", type(request_).__doc__ or "")) & answers
    assert {type(herder.answer(id_)).__name__} == named
