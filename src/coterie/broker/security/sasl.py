"""The SASL exchange of one connection, as in Kafka: authenticates the peer as a principal.

    ApiVersions? → SaslHandshake(mechanism) → SaslAuthenticate(token), once or twice → any request

Before the last step no other request is allowed; a peer that sends one is disconnected, as in Kafka. After a
SaslHandshake of version 0 the tokens are frames without a header. Failures are reported with a delay and always with
the same message, so that guessing user names or passwords is slow and reveals nothing.
"""

import asyncio
import secrets

from coterie.broker.security.principals import Principal
from coterie.broker.security.users import Users
from coterie.nouns.errors import WireError
from coterie.wire.frames import RequestHeader
from coterie.wire.schemas import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from coterie.wire.scram import HASHES, DeniedError, ScramServer

PLAIN = "PLAIN"
MECHANISMS = (*HASHES, PLAIN)
TOKEN_SIZE_MAX = 524_288
"""``sasl.server.max.receive.size``: the maximum size of a frame before authentication, in bytes."""
_PLAIN_MECHANISM = "SCRAM-SHA-512"
"""The credential that a PLAIN password is checked against."""


class Conversation:
    """The state of one connection's SASL exchange."""

    def __init__(self, users: Users, *, refusal_delay_ms: int) -> None:
        self._users = users
        self._refusal_delay_s = refusal_delay_ms / 1000
        self._knows_versions = False
        self.mechanism: str | None = None
        self.user = ""
        """The user name that the peer claims."""
        self._scram: ScramServer | None = None
        self.has_raw_tokens = False
        """Whether the next frames are tokens without a header (SaslHandshake v0)."""
        self.has_failed = False
        """The connection is to be closed once the response is written."""
        self.principal: Principal | None = None
        """The peer's principal once it is authenticated."""

    def is_due(self, header: RequestHeader, *, is_served: bool) -> bool:
        """Whether this request is the next step of the exchange. If a token is expected instead, the request still gets
        an error response, as in Kafka.

        :raises WireError: the request gets no response.
        """
        if self.mechanism is not None:
            self.has_failed = header.api_key != SASL_AUTHENTICATE
            return not self.has_failed
        is_first = header.api_key == API_VERSIONS and not self._knows_versions
        if not is_first and header.api_key != SASL_HANDSHAKE:
            raise WireError(f"a request of API {header.api_key} before authentication")
        # After a request with an unsupported version the client sends another (KIP-511).
        self._knows_versions = self._knows_versions or is_served
        return True

    def choose(self, mechanism: str, *, has_raw_tokens: bool) -> bool:
        """Select the mechanism; return False if the broker does not offer it."""
        if mechanism not in MECHANISMS:
            self.has_failed = True
            return False
        self.mechanism = mechanism
        self.has_raw_tokens = has_raw_tokens
        if mechanism != PLAIN:
            self._scram = ScramServer(
                mechanism, nonce=secrets.token_urlsafe(24), find=lambda user: self._users.find(user)[mechanism]
            )
        return True

    async def take(self, token: bytes) -> bytes:
        """The response to the peer's next token; :attr:`principal` is set if the token was the last.

        :raises DeniedError: authentication failed; the message is sent to the peer.
        :raises WorldError: the users cannot be read.
        """
        try:
            # On a thread: checking a password takes milliseconds on purpose, and the users are read from a file.
            return await asyncio.to_thread(self._take, token)
        except (DeniedError, WireError) as error:
            self.has_failed = True
            await asyncio.sleep(self._refusal_delay_s)
            if isinstance(error, DeniedError):
                raise DeniedError("Authentication failed: the user name or the password is wrong.") from None
            raise DeniedError(f"Authentication failed: {error}.") from None

    def _take(self, token: bytes) -> bytes:
        if self._scram is None:
            self.principal = self._checked_plain(token)
            return b""
        if not self._scram.user:
            try:
                return self._scram.first(token)
            finally:
                self.user = self._scram.user
        answer = self._scram.final(token)
        self.principal = Principal(self._scram.user)
        return answer

    def _checked_plain(self, token: bytes) -> Principal:
        """RFC 4616: ``authorization NUL user NUL password``."""
        try:
            authorization, user, password = token.decode().split("\0")
        except ValueError as error:
            raise WireError(
                "a PLAIN message must be: authorization id (may be empty), NUL, user, NUL, password"
            ) from error
        if not user or not password or authorization not in ("", user):
            raise WireError(
                "a PLAIN message needs user and password, and its authorization id must be empty or the user"
            )
        self.user = user
        if not self._users.find(user)[_PLAIN_MECHANISM].fits(_PLAIN_MECHANISM, password):
            raise DeniedError("the password is wrong")
        return Principal(user)
