"""Who may do what: every request of a client passes :meth:`AccessGate.check_access_and_serve`, which identifies the
caller, compares the caller's role with that of the endpoint, and writes the audit line of a mutation."""

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from coterie.config.reloaded_files import ReloadedFiles
from coterie.config.rest import ResponseHeader
from coterie.herder.requests.refusals import RequestRefused
from coterie.herder.requests.signatures import SignatureCheckResult, VerifySignature
from coterie.nouns.log_rate_limit import LogRateLimit
from coterie.nouns.text import quoted_name
from coterie.rest import audit, csrf, media_types
from coterie.rest.callers import (
    SignatureNotValid,
    basic_credentials,
    client_address_or_unknown,
    client_certificate_name,
    has_signature_of_forwarding_worker,
    parse_recent_unverified_forwarded_caller,
)
from coterie.rest.cross_origin import CrossOriginRules
from coterie.rest.endpoints import Endpoint, Operation, Role
from coterie.rest.problems import NotLoggedInError, RoleMissingError, SignatureNotValidError, error_response
from coterie.rest.request_context import Caller, context_of
from coterie.rest.unverified_bodies import UnverifiedBodies
from coterie.rest.users import PasswordHash, RestUser, Users
from coterie.worker.worker import Worker

logger = logging.getLogger(__name__)

NOT_LOGGED_IN_MESSAGE = "User cannot access the resource."
"""Connect's message to a client whose request has no valid log-in."""
_REMEMBERED_PASSWORDS_MAX = 1_000
"""The largest number of right passwords that are remembered. Before one more is added, all are forgotten: each is
hashed again when it is used next."""
_CONCURRENT_HASHES_MAX = 2
"""The number of passwords that are hashed at the same time. The limit keeps threads free for other requests while a
client tries many passwords."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """Who may use the REST API of one worker (by default every client may do everything), and the headers that are
    added to its responses."""

    users: ReloadedFiles[Users] | None = None
    """The users that may log in; None: users need not log in."""
    health_needs_no_login: bool = False
    """Whether ``GET /health`` needs no log-in."""
    cross_origin: CrossOriginRules = field(default_factory=CrossOriginRules)
    added_headers: Sequence[ResponseHeader] = ()
    """Headers that are added to every response."""


class AccessGate:
    """Checks the access of clients to the endpoints of one worker, and serves the requests that are allowed."""

    def __init__(self, worker: Worker, rules: AccessRules, unverified_bodies: UnverifiedBodies) -> None:
        self._worker = worker
        self._rules = rules
        self._unverified_bodies = unverified_bodies
        self._passwords = _CachingPasswordChecker()
        self._signature_log_limit = LogRateLimit()
        self._refused_logins_log_limit = LogRateLimit()

    async def check_login_and_serve_options(self, request: Request, allowed_methods: Sequence[str]) -> Response:
        """The response to OPTIONS: the methods of a path, ``allowed_methods``. Any user may ask for them.

        :raises NotLoggedInError: when users must log in, and the request has no valid log-in.
        """
        await self._identify_and_keep_caller(request)
        return PlainTextResponse(", ".join(allowed_methods), headers={"Allow": ",".join(allowed_methods)})

    async def check_access_and_serve(
        self, request: Request, endpoint: Endpoint, handler: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Check the access of the request, and return the response of ``handler``, the handler of ``endpoint``. Writes
        the audit line of a request that can change something, also if it is refused. Keeps the caller in the request's
        context. If the audit line contains fields of the request's body, reads the body before ``handler`` does.

        :raises HttpRefusal: when the request's media type is not JSON, or the caller may not use the endpoint; and the
            exceptions of ``handler``.
        :raises HTTPException: with status 406, when the client does not accept the media type of the endpoint's
            response.
        """
        if not endpoint.changes_state:
            await self._check_request_and_keep_caller(request, endpoint)
            return await handler(request)
        entry = audit.AuditLine.from_request(request, endpoint)
        try:
            await self._check_request_and_keep_caller(request, endpoint)
            await entry.read_body(request)
            response = await handler(request)
        except Exception as error:
            entry.write_unless_other_worker_wrote(request, error_response(request, error))
            raise
        entry.write_unless_other_worker_wrote(request, response)
        return audit.set_audited_header_only_if_forwarded(request, response)

    async def _check_request_and_keep_caller(self, request: Request, endpoint: Endpoint) -> None:
        """Check the media types of the request, then its access (:meth:`_check_access_and_keep_caller`): in this order,
        as in Connect.

        :raises HttpRefusal: when the Content-Type of the request is not JSON, or the caller may not use the endpoint.
        :raises HTTPException: with status 406, when the client does not accept the media type of the endpoint's
            response.
        """
        media_types.check_content_type(
            request,
            reads_body=endpoint.request_body_type is not None,
            accepts_any_type=endpoint.accepts_any_content_type,
        )
        media_types.check_accept_header(request, endpoint.response_media_type)
        await self._check_access_and_keep_caller(request, endpoint)

    async def _check_access_and_keep_caller(self, request: Request, endpoint: Endpoint) -> None:
        """Check that the request may be served, and keep its caller in the request's context. If the rules require no
        log-in for ``GET /health``, the caller of this endpoint is not identified. For an endpoint of other workers,
        only the origin is checked here: the handler verifies the signature of the request.

        :raises ForeignOriginError: when the request would change something and comes from a page of another address,
            which the CORS rules do not allow.
        :raises NotLoggedInError: when users must log in, and the request has no valid log-in.
        :raises RoleMissingError: when the user may not use the endpoint.
        """
        if endpoint.method != "GET":
            csrf.check_mutation_origin(request, self._rules.cross_origin)
        if endpoint.role is Role.WORKER:
            # Its handler verifies the signature of the request, as in Connect.
            context_of(request).caller = Caller(user=None, role=Role.WORKER, address=client_address_or_unknown(request))
            return
        if endpoint.operation is Operation.DESCRIBE_HEALTH and self._rules.health_needs_no_login:
            return
        caller = await self._identify_and_keep_caller(request)
        if not caller.role.includes(endpoint.role):
            raise RoleMissingError(
                f"User {caller.user} has the role {caller.role}; this request ({endpoint.operation}) needs the role "
                f"{endpoint.role}"
            )

    async def _identify_and_keep_caller(self, request: Request) -> Caller:
        """Find out the caller of the request, keep the caller in the request's context, and return it. If another
        worker has forwarded the request and its signature is not valid, this is logged, and the header
        ``Authorization`` identifies the caller.

        :raises NotLoggedInError: when users must log in, and the request has no valid log-in.
        :raises SignatureNotValidError: when users must log in, and a forwarded request has neither a valid signature
            nor the header ``Authorization``.
        :raises BodyTooLargeError: when another worker has forwarded the request, and its body is too large.
        :raises UnreadableBodyError: when another worker has forwarded the request, and its body was not received
            completely, or not in time.
        """
        if has_signature_of_forwarding_worker(request):
            # Ends with the log-in: the body stays in memory until then.
            async with self._unverified_bodies.turn(request):
                caller = await self._identify_forwarded_or_direct_caller(request)
        else:
            caller = await self._identify_direct_caller(request)
        context_of(request).caller = caller
        return caller

    async def _identify_forwarded_or_direct_caller(self, request: Request) -> Caller:
        """The caller of ``request``, which has a signature of a forwarding worker: the caller that its headers name;
        if the signature is not valid, the caller of the header ``Authorization``.

        :raises NotLoggedInError, SignatureNotValidError, BodyTooLargeError, UnreadableBodyError: see
            :meth:`_identify_and_keep_caller`.
        """
        forwarded = await self._verify_forwarded_caller(request)
        if isinstance(forwarded, SignatureNotValid):
            self._warn_of_signature(client_address_or_unknown(request), forwarded.reason)
            # Without `Authorization`, the only log-in of the connection is the certificate of the forwarding worker.
            if self._rules.users is not None and "authorization" not in request.headers:
                raise SignatureNotValidError(f"The user of a forwarded request is not known. {forwarded.reason}.")
        return forwarded if isinstance(forwarded, Caller) else await self._identify_direct_caller(request)

    async def _verify_forwarded_caller(self, request: Request) -> Caller | SignatureNotValid | None:
        """The caller that another worker names in the headers of a request that it forwards; None when the headers name
        no caller or are invalid. SignatureNotValid also when this worker cannot verify the signature, for example while
        the worker starts.

        :raises BodyTooLargeError: when the body of the forwarded request is too large.
        :raises UnreadableBodyError: when the body of the forwarded request was not received completely.
        """
        forwarded = await parse_recent_unverified_forwarded_caller(request)
        if forwarded is None or isinstance(forwarded, SignatureNotValid):
            return forwarded
        answer = await self._worker.ask(VerifySignature(signature=forwarded.signature))
        if isinstance(answer, RequestRefused):
            return SignatureNotValid(reason=answer.message.rstrip("."))
        assert isinstance(answer, SignatureCheckResult), f"{answer} is no response to VerifySignature"
        if answer.reason_not_valid is not None:
            return SignatureNotValid(reason=answer.reason_not_valid.rstrip("."))
        return forwarded.caller

    def _warn_of_signature(self, address: str, reason: str) -> None:
        """Log that a request from ``address``, the worker that has forwarded it, has no valid signature: as a warning
        at most once a minute for each address, else at debug level."""
        message = f"The signature of a request that {address} forwarded for a user is not valid: {reason}"
        self._signature_log_limit.warn_or_debug(
            logger, address, message, more=f"more requests from {address}", now_s=time.monotonic()
        )

    async def _identify_direct_caller(self, request: Request) -> Caller:
        """The caller of a request that a client has sent to this worker itself. If users need not log in, the caller
        has no name and the role ADMIN. Otherwise it is the user whose name and password the header ``Authorization``
        contains, or for a request without this header the user in the client certificate.

        :raises NotLoggedInError: when users must log in, and the header contains no user's name with the right
            password, or there is neither the header nor the certificate of a user.
        """
        address = client_address_or_unknown(request)
        if self._rules.users is None:
            return Caller(user=None, role=Role.ADMIN, address=address)
        users = self._rules.users.value
        authorization = request.headers.get("authorization")
        if authorization is None:
            name = client_certificate_name(request)
            user = users.get(name) if name is not None else None
            if name is None:  # For example the first request of a browser: no log-in was refused.
                raise NotLoggedInError(NOT_LOGGED_IN_MESSAGE)
            if user is None:
                raise self._logged_login_refusal(
                    address, f"{quoted_name(name)}, the name in the certificate, is no user"
                )
            return Caller(user=name, role=user.role, address=address)
        credentials = basic_credentials(authorization)
        if credentials is None:
            reason = "the header Authorization has another form than Basic authentication"
            raise self._logged_login_refusal(address, reason)
        name, password = credentials
        user = users.get(name)
        if not await self._passwords.is_right_password(user, password) or user is None:
            reason = f"the password of {quoted_name(name)} is wrong, or the user is unknown"
            raise self._logged_login_refusal(address, reason)
        return Caller(user=name, role=user.role, address=address)

    def _logged_login_refusal(self, address: str, reason: str) -> NotLoggedInError:
        """The error for a log-in from ``address`` that is refused for ``reason``, after a log message: at most one
        warning a minute for each address, with the number of log-ins that were refused since the last warning."""
        self._refused_logins_log_limit.warn_or_debug(
            logger,
            address,
            f"The REST API has refused a log-in from {address}: {reason}",
            more=f"more refused log-ins from {address}",
            now_s=time.monotonic(),
        )
        return NotLoggedInError(NOT_LOGGED_IN_MESSAGE)


class _CachingPasswordChecker:
    """Compares passwords with their hashes on threads, and remembers the right ones, since Basic authentication sends
    the password with every request."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._digest_by_hash: dict[PasswordHash, bytes] = {}
        """The HMAC with ``_secret`` of each remembered password, by the stored hash of the password."""
        self._hashing = asyncio.Semaphore(_CONCURRENT_HASHES_MAX)
        self._hash_of_unknown_user = PasswordHash(salt=bytes(16), digest=bytes(64))

    async def is_right_password(self, user: RestUser | None, password: str) -> bool:
        """Whether ``password`` is the password of ``user``; False for an unknown user (None) and for a user without a
        password. These take as long as a wrong password, so that a client cannot find out which users exist."""
        stored = self._hash_of_unknown_user if user is None or user.password_hash is None else user.password_hash
        digest = hmac.digest(self._secret, password.encode(), "sha256")
        right = self._digest_by_hash.get(stored)
        if right is not None and hmac.compare_digest(right, digest):
            return True
        async with self._hashing:
            matches = await asyncio.to_thread(stored.matches_password, password)
        if matches:
            if len(self._digest_by_hash) >= _REMEMBERED_PASSWORDS_MAX:
                self._digest_by_hash.clear()
            self._digest_by_hash[stored] = digest
        return matches
