"""Request bodies: bytes to what the herder understands, in the way in which Connect's JSON library reads them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request

from coterie.herder.writes import invalid_config_message
from coterie.nouns.states import TargetState
from coterie.rest.problems import BadRequestError, BodyTooLargeError, UnreadableBodyError

SIZE_MAX_BYTES = 8 * 1024 * 1024
"""A config line must fit a topic's record anyway."""

_INITIAL_STATES = {
    "RUNNING": TargetState.STARTED,
    "PAUSED": TargetState.PAUSED,
    "STOPPED": TargetState.STOPPED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewConnector:
    """The body of ``POST /connectors``."""

    name: str
    config: Mapping[str, str]
    initial_state: TargetState | None


async def read(request: Request) -> bytes:
    """The whole body. :raises BodyTooLargeError: as soon as it is longer than the limit."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > SIZE_MAX_BYTES:
            raise BodyTooLargeError(f"The body is longer than {SIZE_MAX_BYTES} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def new_connector(raw: bytes) -> NewConnector:
    fields = _object(_json(raw), "a connector")
    if unknown := sorted(fields.keys() - {"name", "config", "initial_state"}):
        raise UnreadableBodyError(f'Unrecognized field "{unknown[0]}": a connector has name, config and initial_state')
    name, initial_state = fields.get("name"), fields.get("initial_state")
    if initial_state is not None and str(initial_state).upper() not in _INITIAL_STATES:
        raise UnreadableBodyError(f"{initial_state!r} is no initial_state: it is one of {', '.join(_INITIAL_STATES)}")
    return NewConnector(
        name="" if name is None else _text(name, "name").strip(),
        config=_config(fields.get("config")),
        initial_state=None if initial_state is None else _INITIAL_STATES[str(initial_state).upper()],
    )


def config(raw: bytes) -> Mapping[str, str]:
    return _config(_json(raw))


def task_configs(raw: bytes) -> tuple[Mapping[str, str], ...]:
    parsed = _json(raw)
    if not isinstance(parsed, list):
        raise UnreadableBodyError("Cannot read a list of task configs from something else")
    return tuple(_config(item) for item in parsed)


def named(config: Mapping[str, str], name: str) -> Mapping[str, str]:
    """``config`` with its name in it, as Connect fills it in; otherwise exactly as it was put.

    :raises BadRequestError: when it names another connector.
    """
    given = config.get("name")
    if given is None:
        return {**config, "name": name}
    if given != name:
        raise BadRequestError(
            f"Connector name configuration ({given}) doesn't match connector name in the URL ({name})"
        )
    return config


# -- small hands ------------------------------------------------------------------------------------------------------


def _json(raw: bytes) -> object:
    try:
        # Numbers stay the text that they were: Connect makes strings of them without looking at their value.
        parsed = json.loads(raw, parse_int=_Number, parse_float=_Number, parse_constant=_no_constant)
        json.dumps(parsed, ensure_ascii=False).encode()  # A lone surrogate is valid JSON and no text.
    except UnicodeEncodeError:
        raise UnreadableBodyError("The body holds half a surrogate pair, which is no text") from None
    except (ValueError, RecursionError) as error:
        raise UnreadableBodyError(f"The body is no JSON: {error}") from None
    return parsed


class _Number(str):
    """A number as it was written."""

    __slots__ = ()


def _no_constant(constant: str) -> object:
    raise ValueError(f"{constant} is no JSON")


def _object(parsed: object, what: str) -> Mapping[str, object]:
    if not isinstance(parsed, dict):
        raise UnreadableBodyError(f"Cannot read {what} from something that is no JSON object")
    return parsed


def _config(parsed: object) -> Mapping[str, str]:
    fields = _object(parsed, "a config")
    if nulls := [key for key, value in fields.items() if value is None]:
        sentence = "Null value can not be supplied as the configuration value."
        raise BadRequestError(invalid_config_message({key: [f"{key}: {sentence}"] for key in nulls}))
    return {key: _text(value, key) for key, value in fields.items()}


def _text(value: object, key: str) -> str:
    """A scalar as a string."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return str(value)
    raise UnreadableBodyError(f'Cannot read a string from the value of "{key}": it is an object or a list')
