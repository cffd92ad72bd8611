"""Which values of a config are secret, for readers that may not see them."""

import re
from collections.abc import Mapping

MASK = "[hidden]"
"""What stands in the place of a secret value, as in Kafka."""
_SECRET_NAME = re.compile(
    r"(password|passwd|passphrase|secret|token|credential|jaas\.config|(access|private|api|account|shared)[._-]?key)",
    re.IGNORECASE,
)
"""Names of keys whose values are secret, in any key: options of Spark's sources and sinks have no definitions."""
_URL_WITH_PASSWORD = re.compile(r"://[^/\s@]*:[^/\s@]+@|[?&;](password|passwd|pwd|secret|token)=", re.IGNORECASE)
_REFERENCE = re.compile(r"\$\{[^}:]+:[^}]+\}")
"""A reference to a secret, ``${provider:path:key}``: the reference itself is not secret."""


def masked_config(config: Mapping[str, str]) -> dict[str, str]:
    """``config`` with :data:`MASK` for each secret value: the values of keys with the name of a secret, and URLs that
    contain a password. A value that is only a reference (``${env:NAME}``) stays."""
    return {key: MASK if _is_secret(key, value) else value for key, value in config.items()}


def _is_secret(key: str, value: str) -> bool:
    """Whether the value of ``key`` is secret."""
    if _REFERENCE.fullmatch(value.strip()):
        return False
    return bool(_SECRET_NAME.search(key)) or bool(_URL_WITH_PASSWORD.search(value))
