"""The two headers with which a worker signs a request to another worker, as proof that it has the group's session key
(KIP-507): the signature (a MAC of the body) and its algorithm.
"""

import base64
from collections.abc import Mapping

from coterie.herder.session_keys import Signature, decode_base64_or_raise
from coterie.nouns import signature_algorithms
from coterie.rest.problems import BadRequestError

SIGNATURE_HEADER = "X-Connect-Authorization"
"""The header with the signature, in base64."""
ALGORITHM_HEADER = "X-Connect-Request-Signature-Algorithm"
"""The header with the name of the MAC algorithm, as Java spells it."""


def signature_headers(signature: Signature) -> Mapping[str, str]:
    """The two headers of a request that is signed with ``signature``."""
    return {SIGNATURE_HEADER: base64.b64encode(signature.mac).decode(), ALGORITHM_HEADER: signature.algorithm}


def parse_signature(received_headers: Mapping[str, str], body: bytes) -> Signature | None:
    """The signature in the headers ``received_headers`` of a request with ``body``; None when one of the two headers is
    missing. The signature is not verified here.

    :raises BadRequestError: when the MAC algorithm is unknown, or the signature is not base64.
    """
    algorithm, encoded_mac = received_headers.get(ALGORITHM_HEADER), received_headers.get(SIGNATURE_HEADER)
    if algorithm is None or encoded_mac is None:
        return None
    if signature_algorithms.canonical_algorithm_name(algorithm) is None:
        raise BadRequestError(
            f"The header {ALGORITHM_HEADER} names the MAC algorithm {algorithm}, which this worker does not have: set "
            "inter.worker.signature.algorithm of the worker that sent the request to an algorithm that all workers have"
        )
    try:
        return Signature(algorithm=algorithm, mac=decode_base64_or_raise(encoded_mac), body=body)
    except ValueError as error:
        raise BadRequestError(f"The header {SIGNATURE_HEADER} cannot be read: {error}") from None
