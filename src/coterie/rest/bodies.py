"""Parses the JSON bodies of requests, with the rules of Connect's JSON library: for example, a number in a config
becomes a string with the same digits.
"""

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from coterie.herder.writes import invalid_config_message
from coterie.nouns.connector_offsets import ConnectorOffset, OffsetChange
from coterie.nouns.states import TargetState
from coterie.rest.problems import BadRequestError, BodyTooLargeError, UnreadableBodyError
from coterie.rest.request_context import context_of

BODY_SIZE_MAX_BYTES = 8 * 1024 * 1024
"""The greatest size of a request's body. A config must fit into one Kafka record, which is smaller."""

PARSED_ON_LOOP_MAX_BYTES = 64 * 1024
"""The size of the largest body that is parsed on the event loop: that takes about 40 ms for many small configs."""

_PARSING_EXECUTOR = ThreadPoolExecutor(1, thread_name_prefix="request bodies")
"""Runs the thread that parses long bodies, one after the other."""

BodyT = TypeVar("BodyT")

_JAVA_WHITE_SPACE = "".join(map(chr, range(0x21)))
"""The characters that ``String.trim()`` of Java removes: space and the control characters below it. White space outside
of ASCII, such as U+00A0, is kept."""

_TARGET_STATE_BY_INITIAL_STATE = {
    "RUNNING": TargetState.STARTED,
    "PAUSED": TargetState.PAUSED,
    "STOPPED": TargetState.STOPPED,
}
"""Connect's values of ``initial_state``, which are accepted in lower case too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewConnector:
    """The body of ``POST /connectors``; ``name`` is empty, and ``initial_state`` and ``initial_offsets`` are None, if
    the body does not contain them."""

    name: str
    """The connector's name without the characters around it that trim() of Java's strings removes; empty when the body
    contains none."""
    config: Mapping[str, str]
    """The config in the body, with all values as strings: the key ``name`` may be missing."""
    initial_state: TargetState | None
    """The target state with which the connector is created; None when the body contains no ``initial_state``."""
    initial_offsets: OffsetChange | None
    """The offsets at which the connector begins; None when the body contains no ``initial_offsets``."""


async def read_body(request: Request) -> bytes:
    """The whole body of ``request``. A repeated call for the same HTTP request returns the same bytes.

    :raises BodyTooLargeError: as soon as more than :data:`BODY_SIZE_MAX_BYTES` were received.
    :raises UnreadableBodyError: when the connection was closed before the whole body was received.
    """
    context = context_of(request)
    if context.body is not None:
        return context.body
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > BODY_SIZE_MAX_BYTES:
                raise BodyTooLargeError(f"The body is longer than {BODY_SIZE_MAX_BYTES} bytes")
            chunks.append(chunk)
    except ClientDisconnect:
        raise UnreadableBodyError("The connection was closed before the whole body was received") from None
    context.body = b"".join(chunks)
    return context.body


async def parse_on_thread_if_large(parse: Callable[[bytes], BodyT], body: bytes) -> BodyT:
    """The result of ``parse(body)``, for a function that parses JSON. A body that is longer than
    :data:`PARSED_ON_LOOP_MAX_BYTES` is parsed on a thread, one such body after the other, so that the event loop keeps
    about half of the processor time: it sends the worker's heartbeats."""
    if len(body) <= PARSED_ON_LOOP_MAX_BYTES:
        return parse(body)
    return await asyncio.get_running_loop().run_in_executor(_PARSING_EXECUTOR, parse, body)


def parse_new_connector(body: bytes) -> NewConnector:
    """Parse the body of ``POST /connectors``.

    :raises UnreadableBodyError: when the body is not such JSON, or has an unknown field or ``initial_state``, or no
        ``config``.
    :raises BadRequestError: when a value of the config other than ``name`` is null, or ``initial_offsets`` is an empty
        list.
    """
    fields = _as_json_object(_parse_json_with_number_texts(body), "a connector")
    known = "a connector has name, config, initial_state and initial_offsets"
    if unknown := sorted(fields.keys() - {"name", "config", "initial_state", "initial_offsets"}):
        raise UnreadableBodyError(f'Unrecognized field "{unknown[0]}": {known}')
    if fields.get("config") is None:
        raise UnreadableBodyError(f'Missing field "config", the object with the keys of the connector: {known}')
    name, initial_state, initial_offsets = (fields.get(key) for key in ("name", "initial_state", "initial_offsets"))
    if initial_state is not None and str(initial_state).upper() not in _TARGET_STATE_BY_INITIAL_STATE:
        raise UnreadableBodyError(
            f"{initial_state!r} is not an initial_state: use one of {', '.join(_TARGET_STATE_BY_INITIAL_STATE)}"
        )
    return NewConnector(
        name=name_of_new_connector(name),
        config=_as_config(fields.get("config")),
        initial_state=None if initial_state is None else _TARGET_STATE_BY_INITIAL_STATE[str(initial_state).upper()],
        initial_offsets=(
            None
            if initial_offsets is None
            else OffsetChange(offsets=_as_nonempty_offsets_of_field(initial_offsets, "initial_offsets"))
        ),
    )


def name_of_new_connector(value: object) -> str:
    """The name of a new connector: the text of ``value``, the field ``name`` of the body, without white space around
    it; empty when the field is null or missing.

    :raises UnreadableBodyError: when ``value`` is an object or an array.
    """
    if value is None:
        return ""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return _as_text(str(value) if is_number else value, "name").strip(_JAVA_WHITE_SPACE)


def parse_offsets(body: bytes) -> tuple[ConnectorOffset, ...]:
    """Parse the body of ``PATCH /connectors/{connector}/offsets``.

    :raises UnreadableBodyError: when the body is not such JSON.
    :raises BadRequestError: when it contains no offset.
    """
    fields = _as_json_object(_parse_json_with_number_texts(body), "offsets")
    if unknown := sorted(fields.keys() - {"offsets"}):
        raise UnreadableBodyError(f'Unrecognized field "{unknown[0]}": the body has only the field offsets')
    return _as_nonempty_offsets_of_field(fields.get("offsets"), "offsets")


def parse_config(body: bytes) -> Mapping[str, str]:
    """Parse the body of ``PUT /connectors/{connector}/config``: an object of strings, numbers and booleans.

    :raises UnreadableBodyError: when the body is not such JSON.
    :raises BadRequestError: when a value other than ``name`` is null.
    """
    return _as_config(_parse_json_with_number_texts(body))


def parse_config_patch(body: bytes, name: str) -> Mapping[str, str | None]:
    """Parse the body of ``PATCH /connectors/{connector}/config``: an object of strings, numbers, booleans and null.
    ``name`` is the connector's name.

    :raises UnreadableBodyError: when the body is not such JSON.
    :raises BadRequestError: when the patch changes or removes the key ``name``.
    """
    patch = parse_config_with_nulls(body)
    if "name" in patch and patch["name"] is None:
        message = 'Missing required configuration "name" which has no default value.'
        raise BadRequestError(invalid_config_message({"name": [message]}))
    _check_name_matches_url(patch, name)
    return patch


def parse_config_with_nulls(body: bytes) -> Mapping[str, str | None]:
    """Parse the body of ``PUT /connector-plugins/{plugin}/config/validate``: a config in which a value may be null.

    :raises UnreadableBodyError: when the body is not such JSON.
    """
    fields = _as_json_object(_parse_json_with_number_texts(body), "a config")
    return {key: None if value is None else _as_text(value, key) for key, value in fields.items()}


def parse_task_configs(body: bytes) -> tuple[Mapping[str, str], ...]:
    """Parse the body of ``POST /connectors/{connector}/tasks``: an array with the config of each task, by task number.

    :raises UnreadableBodyError: when the body is not such JSON.
    :raises BadRequestError: when a value of a config other than ``name`` is null.
    """
    parsed = _parse_json_with_number_texts(body)
    if not isinstance(parsed, list):
        raise UnreadableBodyError("Cannot read a list of task configs: the body is not a JSON array")
    return tuple(_as_config(item) for item in parsed)


def check_and_set_connector_name(config: Mapping[str, str], name: str) -> Mapping[str, str]:
    """``config`` with the key ``name`` set to ``name``; the key is added when it is missing, as Connect does.

    :raises BadRequestError: when the value of ``name`` in ``config`` is another name.
    """
    _check_name_matches_url(config, name)
    return {**config, "name": name}


def _check_name_matches_url(config: Mapping[str, str | None], name: str) -> None:
    """Check that the key ``name`` of ``config`` is missing or null, or has the value ``name``, the connector's name in
    the URL.

    :raises BadRequestError: when its value is another name.
    """
    name_in_config = config.get("name")
    if name_in_config not in (None, name):
        raise BadRequestError(
            f"Connector name configuration ({name_in_config}) doesn't match connector name in the URL ({name})"
        )


# -- helpers ----------------------------------------------------------------------------------------------------------


def _parse_json_with_number_texts(body: bytes) -> object:
    """Parse ``body`` as JSON; a number becomes a :class:`_NumberText`.

    :raises UnreadableBodyError: when ``body`` is not JSON, is nested too deeply, or contains half of a surrogate pair.
    """
    # Numbers in configs keep their text: Connect converts them to strings without interpreting the value.
    to_text = _NumberText
    try:
        parsed = json.loads(body, parse_int=to_text, parse_float=to_text, parse_constant=_refuse_non_json_constant)
        json.dumps(parsed, ensure_ascii=False).encode()  # A lone surrogate is valid JSON but not text.
    except UnicodeEncodeError:
        raise UnreadableBodyError(
            "The body contains half of a surrogate pair (such as \\ud800), which is not text"
        ) from None
    except ValueError as error:
        raise UnreadableBodyError(f"The body is not JSON: {error}") from None
    except RecursionError:
        raise UnreadableBodyError("The JSON in the body is nested too deeply") from None
    return parsed


class _NumberText(str):
    """The text of a JSON number, unchanged."""

    __slots__ = ()


def _with_parsed_numbers_or_raise(parsed: object) -> object:
    """``parsed`` with a number in place of each :class:`_NumberText`.

    :raises ValueError: when a number is too large.
    """
    match parsed:
        case _NumberText():
            with suppress(ValueError):  # Python does not convert thousands of digits.
                number = int(parsed) if parsed.lstrip("-").isdecimal() else float(parsed)
                if number not in (math.inf, -math.inf):  # JSON has no infinity: a response could not contain it.
                    return number
            raise ValueError(f"the number {parsed:.50} is too large")
        case list():
            return [_with_parsed_numbers_or_raise(item) for item in parsed]
        case dict():
            return {key: _with_parsed_numbers_or_raise(value) for key, value in parsed.items()}
        case _:
            return parsed


def _refuse_non_json_constant(constant: str) -> object:
    """:raises ValueError: always. Python's parser calls this for NaN and Infinity, which are not JSON."""
    raise ValueError(f"{constant} is not JSON")


def _as_json_object(parsed: object, description: str) -> Mapping[str, object]:
    """Return ``parsed`` if it is a JSON object. ``description`` is the name of the value in the error.

    :raises UnreadableBodyError: when ``parsed`` is not an object.
    """
    if not isinstance(parsed, dict):
        raise UnreadableBodyError(f"Cannot read {description}: the value is not a JSON object")
    return parsed


def _as_nonempty_offsets_of_field(parsed: object, name: str) -> tuple[ConnectorOffset, ...]:
    """The offsets in ``parsed``, which must be a JSON array of objects with ``partition`` and ``offset``. ``name``: the
    field of the body that contains ``parsed``, for the message.

    :raises UnreadableBodyError: when ``parsed`` has another structure or is nested too deeply, or a number in it is too
        large.
    :raises BadRequestError: when ``parsed`` contains no offset.
    """
    if not parsed and (parsed is None or isinstance(parsed, list)):
        raise BadRequestError("Partitions / offsets need to be provided for an alter offsets request")
    try:
        parsed = _with_parsed_numbers_or_raise(parsed)
    except ValueError as error:
        raise UnreadableBodyError(f'Cannot read "{name}": {error}') from None
    except RecursionError:
        raise UnreadableBodyError("The JSON in the body is nested too deeply") from None
    if not isinstance(parsed, list):
        raise UnreadableBodyError(f'Cannot read "{name}": the value is not a JSON array')
    offsets: list[ConnectorOffset] = []
    for item in parsed:
        fields = _as_json_object(item, "an offset")
        if unknown := sorted(fields.keys() - {"partition", "offset"}):
            raise UnreadableBodyError(f'Unrecognized field "{unknown[0]}": an offset has partition and offset')
        partition, offset = (
            None if (value := fields.get(key)) is None else _as_json_object(value, f'"{key}" of an offset')
            for key in ("partition", "offset")
        )
        offsets.append(ConnectorOffset(partition=partition, offset=offset))
    return tuple(offsets)


def _as_config(parsed: object) -> Mapping[str, str]:
    """A JSON object as a config: every value as a string. The key ``name`` with the value null is as if it were
    missing, as in Connect.

    :raises UnreadableBodyError: when ``parsed`` is not an object, or a value is an object or an array.
    :raises BadRequestError: when a value of another key is null.
    """
    fields = dict(_as_json_object(parsed, "a config"))
    if fields.get("name") is None:
        fields.pop("name", None)
    if null_keys := [key for key, value in fields.items() if value is None]:
        message = "Null value can not be supplied as the configuration value."
        raise BadRequestError(invalid_config_message({key: [f"{key}: {message}"] for key in null_keys}))
    return {key: _as_text(value, key) for key, value in fields.items()}


def _as_text(value: object, key: str) -> str:
    """``value``, a JSON string, number or boolean, as a string. ``key``: the key of the value, for the message.

    :raises UnreadableBodyError: when ``value`` is an object or an array.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return str(value)
    raise UnreadableBodyError(f'Cannot read the value of "{key}" as a string: the value is an object or an array')
