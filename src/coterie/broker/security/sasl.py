"""The SASL exchange of one connection, as in Kafka: authenticates the peer as a principal.

    ApiVersions? → SaslHandshake(mechanism) → SaslAuthenticate(token), once or twice → any request

Before the last step no other request is allowed; a peer that sends one is disconnected, as in Kafka. After a
SaslHandshake of version 0 the tokens are frames without a header. Failures are reported with a delay; for a wrong user
name and a wrong password the message is the same, so that guessing user names or passwords is slow and reveals nothing.
"""

import asyncio
import secrets

from coterie.broker.security.principals import Principal
from coterie.broker.security.users import BrokerUsersFile
from coterie.nouns.errors import WireError
from coterie.wire.frames import RequestHeader
from coterie.wire.schemas import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from coterie.wire.scram import HASH_BY_MECHANISM, AuthenticationFailedError, ScramServer

PLAIN = "PLAIN"
"""The name of the mechanism PLAIN (RFC 4616)."""
MECHANISMS = (*HASH_BY_MECHANISM, PLAIN)
"""The mechanisms that the broker offers."""
TOKEN_SIZE_MAX = 524_288
"""``sasl.server.max.receive.size``: the maximum size of a frame before the peer is authenticated, in bytes."""
_PLAIN_MECHANISM = "SCRAM-SHA-512"
"""The mechanism whose stored credential a PLAIN password is checked against."""


class SaslExchange:
    """The SASL exchange of one connection: decides which request may follow, and keeps whether the peer is
    authenticated or has failed."""

    def __init__(self, users: BrokerUsersFile, *, failed_authentication_delay_ms: int) -> None:
        self._users = users
        self._failed_authentication_delay_s = failed_authentication_delay_ms / 1000
        self._has_api_versions = False
        self.mechanism: str | None = None
        """The mechanism that the peer selected; None before SaslHandshake."""
        self.requested_mechanism = ""
        """The name of the mechanism that the peer requested, even if the broker does not offer it; empty before
        SaslHandshake."""
        self.claimed_user = ""
        """The user name that the peer claims, before and after it is authenticated; empty if it sent none."""
        self._scram: ScramServer | None = None
        self.has_raw_tokens = False
        """Whether the next frames are tokens without a header (SaslHandshake v0)."""
        self.has_failed = False
        """Whether the authentication failed: the connection is to be closed once the response is written."""
        self.principal: Principal | None = None
        """The peer's principal; None until the peer is authenticated."""

    def accept_request_else_fail_or_raise(self, header: RequestHeader, *, is_served: bool) -> bool:
        """Whether this request is the next step of the exchange. False if a mechanism is selected and the request is
        not SaslAuthenticate: then the exchange has failed, and the caller must send an error response, as in Kafka.
        ``is_served``: whether the broker supports the request's API in its version.

        :raises WireError: when no mechanism is selected yet, and the request is neither SaslHandshake nor an
            ApiVersions request before which no request was served. The request gets no response.
        """
        if self.mechanism is not None:
            self.has_failed = header.api_key != SASL_AUTHENTICATE
            return not self.has_failed
        is_first = header.api_key == API_VERSIONS and not self._has_api_versions
        if not is_first and header.api_key != SASL_HANDSHAKE:
            raise WireError(
                f"the peer sent a request of API {header.api_key} before it was authenticated; check that the client's"
                " security.protocol is that of the broker"
            )
        # After a request with an unsupported version the client sends another (KIP-511).
        self._has_api_versions = self._has_api_versions or is_served
        return True

    def select_mechanism_or_fail(self, mechanism: str, *, has_raw_tokens: bool) -> bool:
        """Select the mechanism that the peer requests, and return True. If the broker does not offer it, the exchange
        has failed, and False is returned. ``has_raw_tokens``: whether the peer sends its tokens as frames without a
        request header, as after SaslHandshake v0."""
        self.requested_mechanism = mechanism
        if mechanism not in MECHANISMS:
            self.has_failed = True
            return False
        self.mechanism = mechanism
        self.has_raw_tokens = has_raw_tokens
        if mechanism != PLAIN:
            self._scram = ScramServer(
                mechanism,
                nonce=secrets.token_urlsafe(24),
                find_credential=lambda user: self._users.find_or_fake_credentials(user)[mechanism],
            )
        return True

    async def evaluate_token(self, token: bytes) -> bytes:
        """The broker's token in response to the peer's next ``token``. If this was the last token, :attr:`principal` is
        set. A failure is raised after the delay for failed authentications.

        :raises AuthenticationFailedError: the user name or the password is wrong, or the token is malformed. The
            error's message is meant for the peer."""
        try:
            # On a thread: checking a password takes milliseconds on purpose, and the users are read from a file.
            return await asyncio.to_thread(self._evaluate_token_blocking, token)
        except (AuthenticationFailedError, WireError) as error:
            self.has_failed = True
            await asyncio.sleep(self._failed_authentication_delay_s)
            if isinstance(error, AuthenticationFailedError):
                raise AuthenticationFailedError(
                    "Authentication failed: the user name or the password is wrong."
                ) from None
            raise AuthenticationFailedError(
                f"Authentication failed because the client's SASL message is invalid: {error}."
            ) from None

    def _evaluate_token_blocking(self, token: bytes) -> bytes:
        """Like :meth:`evaluate_token`, but blocking and without the delay.

        :raises AuthenticationFailedError: the user name or the password is wrong.
        :raises WireError: the token is malformed.
        """
        if self._scram is None:
            self.principal = self._authenticate_plain(token)
            return b""
        if not self._scram.user:
            try:
                return self._scram.first_message(token)
            finally:
                self.claimed_user = self._scram.user
        answer = self._scram.final_message(token)
        self.principal = Principal(self._scram.user)
        return answer

    def _authenticate_plain(self, token: bytes) -> Principal:
        """The principal that a token of PLAIN authenticates: ``authorization NUL user NUL password`` (RFC 4616).

        :raises AuthenticationFailedError: the user name or the password is wrong.
        :raises WireError: the token is malformed.
        """
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
        self.claimed_user = user
        if not self._users.find_or_fake_credentials(user)[_PLAIN_MECHANISM].matches_password(
            _PLAIN_MECHANISM, password
        ):
            raise AuthenticationFailedError("the password is wrong")
        return Principal(user)
