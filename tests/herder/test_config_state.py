"""The state after the config log's records: Connect's reader rules, one by one."""

import random
from collections.abc import Mapping, Sequence

from coterie.engine.log import NewTopicRecord, TopicRecord
from coterie.herder import config_records
from coterie.herder.config_state import ConfigState
from coterie.herder.session_keys import SessionKey
from coterie.nouns.ids import ConfigOffset, Incarnation
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.states import TargetState

ORDERS = ConnectorName("orders")
CONFIG = {"connector.class": "X", "name": "orders"}
INCARNATION = Incarnation("incarnation-1")
CONNECTOR_LINE = config_records.connector_line(ORDERS, CONFIG, INCARNATION)


def read(state: ConfigState, lines: Sequence[NewTopicRecord]) -> list[str]:
    """Apply ``lines`` at the next offsets; return the log messages."""
    remarks: list[str] = []
    for line in lines:
        offset = max(state.offset, 0)
        remark = state.apply(TopicRecord(partition=0, offset=offset, timestamp_ms=0, key=line.key, value=line.value))
        remarks += [remark] if isinstance(remark, str) else []
    return remarks


def test_task_configs_take_effect_when_they_are_committed() -> None:
    state = ConfigState()
    *tasks, commit = config_records.task_config_and_commit_lines(ORDERS, [{"i": "0"}, {"i": "1"}])
    read(state, [CONNECTOR_LINE, *tasks])
    assert state.committed_tasks(ORDERS) == ()
    read(state, [commit])
    assert [state.task_config(task) for task in state.committed_tasks(ORDERS)] == [{"i": "0"}, {"i": "1"}]
    assert [state.task_config(ConnectorTaskId(ORDERS, number)) for number in (-1, 2)] == [None, None]
    assert state.jobs() == Jobs.of([ORDERS, ConnectorTaskId(ORDERS, 0), ConnectorTaskId(ORDERS, 1)])
    assert state.offset == 4


def test_a_commit_of_missing_task_configs_leaves_no_tasks_until_a_complete_one() -> None:
    state = ConfigState()
    first, _, commit = config_records.task_config_and_commit_lines(ORDERS, [{"i": "0"}, {"i": "1"}])
    remarks = read(state, [CONNECTOR_LINE, first, commit])
    assert "[1]" in remarks[0]
    connector = state.connector(ORDERS)
    assert connector is not None
    assert connector.has_incomplete_commit
    assert state.committed_tasks(ORDERS) == ()
    read(state, config_records.task_config_and_commit_lines(ORDERS, [{"i": "0"}]))
    assert len(state.committed_tasks(ORDERS)) == 1


def test_a_commit_does_not_use_task_configs_from_before_the_previous_commit() -> None:
    state = ConfigState()
    read(state, [CONNECTOR_LINE, *config_records.task_config_and_commit_lines(ORDERS, [{"i": "0"}, {"i": "1"}])])
    *_, commit = config_records.task_config_and_commit_lines(ORDERS, [{}, {}])
    read(state, [commit])
    assert state.committed_tasks(ORDERS) == ()


def test_a_commit_without_its_connector_is_ignored() -> None:
    state = ConfigState()
    remarks = read(state, config_records.task_config_and_commit_lines(ORDERS, [{}]))
    assert "not configured" in remarks[0]
    assert not state.jobs()


def test_a_deletion_removes_everything_and_a_re_creation_is_another_incarnation() -> None:
    state = ConfigState()
    stopped = config_records.target_state_line(ORDERS, TargetState.STOPPED)
    read(state, [CONNECTOR_LINE, stopped, *config_records.task_config_and_commit_lines(ORDERS, [{}])])
    read(state, config_records.connector_and_target_state_tombstones(ORDERS))
    assert not state.jobs()
    read(state, [config_records.connector_line(ORDERS, CONFIG, Incarnation("incarnation-2"))])
    connector = state.connector(ORDERS)
    assert connector is not None
    assert connector.incarnation == "incarnation-2"
    assert connector.config_at_last_commit is None
    assert state.target_state(ORDERS) is TargetState.STARTED


def test_the_connector_config_at_the_commit_is_kept_as_the_applied_one() -> None:
    state = ConfigState()
    read(state, [CONNECTOR_LINE, *config_records.task_config_and_commit_lines(ORDERS, [{}])])
    read(state, [config_records.connector_line(ORDERS, {**CONFIG, "new": "yes"}, INCARNATION)])
    connector = state.connector(ORDERS)
    assert connector is not None
    assert connector.config_at_last_commit == CONFIG
    assert connector.config != CONFIG
    assert len(connector.task_configs) == 1, "its tasks stay until the next commit"


def test_records_of_other_tools_keep_the_incarnation_or_start_one() -> None:
    state = ConfigState()
    foreign = NewTopicRecord(key=b"connector-orders", value=b'{"properties":{"name":"orders"}}')
    read(state, [CONNECTOR_LINE, foreign])
    connector = state.connector(ORDERS)
    assert connector is not None
    assert connector.incarnation == INCARNATION
    read(state, [*config_records.connector_and_target_state_tombstones(ORDERS), foreign])
    connector = state.connector(ORDERS)
    assert connector is not None
    assert connector.incarnation == "at-4"


def test_a_target_state_may_precede_its_connector() -> None:
    state = ConfigState()
    read(state, [config_records.target_state_line(ORDERS, TargetState.STOPPED), CONNECTOR_LINE])
    assert state.target_state(ORDERS) is TargetState.STOPPED


def test_the_latest_session_key_is_used_and_a_tombstone_does_not_remove_it() -> None:
    state = ConfigState()
    assert state.session_key is None
    older, newer = (SessionKey(key=key, algorithm="HmacSHA256", created_at_ms=9) for key in (b"older", b"newer"))
    assert read(state, [config_records.session_key_line(older), config_records.session_key_line(newer)]) == []
    assert state.session_key == newer
    (remark,) = read(state, [NewTopicRecord(key=b"session-key", value=None)])
    assert state.session_key == newer, remark


def test_checkpointed_task_configs_are_kept_until_another_incarnation() -> None:
    def checkpointed() -> list[Mapping[str, str]]:
        connector = state.connector(ORDERS)
        assert connector is not None
        return list(connector.configs_of_checkpointed_tasks)

    state = ConfigState()
    read(state, [CONNECTOR_LINE])
    assert checkpointed() == []
    tasks = [{"i": "0"}, {"i": "1"}]
    read(state, config_records.task_config_and_commit_lines(ORDERS, tasks))
    assert checkpointed() == tasks
    read(state, config_records.task_config_and_commit_lines(ORDERS, ()))
    assert checkpointed() == tasks
    read(state, [config_records.connector_line(ORDERS, {**CONFIG, "other": "1"}, INCARNATION)])
    assert checkpointed() == tasks
    read(state, [config_records.connector_line(ORDERS, CONFIG, Incarnation("incarnation-2"))])
    assert checkpointed() == []


def test_compaction_keeps_the_checkpointed_task_configs_of_a_stopped_connector() -> None:
    state = ConfigState()
    *tasks, _ = config_records.task_config_and_commit_lines(ORDERS, [{"i": "0"}, {"i": "1"}])
    read(state, [CONNECTOR_LINE, *tasks, *config_records.task_config_and_commit_lines(ORDERS, ())])
    connector = state.connector(ORDERS)
    assert connector is not None
    assert connector.configs_of_checkpointed_tasks == ({"i": "0"}, {"i": "1"})
    assert state.committed_tasks(ORDERS) == ()


def compacted(lines: Sequence[NewTopicRecord]) -> list[NewTopicRecord]:
    """The last line of each key, without tombstones."""
    last = {line.key: number for number, line in enumerate(lines)}
    return [line for number, line in enumerate(lines) if last[line.key] == number and line.value is not None]


def task_configs_of(lines: Sequence[NewTopicRecord]) -> object:
    state = ConfigState()
    read(state, lines)
    connector = state.connector(ORDERS)
    return connector and (connector.incarnation, connector.task_configs, connector.configs_of_checkpointed_tasks)


def test_a_config_put_after_the_last_commit_loses_no_task_configs_by_compaction() -> None:
    tasks = config_records.task_config_and_commit_lines(ORDERS, [{"i": "0"}, {"i": "1"}], INCARNATION)
    none = config_records.task_config_and_commit_lines(ORDERS, ())
    changed = config_records.connector_line(ORDERS, {**CONFIG, "other": "1"}, INCARNATION)
    for lines in ([CONNECTOR_LINE, *tasks, changed], [CONNECTOR_LINE, *tasks, *none, changed]):
        assert task_configs_of(compacted(lines)) == task_configs_of(lines)
        state = ConfigState()
        read(state, compacted(lines))
        assert list(state.connectors_to_split()) == [ORDERS], "the new config has to be split"


def test_task_configs_of_a_connector_whose_config_kafka_connect_wrote_survive_compaction() -> None:
    """The incarnation is then that of the line: another one after a compaction."""
    by_connect = NewTopicRecord(key=CONNECTOR_LINE.key, value=b'{"properties":{"connector.class":"X","name":"orders"}}')
    tasks = config_records.task_config_and_commit_lines(ORDERS, [{"i": "0"}], Incarnation("at-0"))
    live, reread = ConfigState(), ConfigState()
    read(live, [by_connect, by_connect, *tasks])
    reread.offset = ConfigOffset(1)
    read(reread, [by_connect, *tasks])
    for state, incarnation in ((live, "at-0"), (reread, "at-1")):
        connector = state.connector(ORDERS)
        assert connector is not None
        assert (connector.incarnation, connector.task_configs) == (incarnation, ({"i": "0"},))


def test_no_task_config_of_a_deleted_connector_survives_compaction_into_the_next_one() -> None:
    tasks = config_records.task_config_and_commit_lines(ORDERS, [{"i": "0"}], INCARNATION)
    again = config_records.connector_line(ORDERS, CONFIG, Incarnation("incarnation-2"))
    gone = [CONNECTOR_LINE, *tasks, *config_records.connector_and_target_state_tombstones(ORDERS)]
    for lines in ([*gone, again], [*gone, again, *config_records.task_config_and_commit_lines(ORDERS, ())]):
        assert task_configs_of(compacted(lines)) == task_configs_of(lines) == ("incarnation-2", (), ())


def test_compaction_at_any_time_changes_no_task_configs() -> None:
    """Random connectors, which always have two tasks when they are split."""
    rng = random.Random(5)
    for _ in range(300):
        lines: list[NewTopicRecord] = []
        incarnation, is_stopped = None, False
        for number in range(rng.randint(1, 12)):
            if incarnation is None:
                incarnation, is_stopped = Incarnation(f"incarnation-{number}"), False
                lines.append(config_records.connector_line(ORDERS, CONFIG, incarnation))
            match rng.choice(["put", "split", "stop", "start", "delete"]):
                case "put":
                    config = {**CONFIG, "number": str(number)}
                    lines.append(config_records.connector_line(ORDERS, config, incarnation))
                case "split" if not is_stopped:
                    configs = [{"split": str(number), "task": str(task)} for task in range(2)]
                    lines += config_records.task_config_and_commit_lines(ORDERS, configs, incarnation)
                case "stop":
                    is_stopped = True
                    lines += config_records.task_config_and_commit_lines(ORDERS, ())
                case "start":
                    is_stopped = False
                case "delete":
                    incarnation = None
                    lines += config_records.connector_and_target_state_tombstones(ORDERS)
                case _:
                    pass
            assert task_configs_of(compacted(lines)) == task_configs_of(lines), [line.key for line in lines]
            if rng.random() < 0.2:
                lines = compacted(lines)
