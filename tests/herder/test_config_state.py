"""What the config log's lines make of the state: Connect's reader rules, one by one."""

from collections.abc import Mapping, Sequence

from coterie.engine.log import Line, NewLine
from coterie.herder import config_records
from coterie.herder.config_state import ConfigState
from coterie.herder.session_keys import SessionKey
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.states import TargetState

ORDERS = ConnectorName("orders")
CONFIG = {"connector.class": "X", "name": "orders"}
LIFE = Incarnation("life-1")
BORN = config_records.connector_line(ORDERS, CONFIG, LIFE)


def read(state: ConfigState, lines: Sequence[NewLine]) -> list[str]:
    """Apply ``lines`` at the next offsets; return the remarks."""
    remarks = []
    for line in lines:
        offset = max(state.offset, 0)
        remark = state.apply(Line(partition=0, offset=offset, timestamp_ms=0, key=line.key, value=line.value))
        remarks += [remark] if remark else []
    return remarks


def test_task_configs_count_only_once_they_are_committed() -> None:
    state = ConfigState()
    *tasks, commit = config_records.task_config_lines(ORDERS, [{"i": "0"}, {"i": "1"}])
    read(state, [BORN, *tasks])
    assert state.tasks(ORDERS) == ()
    read(state, [commit])
    assert [state.task_config(task) for task in state.tasks(ORDERS)] == [{"i": "0"}, {"i": "1"}]
    assert state.jobs() == Jobs.of([ORDERS, ConnectorTaskId(ORDERS, 0), ConnectorTaskId(ORDERS, 1)])
    assert state.offset == 4


def test_a_commit_of_configs_that_are_not_there_leaves_no_tasks_until_a_good_one() -> None:
    state = ConfigState()
    first, _, commit = config_records.task_config_lines(ORDERS, [{"i": "0"}, {"i": "1"}])
    remarks = read(state, [BORN, first, commit])
    assert "[1]" in remarks[0]
    connector = state.connector(ORDERS)
    assert connector is not None
    assert connector.inconsistent
    assert state.tasks(ORDERS) == ()
    read(state, config_records.task_config_lines(ORDERS, [{"i": "0"}]))
    assert len(state.tasks(ORDERS)) == 1


def test_a_commit_takes_nothing_from_the_one_before_it() -> None:
    state = ConfigState()
    read(state, [BORN, *config_records.task_config_lines(ORDERS, [{"i": "0"}, {"i": "1"}])])
    *_, commit = config_records.task_config_lines(ORDERS, [{}, {}])
    read(state, [commit])
    assert state.tasks(ORDERS) == ()


def test_a_commit_without_its_connector_is_ignored() -> None:
    state = ConfigState()
    remarks = read(state, config_records.task_config_lines(ORDERS, [{}]))
    assert "not configured" in remarks[0]
    assert not state.jobs()


def test_deleting_takes_everything_and_creating_again_is_another_life() -> None:
    state = ConfigState()
    stopped = config_records.target_state_line(ORDERS, TargetState.STOPPED)
    read(state, [BORN, stopped, *config_records.task_config_lines(ORDERS, [{}])])
    read(state, config_records.deletion_lines(ORDERS))
    assert not state.jobs()
    read(state, [config_records.connector_line(ORDERS, CONFIG, Incarnation("life-2"))])
    connector = state.connector(ORDERS)
    assert connector is not None
    assert connector.incarnation == "life-2"
    assert connector.applied_config is None
    assert state.target_state(ORDERS) is TargetState.STARTED


def test_the_config_that_was_current_at_the_commit_is_remembered() -> None:
    state = ConfigState()
    read(state, [BORN, *config_records.task_config_lines(ORDERS, [{}])])
    read(state, [config_records.connector_line(ORDERS, {**CONFIG, "new": "yes"}, LIFE)])
    connector = state.connector(ORDERS)
    assert connector is not None
    assert connector.applied_config == CONFIG
    assert connector.config != CONFIG
    assert len(connector.task_configs) == 1, "its tasks stay until the next commit"


def test_lines_of_connects_own_tools_keep_a_life_or_begin_one() -> None:
    state = ConfigState()
    foreign = NewLine(key=b"connector-orders", value=b'{"properties":{"name":"orders"}}')
    read(state, [BORN, foreign])
    connector = state.connector(ORDERS)
    assert connector is not None
    assert connector.incarnation == LIFE
    read(state, [*config_records.deletion_lines(ORDERS), foreign])
    connector = state.connector(ORDERS)
    assert connector is not None
    assert connector.incarnation == "at-4"


def test_a_target_state_may_come_before_its_connector() -> None:
    state = ConfigState()
    read(state, [config_records.target_state_line(ORDERS, TargetState.STOPPED), BORN])
    assert state.target_state(ORDERS) is TargetState.STOPPED


def test_the_latest_session_key_counts_and_nothing_takes_it_away() -> None:
    state = ConfigState()
    assert state.session_key is None
    older, newer = (SessionKey(key=key, algorithm="HmacSHA256", created_at_ms=9) for key in (b"older", b"newer"))
    assert read(state, [config_records.session_key_line(older), config_records.session_key_line(newer)]) == []
    assert state.session_key == newer
    (remark,) = read(state, [NewLine(key=b"session-key", value=None)])
    assert state.session_key == newer, remark


def test_tasks_keep_their_checkpoints_through_stops_and_configs_until_another_incarnation() -> None:
    def checkpointed() -> list[Mapping[str, str]]:
        connector = state.connector(ORDERS)
        assert connector is not None
        return list(connector.checkpointed)

    state = ConfigState()
    read(state, [BORN])
    assert checkpointed() == []
    tasks = [{"i": "0"}, {"i": "1"}]
    read(state, config_records.task_config_lines(ORDERS, tasks))
    assert checkpointed() == tasks
    read(state, config_records.task_config_lines(ORDERS, ()))
    assert checkpointed() == tasks
    read(state, [config_records.connector_line(ORDERS, {**CONFIG, "other": "1"}, LIFE)])
    assert checkpointed() == tasks
    read(state, [config_records.connector_line(ORDERS, CONFIG, Incarnation("life-2"))])
    assert checkpointed() == []


def test_compaction_leaves_the_tasks_of_a_stopped_connector_their_checkpoints() -> None:
    state = ConfigState()
    *tasks, _ = config_records.task_config_lines(ORDERS, [{"i": "0"}, {"i": "1"}])
    read(state, [BORN, *tasks, *config_records.task_config_lines(ORDERS, ())])
    connector = state.connector(ORDERS)
    assert connector is not None
    assert connector.checkpointed == ({"i": "0"}, {"i": "1"})
    assert state.tasks(ORDERS) == ()
