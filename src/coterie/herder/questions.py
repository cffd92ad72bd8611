"""Questions to this worker's plug-ins. They need no leader, and wait for no round, no log and no other request: each
worker passes them to its runtime at once.

A question is answered when the runtime has answered it, or refused when ``request_timeout_ms`` is over.
"""

from collections.abc import Mapping

from coterie.config.infos import ConfigInfos
from coterie.config.secrets import masked_config
from coterie.herder.connector_names import name_errors
from coterie.herder.messages import (
    AskPlugins,
    CancelTimer,
    ConfigCouldNotBeValidated,
    ConfigValidationCompleted,
    PluginQuestionAnswered,
    Reply,
    RequestArrived,
    SetTimer,
    ValidateConfig,
)
from coterie.herder.requests.ids import RequestId
from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.questions import (
    DescribePlugin,
    ListPlugins,
    PluginList,
    Question,
    ValidateConnectorConfig,
)
from coterie.herder.requests.refusals import Problem, RequestRefused, timeout_refusal
from coterie.herder.state import PendingQuestion, Turn
from coterie.herder.timers import RequestTimeoutDue
from coterie.nouns.jobs import ConnectorName

VALIDATION_ACTIVITY = "performing multi-property validation for the connector"
"""What the worker is doing while a plug-in validates a config, in Connect's words."""


def on_request(turn: Turn, event: RequestArrived, question: Question) -> None:
    """Pass the question to the runtime, and set its time limit. A config without ``connector.class`` is refused at
    once."""
    herder = turn.herder
    if isinstance(question, ValidateConnectorConfig):
        refusal = missing_class_refusal(_without_nulls(question.config))
        if refusal is not None:
            turn.emit(Reply(id=event.id, answer=refusal))
            return
    herder.requests.questions[event.id] = PendingQuestion(question=question, asked_at_ms=turn.now_ms)
    turn.emit(SetTimer(timer=RequestTimeoutDue(id=event.id), at_ms=turn.now_ms + herder.settings.request_timeout_ms))
    match question:
        case ListPlugins() | DescribePlugin():
            turn.emit(AskPlugins(id=event.id, question=question))
        case ValidateConnectorConfig():
            known = herder.config.connector(_connector_name_or_empty(question))
            checkpointed = () if known is None else known.configs_of_checkpointed_tasks
            turn.emit(
                ValidateConfig(
                    id=event.id, config=_without_nulls(question.config), configs_of_checkpointed_tasks=checkpointed
                )
            )


def on_answered(turn: Turn, event: PluginQuestionAnswered) -> None:
    """Answer the question with what the plug-ins returned: with ``connectors_only`` only the sources and sinks. Does
    nothing if the question has timed out."""
    match turn.herder.requests.questions.get(event.id), event.answer:
        case PendingQuestion(question=ListPlugins(connectors_only=True)), PluginList(plugins=plugins):
            connectors = tuple(plugin for plugin in plugins if plugin.type.is_connector)
            _answer_question(turn, event.id, PluginList(plugins=connectors))
        case PendingQuestion(question=ListPlugins() | DescribePlugin()), answer:
            _answer_question(turn, event.id, answer)
        case _:
            pass


def on_validation_ended(turn: Turn, event: ConfigValidationCompleted | ConfigCouldNotBeValidated) -> None:
    """Answer the question with the result of the validation. Does nothing if the id is not that of a pending question,
    for example of a write."""
    pending = turn.herder.requests.questions.get(event.id)
    if pending is None or not isinstance(question := pending.question, ValidateConnectorConfig):
        return
    match event:
        case ConfigCouldNotBeValidated(failure=failure):
            _answer_question(turn, event.id, not_validated_refusal(failure))
        case ConfigValidationCompleted(infos=infos) if (
            message := _exception_text_if_connect_raises(infos)
        ) is not None:
            _answer_question(turn, event.id, RequestRefused(problem=Problem.NOT_VALIDATED, message=message))
        case ConfigValidationCompleted(infos=infos):
            if question.config.get("name") is not None:
                infos = infos.with_errors_replaced(name_errors(_connector_name_or_empty(question)))
            _answer_question(
                turn,
                event.id,
                infos.with_nulls_as_errors(key for key, value in question.config.items() if value is None),
            )


def on_request_timeout(turn: Turn, id_: RequestId) -> None:
    """The time limit of the request is over: refuse it. Does nothing for an unknown id, for example of a read."""
    pending = turn.herder.requests.questions.get(id_)
    if pending is None:
        return
    match pending.question:
        case ValidateConnectorConfig():
            activity = VALIDATION_ACTIVITY
        case DescribePlugin(name=name):
            activity = f"retrieving the configuration definition from the plugin {name}"
        case ListPlugins():
            activity = "listing its plugins"
    _answer_question(turn, id_, timeout_refusal(activity, turn.herder.wall_clock_ms(pending.asked_at_ms)))


def refuse_all(turn: Turn, problem: Problem, message: str) -> None:
    """Refuse all pending questions."""
    for id_ in list(turn.herder.requests.questions):
        _answer_question(turn, id_, RequestRefused(problem=problem, message=message))


def missing_class_refusal(config: Mapping[str, str]) -> RequestRefused | None:
    """The refusal, in Connect's words, of a config without the key ``connector.class``; None when the config has it. It
    quotes the config without secret values: clients and the audit log write the message into logs."""
    if "connector.class" in config:
        return None
    config_text = ", ".join(f"{key}={value}" for key, value in masked_config(config).items())
    message = f"Connector config {{{config_text}}} contains no connector type"
    return RequestRefused(problem=Problem.BAD_REQUEST, message=message)


def not_validated_refusal(failure: str) -> RequestRefused:
    """The refusal of a request whose config could not be validated because of ``failure``."""
    return RequestRefused(problem=Problem.NOT_VALIDATED, message=f"Failed to validate the config: {failure}")


def _exception_text_if_connect_raises(infos: ConfigInfos) -> str | None:
    """Connect's message about a config whose validation ends with an exception in Connect: the exception's Java class
    and message. None for all other configs, also invalid ones: their validation has a result."""
    if infos.unknown_class_message is not None:
        return f"org.apache.kafka.connect.runtime.rest.errors.BadRequestException: {infos.unknown_class_message}"
    if infos.client_property_type_error is not None:
        return f"org.apache.kafka.common.config.ConfigException: {infos.client_property_type_error}"
    return None


def _answer_question(turn: Turn, id_: RequestId, answer: Answer) -> None:
    """Answer the question and forget it."""
    del turn.herder.requests.questions[id_]
    turn.emit(CancelTimer(timer=RequestTimeoutDue(id=id_)))
    turn.emit(Reply(id=id_, answer=answer))


def _connector_name_or_empty(question: ValidateConnectorConfig) -> ConnectorName:
    """The connector's name in the config; empty when the config has none."""
    return ConnectorName(question.config.get("name") or "")


def _without_nulls(config: Mapping[str, str | None]) -> Mapping[str, str]:
    return {key: value for key, value in config.items() if value is not None}
