"""The opaque field of v3 metadata: a small JSON object, for operators and later versions.

    {"name": "worker-2"}

``name`` is ``worker.name``. A reader ignores unknown keys, and ignores the whole field when it cannot be decoded,
because no rebalance may fail due to this field.
"""

import json

OPAQUE_SIZE_MAX_BYTES = 4_096
"""A longer field is ignored, because the leader decodes the field of every member in every rebalance."""


def encode_worker_name(*, name: str) -> bytes:
    """The bytes of the field ``opaque`` of a worker's metadata (v3): JSON with the worker's name."""
    return json.dumps({"name": name}, ensure_ascii=False).encode()


def decode_worker_name(opaque: bytes | None) -> str | None:
    """The worker's name in ``opaque``, a field of a worker's metadata (v3). None when the field is missing, too long or
    malformed, or has no name, or the name is empty or not printable."""
    if opaque is None or len(opaque) > OPAQUE_SIZE_MAX_BYTES:
        return None
    try:
        decoded = json.loads(opaque)
    except (ValueError, RecursionError):
        return None
    name = decoded.get("name") if isinstance(decoded, dict) else None
    return name if isinstance(name, str) and name and name.isprintable() else None
