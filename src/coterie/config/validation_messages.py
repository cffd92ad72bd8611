"""Converts pydantic's validation errors of settings to error messages in Kafka Connect's wording."""

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails


def messages_by_key(error: ValidationError, settings: type[BaseModel]) -> dict[str, list[str]]:
    """One sentence for each error, by config key; the sentence for a missing key contains the description of the key's
    field. ``settings`` is the class of the settings. Values of fields that are not part of its ``repr`` are hidden."""
    meanings = {str(field.alias): field.description for field in settings.model_fields.values()}
    secrets = {str(field.alias) for field in settings.model_fields.values() if not field.repr}
    found: dict[str, list[str]] = {}
    for detail in error.errors(include_url=False):
        key = str(detail["loc"][0])
        if detail["type"] == "missing":
            sentence = f'Missing required configuration "{key}" which has no default value.'
            if meaning := meanings[key]:
                sentence += f" It is: {' '.join(meaning.split())}"
        else:
            shown = "[hidden]" if key in secrets else _shown(detail["input"])
            sentence = f"Invalid value {shown} for configuration {key}: {_reason(detail)}"
        found.setdefault(key, []).append(sentence)
    return found


def _shown(value: object) -> str:
    """``value`` as it stands in the settings file; quotes for an empty value."""
    return (",".join(value) if isinstance(value, list | tuple) else str(value).strip()) or "''"


def _reason(detail: ErrorDetails) -> str:
    """Why the value is invalid."""
    limits = detail.get("ctx", {})
    match detail["type"]:
        case "int_parsing" | "int_type" | "int_from_float":
            return "not a whole number"
        case "bool_parsing" | "bool_type":
            return "must be true or false"
        case "string_too_short" | "too_short":
            return "must not be empty"
        case "greater_than_equal":
            return f"must be at least {limits['ge']}"
        case "less_than_equal":
            return f"must be at most {limits['le']}"
        case _:
            return detail["msg"].removeprefix("Value error, ")
