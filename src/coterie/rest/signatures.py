"""The headers with which a worker proves to another worker that it belongs to the same group (KIP-507)."""

import base64
from collections.abc import Mapping

from coterie.herder.session_keys import Signature, decode_base64
from coterie.nouns import macs
from coterie.rest.problems import BadRequestError

SIGNATURE = "X-Connect-Authorization"
ALGORITHM = "X-Connect-Request-Signature-Algorithm"


def headers(signature: Signature) -> Mapping[str, str]:
    return {SIGNATURE: base64.b64encode(signature.mac).decode(), ALGORITHM: signature.algorithm}


def carried(received: Mapping[str, str]) -> Mapping[str, str]:
    """The signature headers of a received request, to be forwarded with its body."""
    return {name: received[name] for name in (SIGNATURE, ALGORITHM) if name in received}


def read(received: Mapping[str, str], body: bytes) -> Signature | None:
    """The signature of ``body``; None when either header is missing.

    :raises BadRequestError: when the MAC algorithm is unknown, or the signature is not base64.
    """
    algorithm, mac = received.get(ALGORITHM), received.get(SIGNATURE)
    if algorithm is None or mac is None:
        return None
    if macs.canonical(algorithm) is None:
        raise BadRequestError(f"Algorithm {algorithm} not available")
    try:
        return Signature(algorithm=algorithm, mac=decode_base64(mac), body=body)
    except ValueError as error:
        raise BadRequestError(f"{SIGNATURE} cannot be read: {error}") from None
