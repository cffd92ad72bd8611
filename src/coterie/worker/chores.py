"""Performs the herder's chores (effects that take time). Each chore returns the event that reports its result.

External failures (a topic or server cannot be reached) become events here. A plug-in may raise any exception; it fails
only the plug-in's own job, with its trace, and never the worker.
"""

import logging
import secrets
import time
import traceback

from coterie.engine.log import Log
from coterie.herder.messages import (
    AppendConfig,
    AppendStatuses,
    Chore,
    ChoreResult,
    CloseRuntime,
    ConfigAppended,
    ConfigAppendFailed,
    ConfigEndFound,
    ConfigValidated,
    ConnectorSplit,
    FindConfigEnd,
    FinishGeneration,
    GenerationFinished,
    GroupLeft,
    MakeSessionKey,
    PublishTaskConfigs,
    RestartTask,
    RuntimeClosed,
    SessionKeyMade,
    SplitConnector,
    SplitFailed,
    StartTask,
    StatusesAppended,
    StopTask,
    TaskConfigsPublished,
    TaskStarted,
    TaskStartFailed,
    TaskStopped,
    ValidateConfig,
)
from coterie.herder.seams import LeaderClient, Membership, SignatureRefusedError, SplitEndedError, TaskRuntime
from coterie.nouns.errors import CoterieError, UnreachableError, WorldError
from coterie.nouns.ids import ConfigOffset
from coterie.nouns.membership import Leave

logger = logging.getLogger(__name__)


class Chores:
    """Performs chores with the shells that were passed to the worker."""

    def __init__(
        self,
        *,
        config_log: Log,
        status_log: Log,
        membership: Membership,
        runtime: TaskRuntime,
        leader_client: LeaderClient,
    ) -> None:
        self._config_log = config_log
        self._status_log = status_log
        self._membership = membership
        self._runtime = runtime
        self._leader_client = leader_client

    async def result(self, chore: Chore) -> ChoreResult:
        """Perform ``chore``. Only a bug in Coterie raises an exception."""
        match chore:
            case StartTask() | RestartTask():
                return await self._start(chore)
            case StopTask():
                return await self._stop(chore)
            case SplitConnector() | FinishGeneration() | ValidateConfig():
                return await self._ask(chore)
            case PublishTaskConfigs():
                return await self._publish(chore)
            case MakeSessionKey(size_bytes=size_bytes):
                return SessionKeyMade(key=secrets.token_bytes(size_bytes), wall_ms=time.time_ns() // 1_000_000)
            case FindConfigEnd():
                return await self._find_config_end(chore)
            case AppendConfig():
                return await self._append_config(chore)
            case AppendStatuses():
                return await self._append_statuses(chore)
            case Leave(reason=reason, for_good=for_good):
                await self._membership.leave(reason, for_good=for_good)
                return GroupLeft()
            case CloseRuntime():
                await self._runtime.close()
                return RuntimeClosed()

    # -- chores of the task runtime -----------------------------------------------------------------------------------

    async def _start(self, chore: StartTask | RestartTask) -> TaskStarted | TaskStartFailed:
        task = chore.start.task if isinstance(chore, StartTask) else chore.task
        try:
            if isinstance(chore, StartTask):
                await self._runtime.start(chore.start)
            else:
                await self._runtime.restart(task)
        except Exception as error:  # noqa: BLE001
            return TaskStartFailed(task=task, trace=_trace_of(error))
        return TaskStarted(task=task)

    async def _stop(self, chore: StopTask) -> TaskStopped:
        try:
            await self._runtime.stop(chore.task, grace_ms=chore.grace_ms)
        except Exception as error:  # noqa: BLE001
            # The worker cannot do more; the checkpoint's next owner is protected from a query that is still running.
            logger.error("Stopping task %s failed: %s", chore.task, _way_to(error))
        return TaskStopped(task=chore.task)

    async def _ask(
        self, chore: SplitConnector | FinishGeneration | ValidateConfig
    ) -> ConnectorSplit | SplitFailed | GenerationFinished | ConfigValidated:
        match chore:
            case SplitConnector():
                return await self._split(chore)
            case FinishGeneration():
                return await self._finish(chore)
            case ValidateConfig():
                return await self._validate(chore)

    async def _split(self, chore: SplitConnector) -> ConnectorSplit | SplitFailed:
        name, written_at = chore.connector, chore.written_at
        try:
            configs = await self._runtime.split(
                name, chore.incarnation, chore.config, chore.checkpointed, keeps_split=chore.keeps_split
            )
        except Exception as error:  # noqa: BLE001
            is_transient = isinstance(error, UnreachableError | SplitEndedError)
            trace = _trace_of(error)
            return SplitFailed(connector=name, written_at=written_at, trace=trace, is_transient=is_transient)
        return ConnectorSplit(connector=name, written_at=written_at, configs=configs)

    async def _finish(self, chore: FinishGeneration) -> GenerationFinished:
        configs = None
        try:
            configs = await self._runtime.finish(chore.connector, chore.incarnation)
        except CoterieError as error:
            logger.warning("Cannot finish the closed checkpoint generation of %s here: %s", chore.connector, error)
        except Exception as error:  # noqa: BLE001
            logger.error("Finishing the closed checkpoint generation of %s failed: %s", chore.connector, _way_to(error))
        return GenerationFinished(connector=chore.connector, incarnation=chore.incarnation, configs=configs)

    async def _validate(self, chore: ValidateConfig) -> ConfigValidated:
        try:
            errors = await self._runtime.validate(chore.config, chore.checkpointed)
        except WorldError as error:
            return ConfigValidated(id=chore.id, errors={}, failure=str(error))
        except Exception as error:  # noqa: BLE001
            logger.error("Validating a config failed: %s", _way_to(error))
            key = "connector.class"
            errors = {key: [f"Invalid value {chore.config.get(key)} for configuration {key}: {error}"]}
        return ConfigValidated(id=chore.id, errors=errors)

    # -- chores of the leader client and of the logs ------------------------------------------------------------------

    async def _publish(self, chore: PublishTaskConfigs) -> TaskConfigsPublished:
        name, written_at = chore.connector, chore.written_at
        try:
            await self._leader_client.publish_task_configs(chore.leader_url, name, chore.configs, chore.signing)
        except WorldError as error:
            forbidden = isinstance(error, SignatureRefusedError)
            return TaskConfigsPublished(connector=name, written_at=written_at, refusal=str(error), forbidden=forbidden)
        return TaskConfigsPublished(connector=name, written_at=written_at)

    async def _find_config_end(self, chore: FindConfigEnd) -> ConfigEndFound:
        try:
            return ConfigEndFound(purpose=chore.purpose, end=ConfigOffset(await self._config_log.end_offset()))
        except WorldError as error:
            logger.warning("The end offset of the config topic cannot be read: %s", error)
            return ConfigEndFound(purpose=chore.purpose, end=None)

    async def _append_config(self, chore: AppendConfig) -> ConfigAppended | ConfigAppendFailed:
        try:
            return ConfigAppended(purpose=chore.purpose, end=ConfigOffset(await self._config_log.append(chore.lines)))
        except WorldError as error:
            return ConfigAppendFailed(purpose=chore.purpose, reason=str(error))

    async def _append_statuses(self, chore: AppendStatuses) -> StatusesAppended:
        try:
            await self._status_log.append(chore.lines)
        except WorldError as error:
            return StatusesAppended(failure=str(error))
        return StatusesAppended()


def _trace_of(error: Exception) -> str:
    """The trace of a status: the message of Coterie's own errors, message and stack of all others."""
    if isinstance(error, CoterieError):
        return str(error)
    cause = "".join(traceback.format_exception_only(error))
    return f"{cause}\n{''.join(traceback.format_exception(error))}"


def _way_to(error: Exception) -> str:
    """The type of ``error`` and the stack of the raise. The message is left out: it may quote a config, which only the
    client that sent it may see."""
    return f"{type(error).__name__}, raised at\n{''.join(traceback.format_tb(error.__traceback__))}"
