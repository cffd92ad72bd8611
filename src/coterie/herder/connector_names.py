"""The names that a connector may have."""

import unicodedata

from coterie.nouns.jobs import ConnectorName

_NAME_SIZE_MAX = 255
"""The greatest size of a connector's name in UTF-8, in bytes. The group protocol's own limit is 32,767 bytes."""


def name_errors(name: ConnectorName) -> dict[str, list[str]]:
    """The messages about an invalid connector name, by config key; empty when the name is valid."""
    beginning = f"Invalid value {name if len(name) <= _NAME_SIZE_MAX else name[:40] + '…'} for configuration name: "
    if not name.strip():
        return {"name": [f"{beginning}String may not be empty"]}
    if controls := [str(ord(character)) for character in name if unicodedata.category(character) == "Cc"]:
        message = f"String may not contain control sequences but had the following ASCII chars: {', '.join(controls)}"
        return {"name": [beginning + message]}
    if "/" in name:
        # A connector with a slash in its name could be created, as in Connect, but no path could reach it.
        return {"name": [f"{beginning}String may not contain a slash"]}
    if (size := len(name.encode())) > _NAME_SIZE_MAX:
        message = f"String may not be longer than {_NAME_SIZE_MAX} bytes in UTF-8, but has {size}"
        return {"name": [beginning + message]}
    return {}
