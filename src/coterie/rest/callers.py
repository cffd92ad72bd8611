"""Who sends a request: a user with a password, a client certificate, or another worker that forwards a user's request.

A forwarded request names its user in signed headers, because the receiving worker cannot see the user's certificate:

    X-Coterie-User, X-Coterie-Role          the user and the role, as the forwarding worker has checked them
    X-Coterie-Address                       the user's address
    X-Coterie-Time                          milliseconds since the Unix epoch, by the forwarding worker's clock
    X-Coterie-Signature, …-Algorithm        MAC, with the group's session key (KIP-507), of the method, path and query,
                                            the headers above, and the body

The headers count only with a valid signature whose time differs by at most :data:`SIGNATURE_AGE_MAX_MS` from the
receiving worker's clock, in either direction: the clocks of two workers may differ.
"""

import base64
import hashlib
import json
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import quote, unquote

import httpx
from starlette.requests import Request

from coterie.herder.session_keys import Signature, decode_base64_or_raise
from coterie.nouns import signature_algorithms
from coterie.nouns.instants import instant_text
from coterie.rest import bodies
from coterie.rest.endpoints import Role
from coterie.rest.request_context import Caller
from coterie.rest.server import CLIENT_CERTIFICATE_NAME_KEY

SIGNATURE_AGE_MAX_MS = 60_000
"""How far the time in a forwarded request may differ from this worker's clock, in ms."""
_USER_HEADER, _ROLE_HEADER, _ADDRESS_HEADER, _TIME_HEADER = (
    "X-Coterie-User",
    "X-Coterie-Role",
    "X-Coterie-Address",
    "X-Coterie-Time",
)
"""The names of the headers that state a forwarded request's caller, and when the request was forwarded."""
_SIGNATURE_HEADER, _ALGORITHM_HEADER = "X-Coterie-Signature", "X-Coterie-Signature-Algorithm"
"""The names of the headers with the signature of these headers and of the request, and with its MAC algorithm."""

SignFunction = Callable[[bytes], Awaitable[Signature | None]]
"""A function that signs a content with the group's session key; it returns None when the worker has no session key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedForwardedCaller:
    """The caller that a forwarded request names, before its signature is verified."""

    caller: Caller
    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureNotValid:
    """A forwarded request names its caller, but the signature is not valid."""

    reason: str
    """One sentence or more, without a period at the end."""


def client_address_or_unknown(request: Request) -> str:
    """The IP address of the client: that of the connection, or for a connection from one of
    :data:`.TRUSTED_PROXY_HOSTS` the one in ``X-Forwarded-For``, which uvicorn puts into ``request.client``. ``unknown``
    if uvicorn has no address."""
    return request.client.host if request.client is not None else "unknown"


def client_certificate_name(request: Request) -> str | None:
    """The name in the client certificate of the request's connection
    (:func:`coterie.config.certificate_names.peer_distinguished_name`); None without a certificate."""
    return getattr(request.state, CLIENT_CERTIFICATE_NAME_KEY, None)


def basic_credentials(authorization: str) -> tuple[str, str] | None:
    """User and password of a header ``Authorization: Basic …``; None when the header has another form."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except ValueError:  # It is no ASCII, no base64 or no UTF-8.
        return None
    return (user, password) if colon else None


async def add_caller_headers_if_signable(request: httpx.Request, caller: Caller, sign: SignFunction) -> None:
    """Add the headers that name ``caller``, with their signature by ``sign``, to ``request``, which this worker is
    going to send to another one. Adds no header when ``sign`` returns None."""
    now_ms = str(time.time_ns() // 1_000_000)
    fields = (quote(caller.user, safe="") if caller.user is not None else "", caller.role.value, caller.address, now_ms)
    signature = await sign(_signed_content(request.method, request.url.raw_path, fields, request.content))
    if signature is not None:
        request.headers.update(
            dict(zip((_USER_HEADER, _ROLE_HEADER, _ADDRESS_HEADER, _TIME_HEADER), fields, strict=True))
        )
        request.headers[_SIGNATURE_HEADER] = base64.b64encode(signature.mac).decode()
        request.headers[_ALGORITHM_HEADER] = signature.algorithm


def has_signature_of_forwarding_worker(request: Request) -> bool:
    """Whether ``request`` has a signature of its caller's name, which is not verified here."""
    return _SIGNATURE_HEADER in request.headers


async def parse_recent_unverified_forwarded_caller(
    request: Request,
) -> UnverifiedForwardedCaller | SignatureNotValid | None:
    """The caller that the headers of a forwarded request name, with the signature to verify; None when a header is
    missing or invalid. SignatureNotValid when the time is more than :data:`SIGNATURE_AGE_MAX_MS` from now. Reads the
    body of the request.

    :raises BodyTooLargeError: when the body is too large.
    :raises UnreadableBodyError: when the connection was closed before the whole body was received.
    """
    try:
        fields = tuple(request.headers[name] for name in (_USER_HEADER, _ROLE_HEADER, _ADDRESS_HEADER, _TIME_HEADER))
        mac, algorithm = decode_base64_or_raise(request.headers[_SIGNATURE_HEADER]), request.headers[_ALGORITHM_HEADER]
        user, role, address, sent_at_ms = unquote(fields[0]), Role(fields[1]), fields[2], _parse_time_ms(fields[3])
    except (KeyError, ValueError):
        return None
    if signature_algorithms.canonical_algorithm_name(algorithm) is None:
        return None
    now_ms = time.time_ns() // 1_000_000
    if abs(now_ms - sent_at_ms) > SIGNATURE_AGE_MAX_MS:
        return SignatureNotValid(
            reason=f"The request was signed at {instant_text(sent_at_ms)} by the clock of the worker that forwarded "
            f"the request, and it is {instant_text(now_ms)} by this worker's clock: the difference must not exceed "
            f"{SIGNATURE_AGE_MAX_MS // 1000} s. Set the clocks of both machines"
        )
    path_and_query = request.scope["raw_path"]
    if request.scope["query_string"]:
        path_and_query += b"?" + request.scope["query_string"]
    content = _signed_content(request.method, path_and_query, fields, await bodies.read_body(request))
    return UnverifiedForwardedCaller(
        caller=Caller(user=user or None, role=role, address=address),
        signature=Signature(algorithm=algorithm, mac=mac, body=content),
    )


def _parse_time_ms(text: str) -> int:
    """The time in a header, in milliseconds since the Unix epoch.

    :raises ValueError: when ``text`` is no such time of the years 1970 to 5138.
    """
    if not re.fullmatch("[0-9]{1,14}", text):
        raise ValueError("the text is not a time")
    return int(text)


def _signed_content(method: str, path_and_query: bytes, fields: tuple[str, ...], body: bytes) -> bytes:
    """The bytes that the signature of a forwarded request is made of: method, path and query, the values of the four
    headers about the caller (``fields``), and a digest of the body. They begin with a word, so that they are never
    equal to a JSON array of task configs, which Connect's workers sign with the same key."""
    parts = [method, path_and_query.decode("latin-1"), *fields, hashlib.sha256(body).hexdigest()]
    return b"forwarded " + json.dumps(parts).encode()
