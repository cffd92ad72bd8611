"""The state of the config topic: all connectors and tasks that are configured by the lines read so far."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from coterie.engine.log import TopicRecord
from coterie.herder import config_records
from coterie.herder.config_records import (
    ConnectorConfigWritten,
    ConnectorRestartRequested,
    IgnoredLine,
    LoggerLevelWritten,
    SessionKeyWritten,
    TargetStateWritten,
    TaskConfigsCommitted,
    TaskConfigWritten,
)
from coterie.herder.requests.ids import ClientRequestId
from coterie.herder.session_keys import SessionKey
from coterie.nouns.ids import ConfigOffset, Incarnation, LogPosition
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.states import TargetState

WRITTEN_REQUESTS_MAX = 10_000
"""How many of the last requests that have written lines are kept: more than a group writes within the time limit of a
request."""
CONFIG_OFFSET_BEFORE_FIRST_LINE = ConfigOffset(-1)
"""The config offset of a worker that has read no line yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector:
    """One configured connector. ``task_configs`` are those of the last commit; empty before the first commit, and while
    the last commit is incomplete (a committed task has no config in the log). ``configs_of_checkpointed_tasks`` are
    those of the last commit that was not empty: a stop of the connector does not change them."""

    config: Mapping[str, str]
    incarnation: Incarnation
    is_incarnation_written: bool
    """Whether the line with ``config`` contains the incarnation. Otherwise Kafka Connect wrote the line, and a worker
    that begins to read after a compaction may know another incarnation."""
    config_line_offset: int
    """Offset of the line that contains ``config``. It distinguishes two writes of the same config."""
    task_configs: tuple[Mapping[str, str], ...] = ()
    """The task configs of the last commit, by task number; empty before the first commit, and while
    ``has_incomplete_commit``."""
    configs_of_checkpointed_tasks: tuple[Mapping[str, str], ...] = ()
    """Configs of the tasks that may have checkpoints: those of the last commit that was not empty. A stop, whose commit
    is empty, does not change them, and neither does a new config; only a new incarnation begins without them."""
    has_incomplete_commit: bool = False
    """Whether the last commit contains more tasks than the log has configs for, for example after compaction."""
    commit_line_offset: int | None = None
    """Offset of the line of the last commit, which shows whether the task configs were committed again. None before the
    first commit."""
    config_at_last_commit: Mapping[str, str] | None = None
    """The connector's config when its tasks were last committed (KAFKA-9228); None before the first commit, and when
    compaction has removed the line with that config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfigsCommit:
    """A commit line of the config log, and the task configs that take effect with it."""

    tasks: Mapping[int, TaskConfigWritten]
    """The lines of task configs since the commit before, by task number."""
    task_count: int
    """The number of tasks that were committed; 0 when they were stopped."""
    offset: int
    """The offset of the commit's line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRequest:
    """A client's request whose line was read, and the config that the connector had before that line."""

    replaced_config: Mapping[str, str] | None
    """The config that the connector had before the line; None when there was no such connector."""


class ConfigState:
    """The configured connectors, their target states and the session key. Only :meth:`apply` changes them, line by
    line, at the start of the worker and later; :meth:`advance_position_to` changes only the position. What
    :meth:`apply` returns is left to the caller: a message to log, a restart to carry out, or the level of a logger to
    set. :meth:`jobs` are those of all connectors, in any target state."""

    def __init__(self) -> None:
        self.offset = CONFIG_OFFSET_BEFORE_FIRST_LINE
        """Offset of the last line that was read, plus one: the group protocol's config offset."""
        self.position = LogPosition(0)
        """The position of this worker's reader: at least ``offset``, and greater when what follows the last line is no
        line, for example the marker of a transaction. It shows whether the log is read to its end. It is not reported
        to the group, because a member of Kafka Connect would wait for a line with that offset."""
        self.session_key: SessionKey | None = None
        """The latest session key; older keys are not valid (KIP-507)."""
        self._connectors: dict[ConnectorName, Connector] = {}
        self._target_states: dict[ConnectorName, TargetState] = {}
        self._uncommitted_tasks: dict[ConnectorName, dict[int, TaskConfigWritten]] = {}
        """The lines of task configs since the last commit of each connector, by task number."""
        self._early_commits: dict[ConnectorName, TaskConfigsCommit] = {}
        """The commits of connectors whose config was not read yet. Each is applied with the config, if the connector's
        incarnation is that of the tasks: compaction removes an older line of a config, and not the commit after it."""
        self._written_requests: dict[ClientRequestId, WrittenRequest] = {}
        """The clients' requests whose lines were read last, at most :data:`WRITTEN_REQUESTS_MAX`, in the order of the
        lines."""
        self._affected: set[ConnectorName] | None = set()
        """What the next call of :meth:`take_affected_or_none_if_all` returns."""
        self._jobs: Jobs | None = None
        """A cache of :meth:`jobs`, valid until the next line is read: reads are far more frequent than new lines."""

    def apply(self, line: TopicRecord) -> str | ConnectorRestartRequested | LoggerLevelWritten | None:
        """Apply one line. Returns a message for the log when the line is unexpected; the parsed line when it requests a
        restart or the level of a logger, which changes no state; else None. No line raises an exception."""
        self.offset = ConfigOffset(line.offset + 1)
        self.advance_position_to(LogPosition(line.offset + 1))
        self._jobs = None
        match config_records.parse_line(line.key, line.value):
            case IgnoredLine(log_message=remark):
                return remark
            case LoggerLevelWritten() as requested:
                return requested
            case ConnectorRestartRequested(connector=name, request_id=request) as restart:
                self._add_affected(name)
                self._keep_written_request(request, name)
                return restart
            case ConnectorConfigWritten(connector=name, request_id=request) as written:
                self._add_affected(name)
                self._keep_written_request(request, name)
                return self._apply_connector_config(written, line.offset)
            case TaskConfigWritten(task=task) as written:
                self._uncommitted_tasks.setdefault(task.connector, {})[task.task] = written
            case TaskConfigsCommitted(connector=name, task_count=tasks):
                self._add_affected(name)
                return self._apply_task_configs_commit(name, tasks, line.offset)
            case TargetStateWritten(connector=name, target_state=target_state, request_id=request):
                self._add_affected(name)
                self._keep_written_request(request, name)
                if target_state is None:
                    self._target_states.pop(name, None)
                else:
                    self._target_states[name] = target_state
            case SessionKeyWritten(session_key=session_key):
                self.session_key = session_key
                self._affected = None
        return None

    def take_affected_or_none_if_all(self) -> frozenset[ConnectorName] | None:
        """Return, and forget, the connectors that the lines since the last call have changed, or whose restart they
        have requested. None, which means all connectors, if there is a new session key: the task configs of any
        connector may wait for it."""
        affected, self._affected = self._affected, set()
        return None if affected is None else frozenset(affected)

    def _add_affected(self, name: ConnectorName) -> None:
        if self._affected is not None:
            self._affected.add(name)

    def advance_position_to(self, position: LogPosition) -> None:
        """Store that the reader has reached ``position``, so no line before it is still to be read. A position before
        the stored one changes nothing."""
        self.position = max(self.position, position)

    def _keep_written_request(self, request: ClientRequestId | None, name: ConnectorName) -> None:
        """Remember that ``request`` (None: the line contains none) has written a line for connector ``name``. Call it
        before the line changes the connector."""
        if request is not None:
            known = self._connectors.get(name)
            self._written_requests[request] = WrittenRequest(replaced_config=None if known is None else known.config)
            if len(self._written_requests) > WRITTEN_REQUESTS_MAX:
                del self._written_requests[next(iter(self._written_requests))]

    def _apply_connector_config(self, written: ConnectorConfigWritten, offset: int) -> str | None:
        """Apply a new, changed or deleted config. If a commit of the connector was read before this config, and belongs
        to the same incarnation, apply it, too. Returns a log message when that commit names a task without a config."""
        name = written.connector
        if written.config is None:
            self._connectors.pop(name, None)
            self._target_states.pop(name, None)
            self._uncommitted_tasks.pop(name, None)
            self._early_commits.pop(name, None)
            return None
        known = self._connectors.get(name)
        # A line of Connect's own tools contains no incarnation: the current incarnation continues, or a new connector
        # gets the line's offset as its incarnation.
        incarnation = written.incarnation or (known.incarnation if known else Incarnation(f"at-{offset}"))
        if known is None or known.incarnation != incarnation:
            known = Connector(
                config=written.config, incarnation=incarnation, is_incarnation_written=False, config_line_offset=offset
            )
        self._connectors[name] = replace(
            known,
            config=written.config,
            is_incarnation_written=written.incarnation is not None,
            config_line_offset=offset,
        )
        early = self._early_commits.pop(name, None)
        if early is not None and any(task.incarnation == incarnation for task in early.tasks.values()):
            committed, missing = _with_commit_and_missing_tasks(self._connectors[name], early)
            # The config at the commit is not known any more: the connector has to be split again.
            self._connectors[name] = replace(committed, config_at_last_commit=None)
            return _missing_configs_message(name, missing)
        return None

    def _apply_task_configs_commit(self, name: ConnectorName, tasks: int, offset: int) -> str | None:
        """Apply a commit of ``tasks`` tasks. Returns a log message when the connector is not configured, so that the
        commit is ignored, or when the config of a task is missing: the connector then has no tasks."""
        commit = TaskConfigsCommit(tasks=self._uncommitted_tasks.pop(name, {}), task_count=tasks, offset=offset)
        known = self._connectors.get(name)
        if known is None:
            # Compaction has removed the connector's tombstone (KAFKA-16838), or a config before the present one.
            if any(task.incarnation is not None for task in commit.tasks.values()):
                self._early_commits[name] = commit
                return None
            return f"Ignoring a commit of {tasks} task(s) in the config topic: connector {name} is not configured"
        self._connectors[name], missing = _with_commit_and_missing_tasks(known, commit)
        return _missing_configs_message(name, missing)

    # -- queries ------------------------------------------------------------------------------------------------------

    def sorted_connector_names(self) -> list[ConnectorName]:
        """The names of all connectors, sorted."""
        return sorted(self._connectors)

    def connector(self, name: ConnectorName) -> Connector | None:
        """The connector of that name; None when it is not configured."""
        return self._connectors.get(name)

    def target_state(self, name: ConnectorName) -> TargetState:
        """The connector's target state; STARTED when none was written, also for an unknown connector."""
        return self._target_states.get(name, TargetState.STARTED)

    def written_request(self, request: ClientRequestId) -> WrittenRequest | None:
        """The client's request with this id, if its line was read and is among the last :data:`WRITTEN_REQUESTS_MAX`
        such lines; else None."""
        return self._written_requests.get(request)

    def task_config(self, task: ConnectorTaskId) -> Mapping[str, str] | None:
        """The task's committed config; None when the task is not committed."""
        connector = self._connectors.get(task.connector)
        if connector is None or not 0 <= task.task < len(connector.task_configs):
            return None
        return connector.task_configs[task.task]

    def committed_tasks(self, name: ConnectorName) -> tuple[ConnectorTaskId, ...]:
        """The connector's committed tasks, by number; empty for an unknown connector."""
        connector = self._connectors.get(name)
        return tuple(ConnectorTaskId(name, i) for i in range(len(connector.task_configs) if connector else 0))

    def connectors_to_split(self) -> Iterator[ConnectorName]:
        """The started connectors that have to be split: their task configs were never committed, or the last commit is
        incomplete or belongs to a config with other values than the present one. So a connector whose last commit is
        empty, and belongs to the present config, is left out: it was stopped, and was resumed without a new config."""
        for name, connector in self._connectors.items():
            is_split = not connector.has_incomplete_commit and connector.config_at_last_commit == connector.config
            if not is_split and self.target_state(name) is TargetState.STARTED:
                yield name

    def jobs(self) -> Jobs:
        """All jobs that can be assigned: every connector, and every committed task, in any target state."""
        if self._jobs is None:
            tasks = (task for name in self._connectors for task in self.committed_tasks(name))
            self._jobs = Jobs(frozenset(self._connectors), frozenset(tasks))
        return self._jobs


def _with_commit_and_missing_tasks(connector: Connector, commit: TaskConfigsCommit) -> tuple[Connector, list[int]]:
    """``connector`` after the commit, and the numbers of the committed tasks whose configs are missing. Task configs of
    another incarnation are ignored, if the line of the connector's config contains the incarnation: compaction keeps
    those of a deleted connector.

    The commit of a stop is empty. If compaction has removed the commits before it, ``configs_of_checkpointed_tasks``
    contains the last config of every task that ever had one, also of a task that the commit before the stop did not
    contain."""
    configs = {
        number: task.config
        for number, task in commit.tasks.items()
        if not connector.is_incarnation_written or task.incarnation in (None, connector.incarnation)
    }
    missing = [number for number in range(commit.task_count) if number not in configs]
    committed = () if missing else tuple(configs[number] for number in range(commit.task_count))
    # Compaction keeps the configs of stopped tasks, and of their commits only the empty one that stopped them.
    stopped = () if commit.task_count else tuple(configs[number] for number in sorted(configs))
    changed = replace(
        connector,
        task_configs=committed,
        configs_of_checkpointed_tasks=committed or stopped or connector.configs_of_checkpointed_tasks,
        has_incomplete_commit=bool(missing),
        commit_line_offset=commit.offset,
        config_at_last_commit=connector.config,
    )
    return changed, missing


def _missing_configs_message(name: ConnectorName, missing: Sequence[int]) -> str | None:
    """The log message about the tasks ``missing``, whose configs the config topic lacks; None if there is none."""
    if not missing:
        return None
    return (
        f"Connector {name} has no tasks until its task configs are committed again: the configs of its tasks "
        f"{missing} are not in the config topic. The worker that owns the connector commits them again, unless the "
        "connector is paused or stopped"
    )
