"""Timers are claims to check: one that was moved or cancelled may still fire."""

from typing import get_args

import pytest

from coterie.herder.messages import TimerFired
from coterie.herder.requests import OwnWrite, RequestId
from coterie.herder.timers import ClosedDue, HerderTimer, LookDue, RequestDue, RestartDue, RetryDue, Timer
from tests.herder.builders import ORDERS, TASKS, working

TIMERS: list[Timer] = [
    *get_args(HerderTimer),
    RequestDue(id=RequestId(7)),
    LookDue(id=RequestId(7)),
    LookDue(id=OwnWrite(number=7)),
    RetryDue(connector=ORDERS),
    RestartDue(task=TASKS[0]),
    ClosedDue(connector=ORDERS),
]


def test_every_kind_of_timer_is_tried() -> None:
    kinds = {kind for kind in get_args(Timer) if isinstance(kind, type)}
    assert {type(timer) for timer in TIMERS} - {str} == kinds


@pytest.mark.parametrize("timer", TIMERS, ids=str)
def test_a_timer_that_nothing_waits_for_orders_nothing(timer: Timer) -> None:
    hand = working()
    hand.tell(TimerFired(timer=timer))
    assert hand.orders == []
