"""Writes: one at a time, checked against all that was written before, answered when they are read back."""

import pytest

from coterie.herder import config_records
from coterie.herder.messages import (
    AppendConfig,
    ConfigEndFound,
    ConfigValidated,
    FindConfigEnd,
    TimerFired,
    ValidateConfig,
)
from coterie.herder.requests import (
    Answer,
    ConnectorInfo,
    DeleteConnector,
    Done,
    Problem,
    PutConnector,
    RequestId,
    RequestRefused,
    SetTargetState,
)
from coterie.herder.timers import LookDue, RequestDue
from coterie.nouns.jobs import ConnectorName
from coterie.nouns.states import TargetState
from tests.herder.builders import BORN, CONFIG, DEALT, ORDERS, SHARES, ready
from tests.herder.by_hand import ME, ByHand

STOP = (
    *config_records.task_config_lines(ORDERS, ()),
    config_records.target_state_line(ORDERS, TargetState.STOPPED),
)


def put(herder: ByHand, tasks_max: str) -> RequestId:
    """A user gives the connector another config, at its leader."""
    herder.assign(leader=ME)
    return herder.ask(PutConnector(connector=ORDERS, config={**CONFIG, "tasks.max": tasks_max}, replace=True))


def test_a_new_config_is_judged_beside_the_tasks_that_may_have_checkpoints() -> None:
    herder = ready(*STOP)
    id_ = put(herder, "3")
    (asked,) = herder.take(ValidateConfig)
    assert list(asked.checkpointed) == SHARES
    herder.tell(ConfigValidated(id=id_, errors={"tasks.max": ["no"]}))
    answer = herder.answer(id_)
    assert isinstance(answer, RequestRefused)
    assert (answer.problem, "no" in answer.message) == (Problem.BAD_REQUEST, True)
    assert not herder.take(AppendConfig)


def test_tasks_that_are_committed_meanwhile_have_the_config_judged_again() -> None:
    herder = ByHand()
    herder.begin()
    herder.write(BORN)
    id_ = put(herder, "3")
    (asked,) = herder.take(ValidateConfig)
    assert not asked.checkpointed
    herder.tell(ConfigValidated(id=id_, errors={}))
    (look,) = herder.take(FindConfigEnd)
    herder.write(*DEALT)
    herder.do(look)
    assert look.purpose not in [append.purpose for append in herder.take(AppendConfig)]
    (asked,) = herder.take(ValidateConfig)
    assert list(asked.checkpointed) == SHARES
    herder.tell(ConfigValidated(id=id_, errors={"tasks.max": ["no"]}))
    assert isinstance(herder.answer(id_), RequestRefused)


def test_a_request_that_waits_too_long_is_given_up_unless_it_has_begun() -> None:
    herder = ByHand()
    herder.begin()
    herder.write(BORN)
    early = herder.ask(DeleteConnector(connector=ORDERS))
    herder.now_ms += 90_000
    herder.tell(TimerFired(timer=RequestDue(id=early)))
    timed_out = herder.answer(early)
    assert isinstance(timed_out, RequestRefused)
    assert timed_out.message == ("Request timed out. The worker is currently ensuring membership in the cluster")
    herder.assign(leader=ME)
    herder.obey()
    assert herder.herder.config.connector(ORDERS) is not None, "what was given up is not done later"

    begun = herder.ask(DeleteConnector(connector=ORDERS))
    for look in herder.take(FindConfigEnd):
        herder.do(look)
    (append,) = herder.take(AppendConfig)
    herder.tell(TimerFired(timer=RequestDue(id=begun)))
    herder.do(append)
    assert isinstance(herder.answer(begun), RequestRefused)
    assert herder.herder.config.connector(ORDERS) is None


def test_a_write_waits_until_the_one_before_it_is_read_back() -> None:
    herder = ready()
    herder.assign(leader=ME)
    stopped = herder.ask(SetTargetState(connector=ORDERS, target_state=TargetState.STOPPED))
    deleted = herder.ask(DeleteConnector(connector=ORDERS))
    (look,) = herder.take(FindConfigEnd)
    herder.do(look)
    (append,) = herder.take(AppendConfig)
    assert not herder.take(FindConfigEnd), "the second write has not begun"
    assert herder.answer(stopped) is None, "an append alone is no answer"
    herder.do(append)
    assert herder.answer(stopped) == Done()
    herder.obey()
    assert herder.answer(deleted) == Done()


def test_a_write_looks_again_for_the_end_of_a_log_that_cannot_be_reached() -> None:
    herder = ready()
    herder.assign(leader=ME)
    deleted = herder.ask(DeleteConnector(connector=ORDERS))
    (look,) = herder.take(FindConfigEnd)
    herder.tell(ConfigEndFound(purpose=look.purpose, end=None))
    assert not herder.take(FindConfigEnd)
    assert herder.answer(deleted) is None
    herder.now_ms += 500
    herder.tell(TimerFired(timer=LookDue(id=deleted)))
    herder.obey()
    assert herder.answer(deleted) == Done()


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("a b", ConnectorInfo),
        ("n" * 255, ConnectorInfo),
        ("n" * 256, RequestRefused),
        ("ü" * 128, RequestRefused),
        (" ", RequestRefused),
        ("a/b", RequestRefused),
        ("a\n", RequestRefused),
        (".", RequestRefused),
        ("..", RequestRefused),
        ("...", ConnectorInfo),
        (".a", ConnectorInfo),
    ],
)
def test_a_connectors_name_fits_a_path_and_a_folder(name: str, answer: type[Answer]) -> None:
    herder = ready()
    herder.assign(leader=ME)
    id_ = herder.ask(PutConnector(connector=ConnectorName(name), config={"name": name}, replace=False))
    herder.obey()
    assert isinstance(herder.answer(id_), answer)
