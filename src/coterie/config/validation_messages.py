"""Converts pydantic's validation errors of settings to error messages in Kafka Connect's wording."""

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from coterie.nouns.errors import invalid_value_message


def messages_by_key(error: ValidationError, settings_class: type[BaseModel]) -> dict[str, list[str]]:
    """One sentence for each error, by config key; the sentence for a missing key contains the description of the key's
    field. ``settings_class`` is the class of the settings; a value is hidden if its field in that class has
    ``repr=False``."""
    descriptions = {str(field.alias): field.description for field in settings_class.model_fields.values()}
    secret_keys = {str(field.alias) for field in settings_class.model_fields.values() if not field.repr}
    messages: dict[str, list[str]] = {}
    for detail in error.errors(include_url=False):
        key = str(detail["loc"][0])
        if detail["type"] == "missing":
            message = f'Missing required configuration "{key}" which has no default value.'
            if description := descriptions[key]:
                message += f" It is: {' '.join(description.split())}"
        else:
            shown_value = "[hidden]" if key in secret_keys else _value_text(detail["input"])
            message = invalid_value_message(key, shown_value, _error_reason(detail))
        messages.setdefault(key, []).append(message)
    return messages


def _value_text(value: object) -> str:
    """``value`` as text for an error message: the items of a list with commas between them, as in the worker's file;
    two quotes for an empty value."""
    return (",".join(value) if isinstance(value, list | tuple) else str(value).strip()) or "''"


def _error_reason(detail: ErrorDetails) -> str:
    """The reason why a value is invalid, as the end of an error message. ``detail``: one of pydantic's errors."""
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
        case "enum":
            return f"must be one of {limits['expected'].replace(chr(39), '').replace(' or ', ', ')}"
        case _:
            return detail["msg"].removeprefix("Value error, ")
