"""The kinds of writes to the config log: the checks of each kind, the lines that it appends, and its response.

The methods receive the state of the config log as it was read when the write reached the head of the queue.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from coterie.engine.log import NewTopicRecord
from coterie.herder import config_records
from coterie.herder.config_records import ConnectorRestartRequested
from coterie.herder.config_state import ConfigState, Connector
from coterie.herder.descriptions import connector_status, describe_connector
from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.reads import ConnectorInfo
from coterie.herder.requests.refusals import (
    Problem,
    RequestRefused,
    SuccessWithoutContent,
    not_found_refusal,
    unknown_connector_refusal,
)
from coterie.herder.requests.writes import (
    ChangeOffsets,
    DeleteConnector,
    DeletedConnector,
    IfMatch,
    PatchConnector,
    PutConnector,
    PutTaskConfigs,
    RestartConnector,
    SetTargetState,
    Write,
    WrittenConnector,
)
from coterie.herder.session_keys import Signature
from coterie.herder.status_records import Status, StatusState
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName
from coterie.nouns.states import JobState, TargetState


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigToValidate:
    """The input of the validation of a connector's config."""

    config: Mapping[str, str] = field(repr=False)
    configs_of_checkpointed_tasks: Sequence[Mapping[str, str]] = field(repr=False)
    """The configs of the tasks that may have checkpoints: ``config`` is validated against them."""


class _WriteDefaults:
    """What most kinds of writes have in common: only the leader writes them, the request is not signed, its config is
    not validated, it creates no connector, and it is answered without content."""

    is_signed = False
    """Whether workers sign this kind of request."""
    signature: Signature | None = None
    """The signature of the request; None if the request contains none."""

    activity: str
    """What the worker is doing while it performs the write, in Connect's words."""

    can_be_looked_up_in_config_log = True
    """Whether the config log tells whether a client's write has taken effect: by the request's id in a written
    line."""

    @property
    def needs_leader(self) -> bool:
        """Whether only the leader may write it."""
        return True

    def request_id_carrier_lines(self, config: ConfigState) -> tuple[NewTopicRecord, ...]:
        """Lines that change nothing and are written before those of :meth:`lines`, only to contain the request's id:
        for a write whose own lines are all tombstones. Empty for the other writes."""
        return ()

    def config_to_validate(self, config: ConfigState) -> ConfigToValidate | None:
        """The config that has to be validated before the write is queued, for this state of the config log; None when
        no config has to be."""
        return None

    def creates_connector(self, config: ConfigState) -> bool:
        """Whether the write creates a connector, by the state of the config log ``config``."""
        return False

    def answer_when_complete(
        self, config: ConfigState, statuses: StatusState, *, replaced_config: Mapping[str, str] | None
    ) -> Answer:
        """The response when the write is complete. ``replaced_config``: the config that the connector had before the
        write; None when there was no such connector."""
        return SuccessWithoutContent()


class ConnectorWrite(_WriteDefaults):
    """Creates a connector, or replaces its config."""

    def __init__(self, request: PutConnector, fresh_incarnation: Incarnation) -> None:
        self.request = request
        self.activity = _config_activity(request.connector)
        self._fresh_incarnation = fresh_incarnation

    def config_to_validate(self, config: ConfigState) -> ConfigToValidate | None:
        known = config.connector(self.request.connector)
        checkpointed = () if known is None else known.configs_of_checkpointed_tasks
        return ConfigToValidate(config=self.request.config, configs_of_checkpointed_tasks=checkpointed)

    def creates_connector(self, config: ConfigState) -> bool:
        return config.connector(self.request.connector) is None

    def incarnation(self, config: ConfigState) -> Incarnation:
        """The incarnation of the written connector: a new one if the write creates the connector."""
        known = config.connector(self.request.connector)
        return self._fresh_incarnation if known is None else known.incarnation

    def refusal(self, config: ConfigState) -> RequestRefused | None:
        """The refusal of the write in this state of the config log; None when the write is allowed."""
        name = self.request.connector
        if self.request.may_replace or config.connector(name) is None:
            return _version_refusal(config, name, self.request.if_match)
        return RequestRefused(problem=Problem.ALREADY_EXISTS, message=f"Connector {name} already exists")

    def lines(self, config: ConfigState) -> tuple[NewTopicRecord, ...]:
        """The lines that the write appends."""
        name, initial_state = self.request.connector, self.request.initial_state
        line = config_records.connector_line(name, self.request.config, self.incarnation(config))
        # The target state comes first, so that every reader of the connector's config has read it (KIP-980).
        first = () if initial_state is None else (config_records.target_state_line(name, initial_state),)
        return (*first, line)

    def answer_when_complete(
        self, config: ConfigState, statuses: StatusState, *, replaced_config: Mapping[str, str] | None
    ) -> Answer:
        """The connector with the requested config, also if another write has already replaced this config."""
        name, connector = self.request.connector, config.connector(self.request.connector)
        is_current = connector is not None and connector.config == self.request.config
        info = ConnectorInfo(
            connector=name,
            config=self.request.config,
            tasks=config.committed_tasks(name),
            config_version=connector.config_line_offset if connector is not None and is_current else None,
        )
        return WrittenConnector(
            info=info,
            replaced_config=replaced_config,
            created=replaced_config is None,
            has_set_offsets=self.request.initial_offsets is not None,
        )


class PatchWrite(_WriteDefaults):
    """Changes keys of a connector's config."""

    def __init__(self, request: PatchConnector) -> None:
        self.request = request
        self.activity = _config_activity(request.connector)

    def config_to_validate(self, config: ConfigState) -> ConfigToValidate | None:
        known = config.connector(self.request.connector)
        if known is None:
            return None
        return ConfigToValidate(
            config=self._merged_config(known), configs_of_checkpointed_tasks=known.configs_of_checkpointed_tasks
        )

    def refusal(self, config: ConfigState) -> RequestRefused | None:
        """The refusal of the write in this state of the config log; None when the write is allowed."""
        return _existence_or_version_refusal(config, self.request.connector, self.request.if_match)

    def lines(self, config: ConfigState) -> tuple[NewTopicRecord, ...]:
        """The line that the write appends: the whole merged config."""
        known = config.connector(self.request.connector)
        assert known is not None, "an unknown connector is refused"
        return (config_records.connector_line(self.request.connector, self._merged_config(known), known.incarnation),)

    def answer_when_complete(
        self, config: ConfigState, statuses: StatusState, *, replaced_config: Mapping[str, str] | None
    ) -> Answer:
        info = describe_connector(config, self.request.connector)
        if isinstance(info, RequestRefused):
            return info
        return WrittenConnector(info=info, replaced_config=replaced_config, created=False, has_set_offsets=False)

    def _merged_config(self, connector: Connector) -> Mapping[str, str]:
        merged = {**connector.config, **self.request.patch}
        return {key: value for key, value in merged.items() if value is not None}


class DeletionWrite(_WriteDefaults):
    """Deletes a connector."""

    def __init__(self, request: DeleteConnector) -> None:
        self.request = request
        self.activity = f"removing the config for connector {request.connector} from the config topic"

    def refusal(self, config: ConfigState) -> RequestRefused | None:
        """The refusal of the write in this state of the config log; None when the write is allowed."""
        return _existence_or_version_refusal(config, self.request.connector, self.request.if_match)

    def lines(self, config: ConfigState) -> tuple[NewTopicRecord, ...]:
        """The lines that the write appends: two tombstones."""
        return config_records.connector_and_target_state_tombstones(self.request.connector)

    def request_id_carrier_lines(self, config: ConfigState) -> tuple[NewTopicRecord, ...]:
        """The target state, unchanged: a tombstone cannot contain the request's id."""
        name = self.request.connector
        return (config_records.target_state_line(name, config.target_state(name)),)

    def answer_when_complete(
        self, config: ConfigState, statuses: StatusState, *, replaced_config: Mapping[str, str] | None
    ) -> Answer:
        return DeletedConnector(replaced_config=replaced_config)


class TargetStateWrite(_WriteDefaults):
    """Pauses, resumes or stops a connector. Only a stop needs the leader: it also commits an empty set of tasks. The
    line is appended even if the target state stays the same."""

    def __init__(self, request: SetTargetState) -> None:
        self.request = request
        self.activity = (
            f"writing the {request.target_state.value} target state for connector {request.connector} to the config "
            "topic"
        )

    @property
    def needs_leader(self) -> bool:
        """Whether only the leader may write it: True only for a stop."""
        # In Connect, any worker can pause and resume; a stop also writes task configs, which only the leader may do.
        return self.request.target_state is TargetState.STOPPED

    def refusal(self, config: ConfigState) -> RequestRefused | None:
        """The refusal of the write in this state of the config log; None when the write is allowed."""
        name = self.request.connector
        return None if config.connector(name) is not None else not_found_refusal(f"Unknown connector {name}")

    def lines(self, config: ConfigState) -> tuple[NewTopicRecord, ...]:
        """The lines that the write appends. A stop also commits an empty set of tasks."""
        name, target_state = self.request.connector, self.request.target_state
        # An empty list of tasks, then the state: the order in which Connect writes a stop (KIP-875).
        none = config_records.task_config_and_commit_lines(name, ()) if target_state is TargetState.STOPPED else ()
        return (*none, config_records.target_state_line(name, target_state))


class RestartWrite(_WriteDefaults):
    """Requests a restart of a connector and its tasks: each worker restarts its own jobs when it reads the line
    (`restarts`)."""

    def __init__(self, request: RestartConnector) -> None:
        self.request = request
        self.activity = f"writing restart request for connector {request.connector} to the config topic"

    def refusal(self, config: ConfigState) -> RequestRefused | None:
        """The refusal of the write in this state of the config log; None when the write is allowed."""
        name = self.request.connector
        return None if config.connector(name) is not None else not_found_refusal(f"Unknown connector: {name}")

    def lines(self, config: ConfigState) -> tuple[NewTopicRecord, ...]:
        """The line that the write appends."""
        request = self.request
        restart = ConnectorRestartRequested(
            connector=request.connector, include_tasks=request.include_tasks, only_failed=request.only_failed
        )
        return (config_records.restart_line(restart),)

    def answer_when_complete(
        self, config: ConfigState, statuses: StatusState, *, replaced_config: Mapping[str, str] | None
    ) -> Answer:
        """The connector's status. The jobs that are restarted are RESTARTING, although their workers may not have
        reported this yet."""
        name = self.request.connector
        shown = connector_status(config, statuses, name)
        if shown is None:
            return not_found_refusal(f"Status for connector {name} not found")
        tasks = shown.tasks
        if self.request.include_tasks:
            tasks = tuple((task, self._as_restarting_status(status)) for task, status in tasks)
        return replace(shown, status=self._as_restarting_status(shown.status), tasks=tasks)

    def _as_restarting_status(self, status: Status) -> Status:
        """``status`` with the state RESTARTING if the request restarts its job, else unchanged."""
        is_restarted = not self.request.only_failed or status.state is JobState.FAILED
        return replace(status, state=JobState.RESTARTING) if is_restarted else status


class OffsetsWrite(_WriteDefaults):
    """Changes the offsets of a stopped connector. It is checked as the other writes are, and appends no line: the
    runtime makes the change."""

    can_be_looked_up_in_config_log = False

    def __init__(self, request: ChangeOffsets) -> None:
        self.request = request
        self.activity = offsets_activity(request.connector)

    def refusal(self, config: ConfigState) -> RequestRefused | None:
        """The refusal of the change in this state of the config log; None when the change is allowed."""
        name = self.request.connector
        connector = config.connector(name)
        if connector is None:
            return unknown_connector_refusal(name)
        if config.target_state(name) is TargetState.STOPPED and not connector.task_configs:
            return None
        message = (
            "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for the "
            f"specified connector by issuing a 'PUT' request to the '/connectors/{name}/stop' endpoint"
        )
        return RequestRefused(problem=Problem.BAD_REQUEST, message=message)

    def lines(self, config: ConfigState) -> tuple[NewTopicRecord, ...]:
        """No lines."""
        return ()


class TaskConfigsWrite(_WriteDefaults):
    """Writes the task configs that a connector's owner has made. Workers sign this kind of request (KIP-507)."""

    is_signed = True
    can_be_looked_up_in_config_log = False

    def __init__(self, request: PutTaskConfigs) -> None:
        self.request = request
        self.activity = (
            f"writing {len(request.configs)} task configs for connector {request.connector} to the config topic"
        )
        self.signature = request.signature

    def refusal(self, config: ConfigState) -> RequestRefused | None:
        """The refusal of the write in this state of the config log; None when the write is allowed. Refused are task
        configs of a connector that does not exist, or that was deleted and created again since; and task configs other
        than an empty set for a stopped connector."""
        name = self.request.connector
        connector = config.connector(name)
        if connector is None:
            return unknown_connector_refusal(name)
        # A line of Kafka Connect contains no incarnation: the known one may then differ between workers.
        if connector.is_incarnation_written and self.request.incarnation not in (None, connector.incarnation):
            return not_found_refusal(
                f"Connector {name} was deleted and created again after these task configs were made: they are those of "
                "the deleted connector"
            )
        if self.request.configs and config.target_state(name) is TargetState.STOPPED:
            message = f"Cannot submit non-empty set of task configs for stopped connector {name}"
            return RequestRefused(problem=Problem.BAD_REQUEST, message=message)
        return None

    def lines(self, config: ConfigState) -> tuple[NewTopicRecord, ...]:
        """The lines that the write appends: the task configs and their commit."""
        connector = config.connector(self.request.connector)
        assert connector is not None, "refusal() has found the connector"
        return config_records.task_config_and_commit_lines(
            self.request.connector, self.request.configs, connector.incarnation
        )


WriteKind: TypeAlias = (
    ConnectorWrite | PatchWrite | DeletionWrite | TargetStateWrite | TaskConfigsWrite | RestartWrite | OffsetsWrite
)


def write_kind_of_request(request: Write, fresh_incarnation: Incarnation) -> WriteKind:
    """The write of a request. ``fresh_incarnation`` is used if the write creates a connector."""
    match request:
        case PutConnector():
            return ConnectorWrite(request, fresh_incarnation)
        case PatchConnector():
            return PatchWrite(request)
        case DeleteConnector():
            return DeletionWrite(request)
        case SetTargetState():
            return TargetStateWrite(request)
        case PutTaskConfigs():
            return TaskConfigsWrite(request)
        case RestartConnector():
            return RestartWrite(request)
        case ChangeOffsets():
            return OffsetsWrite(request)


def offsets_activity(name: ConnectorName) -> str:
    """What the worker is doing while the runtime changes the offsets of a connector, in Connect's words."""
    return f"modifying offsets for connector {name}"


def _config_activity(name: ConnectorName) -> str:
    """What the worker is doing while it writes the config of a connector, in Connect's words."""
    return f"writing a config for connector {name} to the config topic"


def _existence_or_version_refusal(
    config: ConfigState, name: ConnectorName, if_match: IfMatch | None
) -> RequestRefused | None:
    """The refusal of a write to a connector that does not exist, or that has another version than ``if_match``
    requires; None when the write is allowed."""
    return (
        unknown_connector_refusal(name) if config.connector(name) is None else _version_refusal(config, name, if_match)
    )


def _version_refusal(config: ConfigState, name: ConnectorName, if_match: IfMatch | None) -> RequestRefused | None:
    """The refusal of a write whose condition the connector's config does not fulfil; None if it does."""
    if if_match is None:
        return None
    known = config.connector(name)
    if known is not None and (if_match.config_versions is None or known.config_line_offset in if_match.config_versions):
        return None
    problem = "there is no such connector" if known is None else f"its version is {known.config_line_offset}"
    message = f"Connector {name} does not have the version that If-Match requires: {problem}. Read the config again"
    return RequestRefused(problem=Problem.VERSION_MISMATCH, message=message)
