"""SCRAM's messages and proofs (RFC 5802, with SHA-256 after RFC 7677), for clients and servers.

    client                                           server
    first   n,,n=<user>,r=<nonce>            ──►
                                             ◄──     r=<nonce><more>,s=<salt>,i=<iterations>
    final   c=biws,r=<nonce><more>,p=<proof> ──►
                                             ◄──     v=<signature>

The server stores no password. With its stored keys it can check a client's proof and prove that it has them, but it
cannot log in elsewhere as that user. As in Kafka and librdkafka, names and passwords are used as UTF-8 without
SASLprep. No channel binding.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coterie.nouns.errors import CoterieError, WireError

HASH_BY_MECHANISM: Mapping[str, str] = {"SCRAM-SHA-512": "sha512", "SCRAM-SHA-256": "sha256"}
"""By mechanism: the name of its hash in :mod:`hashlib`; the stronger mechanism first."""
ITERATIONS_MIN = 4_096
"""The fewest iterations of a password's hash that a client accepts: the minimum of RFC 7677 and of Kafka."""
ITERATIONS_MAX = 16_384
"""The most iterations of a password's hash that a client accepts: the maximum of Kafka. With more, a malicious server
could exhaust the client's CPU."""


class AuthenticationFailedError(CoterieError):
    """A peer cannot prove its identity: its password, proof or signature is wrong, or the server rejects the login.
    Clients and servers raise this error."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Credential:
    """The keys that a server stores for one password and one mechanism, instead of the password."""

    salt: bytes
    iterations: int
    stored_key: bytes
    """RFC 5802's StoredKey, which checks a client's proof."""
    server_key: bytes
    """RFC 5802's ServerKey, which makes the server's signature."""

    @classmethod
    def from_password(cls, mechanism: str, password: str, *, salt: bytes, iterations: int) -> "Credential":
        """The credential that a server stores for ``password``: its keys for ``mechanism`` with this salt and this
        number of iterations."""
        salted_password = _salted_password(HASH_BY_MECHANISM[mechanism], password, salt, iterations)
        return cls(
            salt=salt,
            iterations=iterations,
            stored_key=_digest(
                HASH_BY_MECHANISM[mechanism], _mac(HASH_BY_MECHANISM[mechanism], salted_password, b"Client Key")
            ),
            server_key=_mac(HASH_BY_MECHANISM[mechanism], salted_password, b"Server Key"),
        )

    def matches_password(self, mechanism: str, password: str) -> bool:
        """Whether ``password`` is the password of this credential, which must be for ``mechanism``. Takes the same time
        in both cases."""
        credential_of_password = Credential.from_password(
            mechanism, password, salt=self.salt, iterations=self.iterations
        )
        return hmac.compare_digest(credential_of_password.stored_key, self.stored_key)


class ScramServer:
    """The server's side of one exchange: call :meth:`first_message`, then :meth:`final_message`."""

    def __init__(self, mechanism: str, *, nonce: str, find_credential: Callable[[str], Credential]) -> None:
        """``nonce`` must not have been used before. ``find_credential`` returns the credential of the user name that it
        gets; for an unknown user it must return a credential that no password matches, because a different response
        would reveal which users exist."""
        self._hash_name = HASH_BY_MECHANISM[mechanism]
        self._nonce = nonce
        self._find_credential = find_credential
        self._gs2_header = ""
        self._auth_message_start = ""
        self._credential: Credential
        self.user = ""
        """The client's user name, set by :meth:`first_message`; empty before. The user is authenticated only when
        :meth:`final_message` has returned."""

    def first_message(self, message: bytes) -> bytes:
        """The server's first message, in response to the client's first message.

        :raises WireError: when ``message`` is malformed, or requests a feature that the server does not support.
        """
        channel_binding, authorization_field, client_first_bare = (
            _decode_utf8_or_wire_error(message).split(",", 2) if message.count(b",") >= 2 else ("", "", "")
        )
        if channel_binding.startswith("p="):
            raise WireError("a SCRAM message requests channel binding, which is not supported")
        if channel_binding not in ("n", "y"):
            raise WireError('the client\'s first SCRAM message does not begin with "n," or "y,"')
        fields = _parse_fields(client_first_bare, "n", "r")
        self.user = _unescape_user_or_wire_error(fields["n"])
        if authorization_field not in ("", f"a={fields['n']}"):
            raise WireError("a SCRAM message has an authorization id other than its user")
        if not self.user or not fields["r"]:
            raise WireError("a SCRAM message has no user or no nonce")
        self._gs2_header = f"{channel_binding},{authorization_field},"
        self._nonce = fields["r"] + self._nonce
        self._credential = self._find_credential(self.user)
        server_first = f"r={self._nonce},s={_encode_base64(self._credential.salt)},i={self._credential.iterations}"
        self._auth_message_start = f"{client_first_bare},{server_first}"
        return server_first.encode()

    def final_message(self, message: bytes) -> bytes:
        """The server's final message, in response to the client's final message. When this method returns, the user is
        authenticated.

        :raises AuthenticationFailedError: when the client's proof is wrong.
        :raises WireError: when the message is malformed or belongs to another exchange.
        """
        text = _decode_utf8_or_wire_error(message)
        fields = _parse_fields(text, "c", "r", "p")
        if _decode_base64(fields["c"]).decode(errors="replace") != self._gs2_header or fields["r"] != self._nonce:
            raise WireError(
                "the client's final SCRAM message has another nonce or another beginning (c=) than its first message: "
                "it belongs to another login"
            )
        proof = _decode_base64(fields["p"])
        auth_message = f"{self._auth_message_start},{text[: text.rindex(',p=')]}".encode()
        signature = _mac(self._hash_name, self._credential.stored_key, auth_message)
        if len(proof) != len(signature):
            raise WireError("a SCRAM proof has the wrong length")
        client_key = _xor(proof, signature)
        if not hmac.compare_digest(_digest(self._hash_name, client_key), self._credential.stored_key):
            raise AuthenticationFailedError("the client's proof is wrong")
        return b"v=" + _encode_base64(_mac(self._hash_name, self._credential.server_key, auth_message)).encode()


class ScramClient:
    """The client's side of one exchange: call :meth:`first_message`, :meth:`final_message` and
    :meth:`verify_server_final`."""

    def __init__(self, mechanism: str, *, user: str, password: str, nonce: str) -> None:
        """``nonce`` must not have been used before."""
        self._hash_name = HASH_BY_MECHANISM[mechanism]
        self._password = password
        self._nonce = nonce
        self._client_first_bare = f"n={_escape_user(user)},r={nonce}"
        self._expected_server_signature = b""

    def first_message(self) -> bytes:
        """The client's first message."""
        return f"n,,{self._client_first_bare}".encode()

    def final_message(self, message: bytes) -> bytes:
        """The client's final message, in response to the server's first message.

        :raises WireError: when the server's message is malformed or belongs to another exchange, or its number of
            iterations is not allowed.
        """
        text = _decode_utf8_or_wire_error(message)
        fields = _parse_fields(text, "r", "s", "i")
        if not fields["r"].startswith(self._nonce) or fields["r"] == self._nonce:
            raise WireError(
                "the nonce in the server's first SCRAM message does not continue that of the client: the message "
                "belongs to another login"
            )
        iterations = _parse_iterations(fields["i"])
        salted_password = _salted_password(self._hash_name, self._password, _decode_base64(fields["s"]), iterations)
        client_key = _mac(self._hash_name, salted_password, b"Client Key")
        without_proof = f"c={_encode_base64(b'n,,')},r={fields['r']}"
        auth_message = f"{self._client_first_bare},{text},{without_proof}".encode()
        self._expected_server_signature = _mac(
            self._hash_name, _mac(self._hash_name, salted_password, b"Server Key"), auth_message
        )
        proof = _xor(client_key, _mac(self._hash_name, _digest(self._hash_name, client_key), auth_message))
        return f"{without_proof},p={_encode_base64(proof)}".encode()

    def verify_server_final(self, message: bytes) -> None:
        """Check the signature in the server's final message: it proves that the server has the user's keys.

        :raises AuthenticationFailedError: when the server rejects the login, or its signature is wrong.
        :raises WireError: when the message is malformed.
        """
        text = _decode_utf8_or_wire_error(message)
        if text.startswith("e="):
            raise AuthenticationFailedError(f"the server rejects the login with the SCRAM error {text[2:]}")
        if not hmac.compare_digest(_decode_base64(_parse_fields(text, "v")["v"]), self._expected_server_signature):
            raise AuthenticationFailedError(
                "the server's signature is wrong: it cannot prove that it has the user's keys"
            )


# -- helpers ----------------------------------------------------------------------------------------------------------


def _salted_password(hash_name: str, password: str, salt: bytes, iterations: int) -> bytes:
    """RFC 5802's SaltedPassword."""
    return hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)


def _digest(hash_name: str, data: bytes) -> bytes:
    return hashlib.new(hash_name, data).digest()


def _mac(hash_name: str, key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, hash_name)


def _xor(first: bytes, second: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(first, second, strict=True))


def _decode_utf8_or_wire_error(message: bytes) -> str:
    """``message`` as text.

    :raises WireError: when it is not UTF-8.
    """
    try:
        return message.decode()
    except UnicodeDecodeError as error:
        raise WireError("a SCRAM message is not UTF-8") from error


def _parse_fields(text: str, *names: str) -> dict[str, str]:
    """The values, by name, of a message that begins with the fields ``names`` in this order. Extensions after them are
    ignored. If the last of ``names`` is ``p``, the proof, its value is that of the last field of the message: the proof
    follows the extensions.

    :raises WireError: when a field is missing.
    """
    parts = text.split(",")
    fields = dict(zip(names, parts, strict=False))
    if len(fields) != len(names):
        raise WireError("a SCRAM message has too few fields")
    if names[-1] == "p":
        fields["p"] = parts[-1]
    for name, part in fields.items():
        if not part.startswith(f"{name}="):
            raise WireError(f"a SCRAM message has no {name}= at the expected position")
    return {name: part[2:] for name, part in fields.items()}


def _parse_iterations(digits: str) -> int:
    """The number of iterations that the server's message states.

    :raises WireError: when it is not a number, or not between `ITERATIONS_MIN` and `ITERATIONS_MAX`.
    """
    # Check the length first: converting a very long text to a number would take too much time.
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= len(str(ITERATIONS_MAX))
    if not is_number or not ITERATIONS_MIN <= int(digits) <= ITERATIONS_MAX:
        raise WireError(
            f"the server requests SCRAM with {digits[:20]} iterations; {ITERATIONS_MIN} to {ITERATIONS_MAX} are allowed"
        )
    return int(digits)


def _escape_user(user: str) -> str:
    """``user`` as SCRAM's messages contain it: with =3D for = and =2C for a comma."""
    return user.replace("=", "=3D").replace(",", "=2C")


def _unescape_user_or_wire_error(user: str) -> str:
    """The user name from its form in a message.

    :raises WireError: when it contains an = that is not part of an escape.
    """
    if "=" in re.sub("=2C|=3D", "", user):
        raise WireError("the user name in a SCRAM message contains an = that is not part of =2C or =3D")
    return user.replace("=2C", ",").replace("=3D", "=")


def _encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode_base64(text: str) -> bytes:
    """The bytes that ``text`` encodes.

    :raises WireError: when it is not base64.
    """
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise WireError("a SCRAM message contains invalid base64") from error
