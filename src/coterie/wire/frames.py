"""Frames: a header and one Kafka message, as the broker reads requests and clients read responses.

A frame here does not include its length; :func:`with_length` adds it. Messages are kio's entities of one API version;
`kio_entities` builds them from values that do not depend on a version.
"""

import io
import struct
from dataclasses import dataclass
from typing import Any

from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

from coterie.nouns.errors import WireError
from coterie.wire.connect_group_messages.settled_heartbeat import (
    decode_heartbeat_if_no_changes,
    encode_frame_if_no_news,
)
from coterie.wire.kio_entities import Values, build_response
from coterie.wire.message_check import ELEMENTS_MAX, check_and_strip_unknown_fields
from coterie.wire.primitives import Reader, Writer
from coterie.wire.schemas import (
    API_VERSIONS,
    CONNECT_GROUP_APIS,
    CONNECT_GROUP_HEARTBEAT,
    header_version,
    request_schema,
    response_schema,
)

_HEADER_START_STRUCT = struct.Struct(">hhi")
"""API key, API version and correlation id, with which the header of every request begins."""
LENGTH_SIZE = 4
"""The size in bytes of the length, an int32, that precedes each frame on a connection."""

REQUEST_ELEMENTS_MAX = 50_000
"""The maximum number of array elements and tagged fields in one request. A request for 20,000 topics of one partition
each needs fewer. A client of 10,000 partitions of a few topics sends 10,000 elements. The requests of connect groups
may have :data:`ELEMENTS_MAX`: the leader of a group reports all configured jobs, and 100,000 tasks of as many
connectors are 300,000 elements."""
CONNECT_GROUP_RESPONSE_ELEMENTS_MAX = 1_500_000
"""The maximum number of array elements and tagged fields in one response of an API of connect groups. While jobs move,
the state of a group lists each job up to four times: as configured, in the target of a member, among the jobs of a
member, and as not given back or as a departed member's. For 100,000 tasks of as many connectors that is 1,200,000
elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHeader:
    """The header that precedes every request. The version of the header depends on the API version."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None = None


def with_length(frame: bytes) -> bytes:
    """``frame`` with its length before it, as it is sent on a connection."""
    return len(frame).to_bytes(LENGTH_SIZE, signed=True) + frame


# -- the broker's side ------------------------------------------------------------------------------------------------


def decode_request_header(frame: bytes) -> RequestHeader:
    """The request header's fields up to the client id, which all header versions share. ``frame`` has no length before
    it.

    :raises WireError: when the frame is too short, or the client id is not UTF-8.
    """
    if len(frame) < _HEADER_START_STRUCT.size:
        raise WireError(f"a request of {len(frame)} bytes is shorter than the header of a request")
    api_key, api_version, correlation_id = _HEADER_START_STRUCT.unpack_from(frame)
    client_id = Reader(frame, _HEADER_START_STRUCT.size).nullable_string()
    return RequestHeader(api_key=api_key, api_version=api_version, correlation_id=correlation_id, client_id=client_id)


def decode_request(frame: bytes) -> tuple[RequestHeader, Any]:
    """The header and kio's entity of the request in ``frame``, which has no length before it.

    :raises UnknownApiError | WireError: see :func:`decode_request_header` and :func:`decode_request_body`.
    """
    header = decode_request_header(frame)
    return header, decode_request_body(frame, header)


def decode_request_body(frame: bytes, header: RequestHeader, *, elements_max: int | None = None) -> Any:
    """kio's entity of the request in ``frame``, which has this ``header`` and no length before it.

    :raises UnknownApiError: when there is no such API or version.
    :raises WireError: when the frame is malformed; `TooManyElementsError` when it has more than ``elements_max`` array
        elements and tagged fields. None: the maximum of the API, see :data:`REQUEST_ELEMENTS_MAX`.
    """
    if elements_max is None:
        elements_max = ELEMENTS_MAX if header.api_key in CONNECT_GROUP_APIS else REQUEST_ELEMENTS_MAX
    schema = request_schema(header.api_key, header.api_version)
    reader = Reader(frame, _HEADER_START_STRUCT.size)
    client_id_size = max(0, reader.int16())
    reader.position += client_id_size
    if header_version(schema) == 2:
        reader.skip_tagged_fields()
    if header.api_key == CONNECT_GROUP_HEARTBEAT:
        settled = decode_heartbeat_if_no_changes(frame, reader.position)
        if settled is not None:
            return settled
    return _decode_entity(frame, reader.position, schema, elements_max)


def encode_response_frame(header: RequestHeader, response: Any) -> bytes:
    """The frame of the response to the request of ``header``, without the length (:func:`with_length` adds it). The API
    version is that of kio's entity ``response``."""
    writer = Writer()
    writer.int32(header.correlation_id)
    if header_version(type(response)) == 1:
        writer.no_tagged_fields()
    return writer.getvalue() + _encode_entity(response)


def encode_response_frame_from_values(header: RequestHeader, values: Values) -> bytes:
    """The frame of the response with ``values`` to the request of ``header``, without the length. Values that the API
    version does not have are dropped; fields that are not given get their defaults.

    :raises TypeError | KeyError: when a field without default is missing, which is a bug in Coterie.
    """
    if header.api_key == CONNECT_GROUP_HEARTBEAT:
        frame = encode_frame_if_no_news(header.correlation_id, values)
        if frame is not None:
            return frame
    return encode_response_frame(header, build_response(header.api_key, header.api_version, values))


# -- the client's side ------------------------------------------------------------------------------------------------


def encode_request(request: Any, *, correlation_id: int, client_id: str | None) -> tuple[RequestHeader, bytes]:
    """The header of kio's entity ``request``, which :func:`decode_response` needs for the response, and the frame
    without its length."""
    header = RequestHeader(
        api_key=request.__api_key__,
        api_version=request.__version__,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    writer = Writer()
    writer.int16(header.api_key)
    writer.int16(header.api_version)
    writer.int32(correlation_id)
    # Never compact, also in the flexible header: a broker must be able to read it without support for the version.
    writer.nullable_string(client_id)
    if header_version(type(request)) == 2:
        writer.no_tagged_fields()
    return header, writer.getvalue() + _encode_entity(request)


def decode_response(frame: bytes, header: RequestHeader) -> Any:
    """kio's entity of the response in ``frame``, which has no length before it, to the request of ``header``. If a
    broker does not support the version of an ApiVersions request, its response has version 0 (KIP-511).

    :raises UnknownApiError: when there is no such API or version.
    :raises WireError: when the frame is malformed or belongs to another request; `TooManyElementsError` when it has
        more than :data:`ELEMENTS_MAX` array elements and tagged fields, for an API of connect groups more than
        :data:`CONNECT_GROUP_RESPONSE_ELEMENTS_MAX`.
    """
    schema = response_schema(header.api_key, header.api_version)
    reader = Reader(frame)
    correlation_id = reader.int32()
    if correlation_id != header.correlation_id:
        raise WireError(f"a response has the correlation id {correlation_id}, but {header.correlation_id} was expected")
    if (
        header.api_key == API_VERSIONS
        and header.api_version > 0
        and reader.remaining >= 2
        and Reader(frame, reader.position).int16() == 35
    ):
        # UNSUPPORTED_VERSION: a broker that does not support the requested version responds in version 0 (KIP-511).
        schema = response_schema(API_VERSIONS, 0)
    if header_version(schema) == 1:
        reader.skip_tagged_fields()
    elements_max = CONNECT_GROUP_RESPONSE_ELEMENTS_MAX if header.api_key in CONNECT_GROUP_APIS else ELEMENTS_MAX
    return _decode_entity(frame, reader.position, schema, elements_max)


# -- helpers ----------------------------------------------------------------------------------------------------------


def _decode_entity(frame: bytes, position: int, schema: Any, elements_max: int) -> Any:
    """kio's entity of the message of type ``schema`` that begins at ``position`` of the frame, after a check of its
    counts and lengths.

    :raises WireError: when the message is malformed; `TooManyElementsError` when it has more than ``elements_max``
        array elements and tagged fields.
    """
    checked_frame = check_and_strip_unknown_fields(frame, position, schema, elements_max=elements_max)
    try:
        entity, _ = entity_reader(schema)(checked_frame, position)
    except (SerialError, ValueError, OverflowError) as error:
        raise WireError(f"a {schema.__name__} v{schema.__version__} is malformed: {error}") from error
    return entity


def _encode_entity(entity: Any) -> bytes:
    """The bytes of kio's entity, without a header."""
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()
