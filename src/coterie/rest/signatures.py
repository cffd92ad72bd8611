"""The two headers with which a worker signs a request to another worker, as proof that it has the group's session key
(KIP-507): the signature (a MAC of the body) and its algorithm.
"""

import base64
from collections.abc import Mapping

from coterie.herder.session_keys import Signature, decode_base64
from coterie.nouns import signature_algorithms
from coterie.rest.problems import BadRequestError

SIGNATURE = "X-Connect-Authorization"
"""The header with the signature, in base64."""
ALGORITHM = "X-Connect-Request-Signature-Algorithm"
"""The header with the name of the MAC algorithm, as Java spells it."""


def headers(signature: Signature) -> Mapping[str, str]:
    """The two headers of a request that is signed with ``signature``."""
    return {SIGNATURE: base64.b64encode(signature.mac).decode(), ALGORITHM: signature.algorithm}


def signature_headers_of(received: Mapping[str, str]) -> Mapping[str, str]:
    """Those of the two headers that a received request has: they are forwarded with its body."""
    return {name: received[name] for name in (SIGNATURE, ALGORITHM) if name in received}


def parse_signature(received: Mapping[str, str], body: bytes) -> Signature | None:
    """The signature in the headers ``received`` of a request with ``body``; None when one of the two headers is
    missing. The signature is not verified here.

    :raises BadRequestError: when the MAC algorithm is unknown, or the signature is not base64.
    """
    algorithm, mac = received.get(ALGORITHM), received.get(SIGNATURE)
    if algorithm is None or mac is None:
        return None
    if signature_algorithms.canonical_algorithm_name(algorithm) is None:
        raise BadRequestError(f"Algorithm {algorithm} not available")
    try:
        return Signature(algorithm=algorithm, mac=decode_base64(mac), body=body)
    except ValueError as error:
        raise BadRequestError(f"The header {SIGNATURE} cannot be read: {error}") from None
