"""SASL as Kafka does it: one peer's way from a connection to a principal.

    ApiVersions? → SaslHandshake(mechanism) → SaslAuthenticate(token), once or twice → any request

Until the last step nothing else is taken; whoever sends it loses the connection, as in Kafka. After a SaslHandshake of
version 0 the tokens are frames without a header. Refusals are told late and all in the same words, so that guessing is
slow and teaches nothing.
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
"""``sasl.server.max.receive.size``: of any frame before a peer is known."""
_PLAIN_MECHANISM = "SCRAM-SHA-512"
"""Which of a user's credentials a password that comes in the clear is checked with."""


class Conversation:
    """What one peer has said so far."""

    def __init__(self, users: Users, *, refusal_delay_ms: int) -> None:
        self._users = users
        self._refusal_delay_s = refusal_delay_ms / 1000
        self._knows_versions = False
        self.mechanism: str | None = None
        self.user = ""
        """Who the peer says it is."""
        self._scram: ScramServer | None = None
        self.has_raw_tokens = False
        """Whether the next frames are bare tokens (SaslHandshake v0)."""
        self.has_failed = False
        """The connection is to be closed once the answer is out."""
        self.principal: Principal | None = None
        """Who the peer is, once it has shown it."""

    def is_due(self, header: RequestHeader, *, is_served: bool) -> bool:
        """Whether this request is the next step. Where it is not, but a token is, Kafka still answers it.

        :raises WireError: when nothing is answered.
        """
        if self.mechanism is not None:
            self.has_failed = header.api_key != SASL_AUTHENTICATE
            return not self.has_failed
        is_first = header.api_key == API_VERSIONS and not self._knows_versions
        if not is_first and header.api_key != SASL_HANDSHAKE:
            raise WireError(f"a request of API {header.api_key} before authentication")
        # Whoever asked for too new a version (KIP-511) asks again.
        self._knows_versions = self._knows_versions or is_served
        return True

    def choose(self, mechanism: str, *, has_raw_tokens: bool) -> bool:
        """Go on with ``mechanism``; False when it is not offered."""
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
        """The answer to the peer's next token; see :attr:`principal` for whether it was the last.

        :raises DeniedError: when the peer is not who it says it is; the message is for the peer.
        :raises WorldError: when the users cannot be read.
        """
        try:
            # On a thread: to check a password takes milliseconds on purpose, and the users are in a file.
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
            raise WireError("a PLAIN message is not: nothing, NUL, user, NUL, password") from error
        if not user or not password or authorization not in ("", user):
            raise WireError("a PLAIN message needs user and password, and speaks for nobody else")
        self.user = user
        if not self._users.find(user)[_PLAIN_MECHANISM].fits(_PLAIN_MECHANISM, password):
            raise DeniedError("the password is wrong")
        return Principal(user)
