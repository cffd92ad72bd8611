"""Which values of a config are secret, for readers that may not see them; and the removal of secrets from texts."""

import json
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from urllib.parse import quote

from coterie.nouns.errors import WorldError

MASK = "[hidden]"
"""What stands in the place of a secret value, as in Kafka."""
_SECRET_NAME_PATTERNS = (
    "password|passwd|pwd|passphrase|secret|token|credential",
    "(^|[._-])pass(code)?$",
    "(access|private|api|account|shared|encryption)[._-]?key",
    # PEM texts. For Kafka's clients the certificates have the type PASSWORD, too.
    "keystore[._-]?key|key[._-]?pem|pem[._-]?key",
    "keystore[._-]?certificate[._-]?chain|truststore[._-]?certificates",
    r"jaas\.config",
    # The signature in a URL of Azure.
    "(^|[._-])sig$",
)
"""Patterns, each of which a search finds in names of keys whose values are secret. The parameters of a URL are keys,
too."""
SECRET_NAME_PATTERN = f"({'|'.join(_SECRET_NAME_PATTERNS)})"
"""A pattern that a search finds in the names of all keys whose values are secret. Only the name decides, since options
of Spark's sources and sinks have no definitions. The pattern means the same in Python and in Java, without regard to
case."""
_COMPILED_SECRET_NAME_PATTERN = re.compile(SECRET_NAME_PATTERN, re.IGNORECASE)
_URL_WITH_PASSWORD_PATTERN = re.compile(r"://[^/\s@:]*:[^/\s@]+@")
_PARAMETER_PATTERN = re.compile(r"(?:^|[?&;])\s*([^=?&;\s]+)=")
"""A parameter of a URL, or of a connection string such as ``AccountName=a;AccountKey=b``; the group is its name."""
_REFERENCE_PATTERN = re.compile(r"\$\{([^}:]{0,255}):(?:([^}:]*):)?([^}]*)\}")
"""A reference, as in Kafka: the provider's name, the path, which may be absent, and the key. The provider's name has at
most 255 characters: without a limit, the search would take time with the square of a text's length. The reference
itself is not secret."""
HIDDEN_SIZE_MIN = 4
"""The shortest value of a reference, in characters, that is hidden in texts: a shorter value may be a part of many
words."""


def replace_references(text: str, replacement: Callable[[re.Match[str]], str]) -> str:
    """``text`` with ``replacement(match)`` in place of each reference. The groups of the match are the provider's name,
    the path, which may be None, and the key. Takes time in proportion to the length of ``text``."""
    # Without a closing brace after it, each opening one would be searched to the end of the text.
    end = text.rfind("}") + 1
    return _REFERENCE_PATTERN.sub(replacement, text[:end]) + text[end:]


def contains_reference(text: str) -> bool:
    """Whether there is a reference in ``text``: see :func:`replace_references`."""
    return _REFERENCE_PATTERN.search(text[: text.rfind("}") + 1]) is not None


def masked_config(config: Mapping[str, str]) -> dict[str, str]:
    """``config`` with :data:`MASK` for each secret value: the values of keys with the name of a secret, and URLs and
    connection strings that contain a secret. A value that is only a reference (``${env:NAME}``) stays."""
    return {key: MASK if _is_secret(key, value) else value for key, value in config.items()}


def _is_secret(key: str, value: str) -> bool:
    """Whether ``value``, the value of ``key``, is secret: the key has the name of a secret, or the value contains a URL
    with a password, or a parameter with the name of a secret. A value that is only a reference (``${env:NAME}``) is not
    secret."""
    reference = _REFERENCE_PATTERN.fullmatch(value.strip())
    # Without a provider or a key, no provider resolves the text: it may itself be the secret.
    if reference is not None and reference[1] and reference[3]:
        return False
    if _is_secret_name(key) or _URL_WITH_PASSWORD_PATTERN.search(value):
        return True
    return any(_is_secret_name(parameter[1]) for parameter in _PARAMETER_PATTERN.finditer(value))


def _is_secret_name(name: str) -> bool:
    """Whether the value of a key or parameter ``name`` is secret."""
    return _COMPILED_SECRET_NAME_PATTERN.search(name) is not None


SecretsFollower = Callable[[Sequence[str]], None]
"""A function that receives all texts that have to be hidden, in the order in which they must be searched for."""


class SecretNotHiddenError(WorldError):
    """A secret cannot be hidden in all places where it could be shown, so it must not be used."""


class _KnownSecrets:
    """Hides in texts the values of references that this process has resolved, and passes these values to followers.
    Safe on any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards all fields. Not held while followers are called, which may take long."""
        self._calling_lock = threading.Lock()
        """Held while followers are called: the last call has all texts."""
        self._texts: set[str] = set()
        self._longest_first: Sequence[str] = ()
        """The known secrets, the longest first: a secret may contain another one, and must then be found first."""
        self._followers: tuple[SecretsFollower, ...] = ()
        self._followed_texts: frozenset[str] = frozenset()
        """The texts that all followers have received."""

    def add_follower_and_call_it(self, follower: SecretsFollower) -> None:
        """Call ``follower`` with all known secrets: once now, and again each time new secrets are added, until
        :meth:`remove_follower`. If the call now raises an exception, this method raises the exception, and ``follower``
        is not called again."""
        with self._calling_lock:
            with self._lock:
                self._followers += (follower,)
                in_order = self._longest_first
            try:
                follower(in_order)
            except BaseException:
                self.remove_follower(follower)
                raise

    def remove_follower(self, follower: SecretsFollower) -> None:
        """Do not call ``follower`` any more; does nothing if :meth:`add_follower_and_call_it` was not called with it. A
        call of ``follower`` that has begun continues."""
        with self._lock:
            self._followers = tuple(other for other in self._followers if other != follower)

    def add(self, texts: Iterable[str]) -> None:
        """Let :meth:`hide` hide ``texts`` from now on, except those that are shorter than :data:`HIDDEN_SIZE_MIN`. If
        the followers have not yet received one of ``texts``, call each follower with all known secrets.

        If a follower raises an exception, this method raises the exception and does not call the remaining followers;
        :meth:`hide` hides ``texts`` all the same. Another call with the same ``texts`` calls all followers again."""
        long_texts = {text for text in texts if len(text) >= HIDDEN_SIZE_MIN}
        with self._lock:
            if not long_texts <= self._texts:
                self._texts |= long_texts
                self._longest_first = sorted(self._texts, key=lambda text: (-len(text), text))
            if not self._followers or long_texts <= self._followed_texts:
                return
        with self._calling_lock:
            with self._lock:
                in_order, followers = self._longest_first, self._followers
            for follower in followers:
                follower(in_order)
            with self._lock:
                self._followed_texts = frozenset(in_order)

    def hide(self, text: str) -> str:
        """``text`` with :data:`MASK` in place of each known secret in it."""
        # Not by one pattern of all secrets: to compile one with a secret of 1 MiB takes 13 s, and its search tries each
        # secret at each character of the text.
        for secret in self._longest_first:
            text = text.replace(secret, MASK)
        return text


# One object for the process: the log, which must not contain the secrets, belongs to the process too.
_known_secrets = _KnownSecrets()


def register_secret_to_hide(value: str) -> None:
    """Hide ``value`` in all texts from now on (:func:`hide_secrets`): also without the white space around it, each of
    its lines if there are several, and its forms in JSON, in Python's ``repr`` and in a URL. A text that is shorter
    than :data:`HIDDEN_SIZE_MIN` is not hidden.

    :raises SecretNotHiddenError: when a follower (:func:`add_secrets_follower_and_call_it`) cannot hide ``value``: do
        not use it.
    """
    plain_texts = {value, value.strip(), *(line.strip() for line in value.splitlines())}
    escaped_texts = {
        escape(text)
        for text in plain_texts
        for escape in (_escaped_for_json, _escaped_for_repr, quote, lambda text: quote(text, safe=""))
    }
    _known_secrets.add(plain_texts | escaped_texts)


def hide_secrets(text: str) -> str:
    """``text`` with :data:`MASK` for each value of a reference that this process has resolved, except values that are
    shorter than :data:`HIDDEN_SIZE_MIN`. Hide the secrets before you shorten a text: a part of a secret is not
    found."""
    return _known_secrets.hide(text)


def add_secrets_follower_and_call_it(follower: SecretsFollower) -> None:
    """Call ``follower`` now with the list of all texts to hide (the values of references that this process has
    resolved, and other forms of these values), and again with the complete list whenever texts were added, until
    :func:`remove_secrets_follower`. :func:`register_secret_to_hide` makes the later calls before it returns.

    A follower that cannot hide a value must raise SecretNotHiddenError. :func:`register_secret_to_hide` then raises it
    to its caller, which must not use the value.

    :raises SecretNotHiddenError: when the call now raises it. After any exception of this call, ``follower`` is not
        called again.
    """
    _known_secrets.add_follower_and_call_it(follower)


def remove_secrets_follower(follower: SecretsFollower) -> None:
    """Do not call ``follower`` any more, if it was given to :func:`add_secrets_follower_and_call_it`; a call that has
    begun continues. Never waits."""
    _known_secrets.remove_follower(follower)


def _escaped_for_json(text: str) -> str:
    """``text`` as it stands in a string of JSON."""
    return json.dumps(text)[1:-1]


def _escaped_for_repr(text: str) -> str:
    """``text`` as it stands in Python's ``repr``."""
    return repr(text)[1:-1]
