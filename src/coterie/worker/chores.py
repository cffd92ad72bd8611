"""Performs the herder's chores (effects that take time), and returns an event with the result of each.

External failures (a topic or server cannot be reached) are part of these results, and so are the exceptions of
plug-ins, which may raise any exception: the worker continues after each of them.
"""

import logging
import secrets
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence

from coterie.config.infos import ConfigInfos
from coterie.config.plugins import PluginVersionError, UnknownPluginError
from coterie.engine.log import LeaderLog, Log
from coterie.herder.messages import (
    AppendConfigLines,
    AppendStatusLines,
    ApplyOffsetChange,
    AskPlugins,
    CheckpointGenerationCreationEnded,
    Chore,
    ChoreResult,
    CloseRequestIntake,
    CloseRuntime,
    ComputeTarget,
    ConfigCouldNotBeValidated,
    ConfigLinesAppended,
    ConfigLinesAppendFailed,
    ConfigLogEndLookupEnded,
    ConfigValidationCompleted,
    CreateNextCheckpointGeneration,
    FindConfigLogEnd,
    GroupLeft,
    LeaderLogOpened,
    LeaderLogOpenFailed,
    MakeSessionKey,
    OffsetChangeEnded,
    OffsetReadEnded,
    OpenLeaderLog,
    PluginQuestionAnswered,
    ReadConnectorOffsets,
    RequestIntakeClosed,
    RestartTask,
    RuntimeClosed,
    SendTaskConfigsToLeader,
    SessionKeyMade,
    SplitConnector,
    SplitFailed,
    SplitSucceeded,
    StartTask,
    StatusAppendEnded,
    StopTask,
    TargetComputationEnded,
    TaskConfigsPublicationEnded,
    TaskStarted,
    TaskStartFailed,
    TaskStopped,
    ValidateConfig,
)
from coterie.herder.requests.questions import DescribePlugin, ListPlugins, PluginConfigKeys, PluginList
from coterie.herder.requests.refusals import Problem, RequestRefused, not_found_refusal
from coterie.herder.seams import (
    LeaderClient,
    Membership,
    RetriableStartError,
    SignatureRefusedError,
    SplitOrOffsetChangeAbortedError,
    TaskRuntime,
)
from coterie.nouns.connector_offsets import OffsetsRefusedError
from coterie.nouns.errors import (
    ConfigError,
    CoterieError,
    RecordsDiscardedError,
    UnreachableError,
    WorldError,
    WriterFencedError,
    invalid_value_message,
)
from coterie.nouns.ids import LogPosition
from coterie.nouns.membership import Leave
from coterie.nouns.target_assignments import AssignFunction
from coterie.nouns.text import without_lone_surrogates

logger = logging.getLogger(__name__)


class ChorePerformer:
    """Performs chores with the shells that were passed to the worker: logs, membership, runtime and leader client. A
    failure, also any exception of a plug-in, is part of a chore's result: only a bug in Coterie raises an exception.
    Closes no shell, with these exceptions: the chore CloseRuntime closes the runtime, CloseRequestIntake the intake of
    requests, and Leave ends the membership."""

    def __init__(
        self,
        *,
        config_log: Log,
        leader_log: LeaderLog,
        status_log: Log,
        membership: Membership,
        runtime: TaskRuntime,
        leader_client: LeaderClient,
        assignors: Mapping[str, AssignFunction],
        close_intake: Callable[[], Awaitable[None]],
    ) -> None:
        self._close_intake = close_intake
        self._assignors = assignors
        self._config_log = config_log
        self._leader_log = leader_log
        self._status_log = status_log
        self._membership = membership
        self._runtime = runtime
        self._leader_client = leader_client

    async def perform_chore(self, chore: Chore) -> ChoreResult:
        """Perform ``chore`` and return its result. Failures are results, too: only a bug in Coterie raises an
        exception."""
        match chore:
            case StartTask() | RestartTask():
                return await self._start_or_restart_task(chore)
            case StopTask():
                return await self._stop_task_or_log_failure(chore)
            case (
                SplitConnector()
                | CreateNextCheckpointGeneration()
                | ValidateConfig()
                | AskPlugins()
                | ReadConnectorOffsets()
                | ApplyOffsetChange()
            ):
                return await self._perform_plugin_chore(chore)
            case SendTaskConfigsToLeader():
                return await self._send_task_configs_to_leader(chore)
            case MakeSessionKey(size_bytes=size_bytes):
                return SessionKeyMade(key=secrets.token_bytes(size_bytes), wall_clock_ms=time.time_ns() // 1_000_000)
            case FindConfigLogEnd():
                return await self._find_config_log_end(chore)
            case ComputeTarget():
                return await self._compute_target(chore)
            case OpenLeaderLog():
                return await self._open_leader_log(chore)
            case AppendConfigLines() | AppendStatusLines():
                return await self._append_lines(chore)
            case CloseRequestIntake() | Leave() | CloseRuntime():
                return await self._perform_ending_chore(chore)

    async def _perform_ending_chore(
        self, chore: CloseRequestIntake | Leave | CloseRuntime
    ) -> RequestIntakeClosed | GroupLeft | RuntimeClosed:
        """Perform one of the three chores with which this worker ends: close the intake of requests, leave the group,
        or close the runtime."""
        match chore:
            case CloseRequestIntake():
                await self._close_intake()
                return RequestIntakeClosed()
            case Leave(reason=reason, is_permanent=is_permanent):
                await self._membership.leave(reason, is_permanent=is_permanent)
                return GroupLeft()
            case CloseRuntime():
                await self._runtime.close()
                return RuntimeClosed()

    # -- chores of the task runtime -----------------------------------------------------------------------------------

    async def _start_or_restart_task(self, chore: StartTask | RestartTask) -> TaskStarted | TaskStartFailed:
        """Start or restart a task. Returns TaskStartFailed when the runtime raises any exception; its
        ``restart_policy`` is None unless the exception is a RetriableStartError, after which the start may be tried
        again."""
        task = chore.spec.task if isinstance(chore, StartTask) else chore.task
        try:
            if isinstance(chore, StartTask):
                await self._runtime.start(chore.spec)
            else:
                await self._runtime.restart(task)
        except Exception as error:  # noqa: BLE001
            policy = error.restart_policy if isinstance(error, RetriableStartError) else None
            return TaskStartFailed(task=task, trace=_message_or_full_trace_for_status(error), restart_policy=policy)
        return TaskStarted(task=task)

    async def _stop_task_or_log_failure(self, chore: StopTask) -> TaskStopped:
        """Stop a task. Returns TaskStopped also when the runtime raises an exception, which is logged: the stop is not
        tried again, and the task may still run."""
        try:
            await self._runtime.stop(chore.task, grace_ms=chore.grace_ms)
        except Exception as error:  # noqa: BLE001
            # The worker cannot do more; the checkpoint's next owner is protected from a query that is still running.
            logger.error(
                "Stopping task %s failed and is not tried again; the task may still run until its checkpoint is taken "
                "over or this worker ends. To end the task now, restart this worker: %s",
                chore.task,
                _error_type_and_stack(error),
            )
        return TaskStopped(task=chore.task)

    async def _perform_plugin_chore(
        self,
        chore: SplitConnector
        | CreateNextCheckpointGeneration
        | ValidateConfig
        | AskPlugins
        | ReadConnectorOffsets
        | ApplyOffsetChange,
    ) -> (
        SplitSucceeded
        | SplitFailed
        | CheckpointGenerationCreationEnded
        | ConfigValidationCompleted
        | ConfigCouldNotBeValidated
        | PluginQuestionAnswered
        | OffsetReadEnded
        | OffsetChangeEnded
    ):
        """Perform a chore that may run the code of a plug-in, other than the start or stop of a task."""
        match chore:
            case SplitConnector():
                return await self._split_connector(chore)
            case CreateNextCheckpointGeneration():
                return await self._create_next_checkpoint_generation(chore)
            case ValidateConfig():
                return await self._validate_config_unless_world_error(chore)
            case AskPlugins():
                return await self._ask_plugins(chore)
            case ReadConnectorOffsets():
                return await self._read_offsets(chore)
            case ApplyOffsetChange():
                return await self._change_offsets(chore)

    async def _split_connector(self, chore: SplitConnector) -> SplitSucceeded | SplitFailed:
        """Split a connector into task configs. Returns SplitFailed when the runtime raises any exception, or returns
        configs that are not text; ``is_transient`` of it is True if the exception is an UnreachableError or a
        SplitOrOffsetChangeAbortedError."""
        name, config_line_offset = chore.connector, chore.config_line_offset
        try:
            result = await self._runtime.split(
                name,
                chore.incarnation,
                chore.config,
                chore.configs_of_checkpointed_tasks,
                keeps_source_parts=chore.keeps_source_parts,
            )
            _check_task_configs_encodable(result.task_configs)
        except Exception as error:  # noqa: BLE001
            is_transient = isinstance(error, UnreachableError | SplitOrOffsetChangeAbortedError)
            trace = _message_or_full_trace_for_status(error)
            return SplitFailed(
                connector=name, config_line_offset=config_line_offset, trace=trace, is_transient=is_transient
            )
        return SplitSucceeded(
            connector=name,
            config_line_offset=config_line_offset,
            task_configs=result.task_configs,
            kept_source_parts_reason=result.kept_source_parts_reason,
        )

    async def _create_next_checkpoint_generation(
        self, chore: CreateNextCheckpointGeneration
    ) -> CheckpointGenerationCreationEnded:
        """Create the checkpoint generation that follows the closed one of a connector. A failure is logged, and
        ``task_configs`` of the result is then None."""
        configs = None
        try:
            configs = await self._runtime.ensure_open_checkpoint_generation(chore.connector, chore.incarnation)
        except CoterieError as error:
            logger.warning(
                "Connector %s: the checkpoint generation that follows the closed one cannot be created. Tasks that "
                "wait for it do not start; this worker tries again while they wait: %s",
                chore.connector,
                error,
            )
        except Exception as error:  # noqa: BLE001
            logger.error(
                "Connector %s: an exception prevented the creation of the checkpoint generation that follows the "
                "closed one. Tasks that wait for it do not start; this worker tries again while they wait. If the "
                "stack ends in a plug-in, correct the plug-in; else this is a bug in Coterie: %s",
                chore.connector,
                _error_type_and_stack(error),
            )
        return CheckpointGenerationCreationEnded(
            connector=chore.connector, incarnation=chore.incarnation, task_configs=configs
        )

    async def _validate_config_unless_world_error(
        self, chore: ValidateConfig
    ) -> ConfigValidationCompleted | ConfigCouldNotBeValidated:
        """Validate a connector's config. Returns ConfigCouldNotBeValidated when the runtime raises a WorldError. After
        any other exception the result is ConfigValidationCompleted, in which the exception's message is an error of the
        key ``connector.class``; the exception is logged without its message."""
        try:
            infos = await self._runtime.validate(chore.config, chore.configs_of_checkpointed_tasks)
        except WorldError as error:
            return ConfigCouldNotBeValidated(id=chore.id, failure=str(error))
        except Exception as error:  # noqa: BLE001
            logger.error(
                "Validating a connector's config failed; the client receives the exception's message as an error of "
                "connector.class. If the stack ends in a plug-in, correct the plug-in; else this is a bug in Coterie: "
                "%s",
                _error_type_and_stack(error),
            )
            key = "connector.class"
            errors = {key: [invalid_value_message(key, chore.config.get(key), str(error))]}
            infos = ConfigInfos(connector_class=chore.config.get(key, ""), configs=()).with_errors_replaced(errors)
        return ConfigValidationCompleted(id=chore.id, infos=infos)

    async def _ask_plugins(self, chore: AskPlugins) -> PluginQuestionAnswered:
        """List this worker's plug-ins, or describe the config keys of one of them. An unknown name or version is a
        refusal. Any other exception, normally that of a plug-in, is logged without its message, and becomes a refusal
        with its message."""
        try:
            match chore.question:
                case ListPlugins():
                    return PluginQuestionAnswered(
                        id=chore.id, answer=PluginList(plugins=tuple(await self._runtime.list_plugins()))
                    )
                case DescribePlugin(name=name, version_range=version_range):
                    keys = await self._runtime.describe_plugin(name, version_range)
                    return PluginQuestionAnswered(id=chore.id, answer=PluginConfigKeys(keys=tuple(keys)))
        except UnknownPluginError as error:
            return PluginQuestionAnswered(id=chore.id, answer=not_found_refusal(str(error)))
        except PluginVersionError as error:
            return PluginQuestionAnswered(
                id=chore.id, answer=RequestRefused(problem=Problem.BAD_REQUEST, message=str(error))
            )
        except Exception as error:  # noqa: BLE001
            logger.error(
                "A request to list this worker's plug-ins, or the keys of one, is answered with an error, because an "
                "exception was raised. If the stack ends in a plug-in, correct or uninstall the plug-in; else this is "
                "a bug in Coterie: %s",
                _error_type_and_stack(error),
            )
            cause = "".join(traceback.format_exception_only(error)).strip()
            message = f"The plug-ins of this worker could not be listed or described: {cause}"
            return PluginQuestionAnswered(
                id=chore.id, answer=RequestRefused(problem=Problem.PLUGIN_FAILED, message=message)
            )

    async def _read_offsets(self, chore: ReadConnectorOffsets) -> OffsetReadEnded:
        """Read a connector's offsets. Any exception of the runtime becomes ``failure`` of the result."""
        try:
            offsets = await self._runtime.read_offsets(chore.connector, chore.incarnation, chore.config)
        except Exception as error:  # noqa: BLE001
            reason = _describe_and_maybe_log_offsets_error(chore, error)
            failure = f"Failed to read the offsets of connector {chore.connector}: {reason}"
            return OffsetReadEnded(id=chore.id, failure=failure)
        return OffsetReadEnded(id=chore.id, offsets=tuple(offsets))

    async def _change_offsets(self, chore: ApplyOffsetChange) -> OffsetChangeEnded:
        """Change a connector's offsets. Any exception of the runtime becomes ``refusal`` of the result: BAD_REQUEST if
        the source cannot use the offsets or the config is invalid, else OFFSETS_FAILED."""
        try:
            await self._runtime.change_offsets(
                chore.connector, chore.incarnation, chore.config, chore.configs_of_checkpointed_tasks, chore.change
            )
        except (OffsetsRefusedError, ConfigError) as error:
            return OffsetChangeEnded(
                id=chore.id, refusal=RequestRefused(problem=Problem.BAD_REQUEST, message=str(error))
            )
        except Exception as error:  # noqa: BLE001
            reason = _describe_and_maybe_log_offsets_error(chore, error)
            message = f"Failed to modify the offsets of connector {chore.connector}: {reason}"
            return OffsetChangeEnded(
                id=chore.id, refusal=RequestRefused(problem=Problem.OFFSETS_FAILED, message=message)
            )
        return OffsetChangeEnded(id=chore.id)

    # -- chores of the leader client and of the logs ------------------------------------------------------------------

    async def _send_task_configs_to_leader(self, chore: SendTaskConfigsToLeader) -> TaskConfigsPublicationEnded:
        """Send task configs to the leader, which is another worker. A WorldError becomes ``refusal`` of the result."""
        name, config_line_offset = chore.connector, chore.config_line_offset
        try:
            await self._leader_client.publish_task_configs(
                chore.leader_url, name, chore.incarnation, chore.configs, chore.signing_key
            )
        except WorldError as error:
            forbidden = isinstance(error, SignatureRefusedError)
            return TaskConfigsPublicationEnded(
                connector=name,
                config_line_offset=config_line_offset,
                refusal=str(error),
                is_signature_refused=forbidden,
            )
        return TaskConfigsPublicationEnded(connector=name, config_line_offset=config_line_offset)

    async def _find_config_log_end(self, chore: FindConfigLogEnd) -> ConfigLogEndLookupEnded:
        """Read the end position of the config log. When the log cannot be read, a warning is logged, and ``end_offset``
        of the result is None."""
        try:
            return ConfigLogEndLookupEnded(
                purpose=chore.purpose, end_offset=LogPosition(await self._config_log.end_position())
            )
        except WorldError as error:
            logger.warning(
                "The end offset of the config topic cannot be read: %s. Until it can be read, writes wait, reads may "
                "return an older state, and a new leader may assign no jobs; check that the Kafka cluster runs",
                error,
            )
            return ConfigLogEndLookupEnded(purpose=chore.purpose, end_offset=None)

    async def _compute_target(self, chore: ComputeTarget) -> TargetComputationEnded:
        """Let the assignor that ``chore.snapshot`` names compute a target assignment. If this worker does not have that
        assignor, or the assignor raises an exception of any type, ``target`` of the result is None, and ``error``
        contains the reason. An exception is also logged."""
        name = chore.snapshot.assignor
        assign = self._assignors.get(name)
        if assign is None:
            offered = ", ".join(sorted(self._assignors)) or "none"
            error = f"this worker does not have the assignor {name}; its assignors: {offered}"
            return TargetComputationEnded(token=chore.token, target=None, error=error)
        try:
            return TargetComputationEnded(token=chore.token, target=await assign(chore.snapshot))
        except Exception as error:
            logger.error(
                "The assignor %s raised an exception, so this worker computes no target assignment; the error is sent "
                "to the coordinator",
                name,
                exc_info=error,
            )
            text = "".join(traceback.format_exception_only(error)).strip()
            return TargetComputationEnded(token=chore.token, target=None, error=f"{name}: {text}")

    async def _append_lines(
        self, chore: AppendConfigLines | AppendStatusLines
    ) -> ConfigLinesAppended | ConfigLinesAppendFailed | StatusAppendEnded:
        """Append lines to the config log or to the status log."""
        match chore:
            case AppendConfigLines():
                return await self._append_config_lines(chore)
            case AppendStatusLines():
                return await self._append_status_lines(chore)

    async def _open_leader_log(self, chore: OpenLeaderLog) -> LeaderLogOpened | LeaderLogOpenFailed:
        """Open the leader's log: take the right to append lines as the leader. A WorldError becomes ``reason`` of the
        result."""
        try:
            await self._leader_log.open(transaction_timeout_ms=chore.transaction_timeout_ms)
        except WorldError as error:
            return LeaderLogOpenFailed(opening_number=chore.opening_number, reason=str(error))
        return LeaderLogOpened(opening_number=chore.opening_number)

    async def _append_config_lines(self, chore: AppendConfigLines) -> ConfigLinesAppended | ConfigLinesAppendFailed:
        """Append lines to the config log, with the leader's log if ``leader_log_opening_number`` is set. After
        ConfigLinesAppendFailed the log may contain some or all of the lines, unless the append was fenced or the lines
        were discarded. A failure is logged, unless the append was fenced."""
        log = self._config_log if chore.leader_log_opening_number is None else self._leader_log
        try:
            return ConfigLinesAppended(purpose=chore.purpose, end_offset=LogPosition(await log.append(chore.lines)))
        except WorldError as error:
            if not isinstance(error, WriterFencedError):  # Fenced lines are written again.
                logger.warning(
                    "The append of %d lines to the config topic has failed: %s. Check that the brokers can be reached, "
                    "that the topic of config.storage.topic exists and that this worker may write to it",
                    len(chore.lines),
                    error,
                )
            return ConfigLinesAppendFailed(
                purpose=chore.purpose,
                reason=str(error),
                leader_log_opening_number=chore.leader_log_opening_number,
                is_fenced=isinstance(error, WriterFencedError),
                are_lines_discarded=isinstance(error, RecordsDiscardedError),
            )

    async def _append_status_lines(self, chore: AppendStatusLines) -> StatusAppendEnded:
        """Append lines to the status log. A WorldError becomes ``failure`` of the result."""
        try:
            await self._status_log.append(chore.lines)
        except WorldError as error:
            return StatusAppendEnded(failure=str(error))
        return StatusAppendEnded()


def _check_task_configs_encodable(task_configs: Sequence[Mapping[str, str]]) -> None:
    """Check that task configs can be written to the config topic.

    :raises WorldError: when a key or a value contains half of a surrogate pair; the message contains the key.
    """
    for number, config in enumerate(task_configs):
        for key, value in config.items():
            if (key, value) != (without_lone_surrogates(key), without_lone_surrogates(value)):
                raise WorldError(
                    f"The connector's split has returned a config of task {number} that is not text: the key or the "
                    f"value of {key!r} contains half of a surrogate pair; correct the config or the source plug-in"
                )


def _message_or_full_trace_for_status(error: Exception) -> str:
    """The text of ``error`` for the field ``trace`` of a status: the message of one of Coterie's own errors; type,
    message and stack of any other exception."""
    if isinstance(error, CoterieError):
        return str(error)
    cause = "".join(traceback.format_exception_only(error))
    return f"{cause}\n{''.join(traceback.format_exception(error))}"


def _describe_and_maybe_log_offsets_error(chore: ReadConnectorOffsets | ApplyOffsetChange, error: Exception) -> str:
    """The text of ``error`` for the client: the message of one of Coterie's own errors; of any other error, which is
    logged, only the type."""
    if isinstance(error, CoterieError):
        return str(error)
    action = "Reading" if isinstance(chore, ReadConnectorOffsets) else "Changing"
    logger.error("%s the offsets of connector %s failed: %s", action, chore.connector, _error_type_and_stack(error))
    return f"{type(error).__name__}; see the worker's log"


def _error_type_and_stack(error: Exception) -> str:
    """The type of ``error`` and the stack at which it was raised, for the log. The message of ``error`` is left out: it
    may quote a config, which only the client that sent the config may see."""
    return f"{type(error).__name__}, raised at\n{''.join(traceback.format_tb(error.__traceback__))}"
