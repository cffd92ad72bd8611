"""Java's `.properties` format: the format of worker files."""

import re

import javaproperties

from coterie.nouns.errors import ConfigError
from coterie.nouns.text import without_lone_surrogates

_LINE_END_PATTERN = re.compile(r"\r\n|\r|\n")


def parse_properties(text: str) -> dict[str, str]:
    """Return the keys and values of ``text``, a properties file; of a repeated key the last value counts, as in Java.

    :raises ConfigError: for a ``\\u`` that four hexadecimal digits do not follow; the error has ``line <number>`` in
        place of a key.
    """
    values: dict[str, str] = {}
    line_number = 1
    try:
        for element in javaproperties.parse(text):
            if isinstance(element, javaproperties.KeyValue):
                values[without_lone_surrogates(element.key)] = without_lone_surrogates(element.value)
            line_number += len(_LINE_END_PATTERN.findall(element.source))
    except javaproperties.InvalidUEscapeError as error:
        raise ConfigError({f"line {line_number}": [f"{error}; four hexadecimal digits must follow \\u"]}) from None
    return values
