"""The config topic that all workers read: durable lines in one order. The herder of each worker stores the offset up to
which this worker has read them."""

from collections.abc import Mapping, Sequence

from coterie.engine.log import NewTopicRecord, TopicRecord
from coterie.herder.config_state import ConfigState
from coterie.herder.seams import TaskSpec
from coterie.nouns.ids import ConfigOffset, Incarnation, LogPosition
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.states import TargetState


class ConfigLog:
    """The config topic and, for each of its offsets, the jobs that are configured by the lines before this offset."""

    def __init__(self) -> None:
        self.lines: list[TopicRecord] = []
        self.leader_opening_count = 0
        """How often workers have opened the log as the leader. Only the worker that has done so last may append lines
        as the leader."""
        self._state = ConfigState()
        self._configured_jobs_at: list[Jobs] = [NO_JOBS]
        self._runnable_tasks_at: list[Mapping[ConnectorTaskId, TaskSpec]] = [{}]

    @property
    def end_offset(self) -> LogPosition:
        """The offset that the next appended line gets."""
        return LogPosition(len(self.lines))

    def append(self, lines: Sequence[NewTopicRecord], now_ms: int) -> LogPosition:
        """Append ``lines`` with the timestamp ``now_ms``, and return the new end offset."""
        for new_line in lines:
            line = TopicRecord(
                partition=0, offset=len(self.lines), timestamp_ms=now_ms, key=new_line.key, value=new_line.value
            )
            self.lines.append(line)
            self._state.apply(line)
            self._configured_jobs_at.append(self._state.jobs())
            self._runnable_tasks_at.append(self._runnable_tasks())
        return self.end_offset

    def _runnable_tasks(self) -> Mapping[ConnectorTaskId, TaskSpec]:
        """The tasks of the connectors whose target state is STARTED, with their configs, by all lines so far."""
        runnable_tasks = {}
        for name in self._state.sorted_connector_names():
            connector = self._state.connector(name)
            if connector is None or self._state.target_state(name) is not TargetState.STARTED:
                continue
            for number, config in enumerate(connector.task_configs):
                task = ConnectorTaskId(name, number)
                runnable_tasks[task] = TaskSpec(task=task, connector_incarnation=connector.incarnation, config=config)
        return runnable_tasks

    def configured_jobs_at(self, offset: ConfigOffset | LogPosition) -> Jobs:
        """The configured jobs by the lines before ``offset``; -1 means no line."""
        return self._configured_jobs_at[max(offset, 0)]

    def runnable_tasks_at(self, offset: ConfigOffset | LogPosition) -> Mapping[ConnectorTaskId, TaskSpec]:
        """The tasks of started connectors, with their configs, by the lines before ``offset``; -1 means no line. A
        worker to which such a task is assigned must run it."""
        return self._runnable_tasks_at[max(offset, 0)]

    def sorted_connector_names(self) -> list[ConnectorName]:
        """The names of all connectors that exist by all lines so far."""
        return self._state.sorted_connector_names()

    def connector_incarnation(self, name: ConnectorName) -> Incarnation | None:
        """The present incarnation of the connector ``name``; None if the connector does not exist."""
        connector = self._state.connector(name)
        return connector.incarnation if connector is not None else None

    def connectors_with_outdated_task_configs(self) -> list[ConnectorName]:
        """The connectors with the target state STARTED whose task configs are outdated: not written since the
        connector's config last changed, or not as many as ``tasks.max``."""
        return [
            name
            for name in self._state.sorted_connector_names()
            if (connector := self._state.connector(name)) is not None
            and self._state.target_state(name) is TargetState.STARTED
            and (
                connector.config_at_last_commit != connector.config
                or len(connector.task_configs) != int(connector.config["tasks.max"])
            )
        ]
