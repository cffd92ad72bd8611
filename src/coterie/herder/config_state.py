"""The config topic as state: what is configured, as far as the log has been read."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from coterie.engine.log import Line
from coterie.herder import config_records
from coterie.herder.config_records import (
    ConnectorWritten,
    NotForUs,
    SessionKeyWritten,
    TargetStateWritten,
    TasksCommitted,
    TaskWritten,
)
from coterie.herder.session_keys import SessionKey
from coterie.nouns.ids import ConfigOffset, Incarnation
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.states import TargetState

UNREAD = ConfigOffset(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector:
    """One configured connector."""

    config: Mapping[str, str]
    incarnation: Incarnation
    written_at: int
    """Offset of the line that holds ``config``: tells two writes of the same config apart."""
    task_configs: tuple[Mapping[str, str], ...] = ()
    """What the last commit made count; empty before the first, and while ``inconsistent``."""
    checkpointed: tuple[Mapping[str, str], ...] = ()
    """Configs of the tasks that may have checkpoints: those of the last commit that was not empty. A stop, whose commit
    is empty, leaves them, and so does another config; only another incarnation begins without."""
    inconsistent: bool = False
    """The last commit promised tasks whose configs are not in the log."""
    committed_at: int | None = None
    """Offset of the last commit: tells whether somebody has written its tasks' configs since. None before the first."""
    applied_config: Mapping[str, str] | None = None
    """The connector's config when its tasks were last committed (KAFKA-9228); None before the first commit."""


class ConfigState:
    """Written only by :meth:`apply`, line by line, live and at the start alike."""

    def __init__(self) -> None:
        self.offset = UNREAD
        """Offset of the last line read, plus one: what the group protocol calls the config offset."""
        self.session_key: SessionKey | None = None
        """The latest one; none older counts (KIP-507)."""
        self._connectors: dict[ConnectorName, Connector] = {}
        self._target_states: dict[ConnectorName, TargetState] = {}
        self._deferred: dict[ConnectorName, dict[int, Mapping[str, str]]] = {}
        self._jobs: Jobs | None = None
        """Derived, and kept for as long as no line is read: it is asked for far more often."""

    def apply(self, line: Line) -> str | None:
        """Take one line in; return a remark when it should not be there. A line is never a reason to fail."""
        self.offset = ConfigOffset(line.offset + 1)
        self._jobs = None
        match config_records.parse(line.key, line.value):
            case NotForUs(remark=remark):
                return remark
            case ConnectorWritten() as written:
                self._on_connector(written, line.offset)
            case TaskWritten(task=task, config=config):
                self._deferred.setdefault(task.connector, {})[task.task] = config
            case TasksCommitted(connector=name, tasks=tasks):
                return self._on_commit(name, tasks, line.offset)
            case TargetStateWritten(connector=name, target_state=target_state):
                if target_state is None:
                    self._target_states.pop(name, None)
                else:
                    self._target_states[name] = target_state
            case SessionKeyWritten(session_key=session_key):
                self.session_key = session_key
        return None

    def _on_connector(self, written: ConnectorWritten, offset: int) -> None:
        name = written.connector
        if written.config is None:
            self._connectors.pop(name, None)
            self._target_states.pop(name, None)
            self._deferred.pop(name, None)
            return
        known = self._connectors.get(name)
        # A line of Connect's own tools names no incarnation: the life goes on, or begins at this offset.
        incarnation = written.incarnation or (known.incarnation if known else Incarnation(f"at-{offset}"))
        if known is None or known.incarnation != incarnation:
            known = Connector(config=written.config, incarnation=incarnation, written_at=offset)
        self._connectors[name] = replace(known, config=written.config, written_at=offset)

    def _on_commit(self, name: ConnectorName, tasks: int, offset: int) -> str | None:
        deferred = self._deferred.pop(name, {})
        known = self._connectors.get(name)
        if known is None:
            # Left over from a connector that was deleted and whose tombstone is compacted away (KAFKA-16838).
            return f"Ignoring a commit of {tasks} task(s): connector {name} is not configured"
        complete = all(number in deferred for number in range(tasks))
        configs = tuple(deferred[number] for number in range(tasks)) if complete else ()
        # Compaction leaves the configs of stopped tasks, and only the empty commit that stopped them.
        stopped = () if tasks else tuple(deferred[number] for number in sorted(deferred))
        self._connectors[name] = replace(
            known,
            task_configs=configs,
            checkpointed=configs or stopped or known.checkpointed,
            inconsistent=not complete,
            committed_at=offset,
            applied_config=known.config,
        )
        if complete:
            return None
        missing = [number for number in range(tasks) if number not in deferred]
        return f"Connector {name} has no tasks until the next commit: configs of the tasks {missing} are not in the log"

    # -- what it says -------------------------------------------------------------------------------------------------

    def names(self) -> list[ConnectorName]:
        return sorted(self._connectors)

    def connector(self, name: ConnectorName) -> Connector | None:
        return self._connectors.get(name)

    def target_state(self, name: ConnectorName) -> TargetState:
        return self._target_states.get(name, TargetState.STARTED)

    def task_config(self, task: ConnectorTaskId) -> Mapping[str, str] | None:
        connector = self._connectors.get(task.connector)
        if connector is None or task.task >= len(connector.task_configs):
            return None
        return connector.task_configs[task.task]

    def tasks(self, name: ConnectorName) -> tuple[ConnectorTaskId, ...]:
        connector = self._connectors.get(name)
        return tuple(ConnectorTaskId(name, i) for i in range(len(connector.task_configs) if connector else 0))

    def unsplit(self) -> Iterator[ConnectorName]:
        """Which connectors that are to run have still to be split, or to be split again."""
        for name, connector in self._connectors.items():
            is_split = not connector.inconsistent and connector.applied_config == connector.config
            if not is_split and self.target_state(name) is TargetState.STARTED:
                yield name

    def jobs(self) -> Jobs:
        """All that there is to assign: every connector, and every task that is committed."""
        if self._jobs is None:
            tasks = (task for name in self._connectors for task in self.tasks(name))
            self._jobs = Jobs(frozenset(self._connectors), frozenset(tasks))
        return self._jobs
