"""What a worker puts into the opaque field of v3 metadata: a small JSON object, for people and later versions.

    {"name": "worker-2"}

``name`` is ``worker.name``. Whoever reads it ignores keys that it does not know, and takes what it cannot understand
for nothing at all: no round may fail because of it.
"""

import json

SIZE_MAX_BYTES = 4_096
"""Longer ones are not looked at: the leader reads everybody's in every round."""


def encode_opaque(*, name: str) -> bytes:
    return json.dumps({"name": name}, ensure_ascii=False).encode()


def name_in(opaque: bytes | None) -> str | None:
    """The name that a worker gives itself; None when it gives none that can be shown."""
    if opaque is None or len(opaque) > SIZE_MAX_BYTES:
        return None
    try:
        said = json.loads(opaque)
    except (ValueError, RecursionError):
        return None
    name = said.get("name") if isinstance(said, dict) else None
    return name if isinstance(name, str) and name and name.isprintable() else None
