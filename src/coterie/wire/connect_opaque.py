"""The opaque field of v3 metadata: a small JSON object, for operators and later versions.

    {"name": "worker-2"}

``name`` is ``worker.name``. A reader ignores unknown keys, and ignores the whole field when it cannot be decoded,
because no rebalance may fail due to this field.
"""

import json

SIZE_MAX_BYTES = 4_096
"""Longer fields are ignored, because the leader decodes the field of every member in every rebalance."""


def encode_opaque(*, name: str) -> bytes:
    return json.dumps({"name": name}, ensure_ascii=False).encode()


def name_in(opaque: bytes | None) -> str | None:
    """The worker's name in the opaque field; None when there is none or it is not printable."""
    if opaque is None or len(opaque) > SIZE_MAX_BYTES:
        return None
    try:
        said = json.loads(opaque)
    except (ValueError, RecursionError):
        return None
    name = said.get("name") if isinstance(said, dict) else None
    return name if isinstance(name, str) and name and name.isprintable() else None
