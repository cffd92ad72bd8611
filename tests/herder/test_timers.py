"""Timers are claims to check: one that was moved or cancelled may still fire."""

from typing import get_args

import pytest

from coterie.herder.messages import TimerFired
from coterie.herder.requests.ids import LeaderWriteId, RequestId
from coterie.herder.timers import (
    ClosedCheckpointCheckDue,
    ConfigLogEndLookupDue,
    ConnectorRetryDue,
    HerderTimer,
    RequestTimeoutDue,
    TaskRestartDue,
    Timer,
)
from tests.herder.builders import ORDERS, TASKS, working

TIMERS: list[Timer] = [
    *get_args(HerderTimer),
    RequestTimeoutDue(id=RequestId(7)),
    ConfigLogEndLookupDue(id=RequestId(7)),
    ConfigLogEndLookupDue(id=LeaderWriteId(number=7)),
    ConnectorRetryDue(connector=ORDERS),
    TaskRestartDue(task=TASKS[0]),
    ClosedCheckpointCheckDue(connector=ORDERS),
]


def test_every_kind_of_timer_has_a_case() -> None:
    kinds = {kind for kind in get_args(Timer) if isinstance(kind, type)}
    assert {type(timer) for timer in TIMERS} - {str} == kinds


@pytest.mark.parametrize("timer", TIMERS, ids=str)
def test_a_stray_timer_has_no_effect(timer: Timer) -> None:
    driver = working()
    driver.feed(TimerFired(timer=timer))
    assert driver.effects == []
