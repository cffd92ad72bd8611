"""What users ask: each request is answered as its docstring says."""

import re
from typing import get_args

import pytest

from coterie.herder.requests import (
    Answer,
    DeleteConnector,
    DescribeConnector,
    DescribeStatus,
    DescribeTasks,
    DescribeTaskStatus,
    DescribeWorker,
    DescribeWorkerGroup,
    DrainWorker,
    ListConnectors,
    PutConnector,
    PutTaskConfigs,
    Request,
    RestartWorker,
    SetTargetState,
    UncordonWorker,
)
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.states import TargetState
from coterie.wire.connect import ConnectProtocol
from tests.herder.builders import CONFIG, ORDERS, SHARES, TASKS, lead, ready
from tests.herder.by_hand import ME

HERE = "here:8083"
REQUESTS: list[Request] = [
    ListConnectors(),
    DescribeConnector(connector=ORDERS),
    DescribeTasks(connector=ORDERS),
    DescribeStatus(connector=ORDERS),
    DescribeTaskStatus(task=TASKS[0]),
    DescribeWorker(),
    PutConnector(connector=ORDERS, config=CONFIG, replace=True),
    DeleteConnector(connector=ORDERS),
    SetTargetState(connector=ORDERS, target_state=TargetState.PAUSED),
    PutTaskConfigs(connector=ORDERS, configs=SHARES),
    DescribeWorkerGroup(),
    DrainWorker(worker=HERE),
    UncordonWorker(worker=HERE),
    RestartWorker(worker=HERE),
]


def test_every_kind_of_request_is_asked() -> None:
    assert {type(request) for request in REQUESTS} == set(get_args(Request))


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_a_request_is_answered_as_its_docstring_says(request_: Request) -> None:
    herder = ready()
    # Of the protocols that know a drain, each requires a signature of task configs.
    is_unsigned = isinstance(request_, PutTaskConfigs)
    lead(herder, ConnectProtocol.COMPATIBLE if is_unsigned else ConnectProtocol.STATIC, {ME: NO_JOBS})
    herder.obey()
    id_ = herder.ask(request_)
    herder.obey()
    answers = {kind.__name__ for kind in get_args(Answer)}
    named = set(re.findall(r":class:`(\w+)`", type(request_).__doc__ or "")) & answers
    assert {type(herder.answer(id_)).__name__} == named
