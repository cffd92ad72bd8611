"""Every version of every API: a request with empty values gets the same error codes from both brokers."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import timedelta
from types import NoneType
from typing import Any, get_args, get_origin
from uuid import UUID

import pytest

from coterie.broker.apis.table import APIS
from coterie.wire.frames import encode_request, with_length
from coterie.wire.schemas import CONNECT_GROUP_APIS, SASL_AUTHENTICATE, SASL_HANDSHAKE, request_schema
from tests.broker.conftest import raw_client
from tests.kafka.faults.row import CLOSED, Codes, codes

pytestmark = [pytest.mark.kafka, pytest.mark.processes]

UNKNOWN_TOPIC_ID = UUID(int=5)

DELETE_GROUPS = 42

KIO_VERSIONS = {35: (1, 4)}
"""Versions that kio supports, for APIs of which Kafka serves more."""

KAFKAS = sorted(APIS.keys() - CONNECT_GROUP_APIS)
# Apache Kafka closes a connection to its plain listener at the first SASL request.
WITHOUT_SASL = [key for key in KAFKAS if key not in (SASL_HANDSHAKE, SASL_AUTHENTICATE)]


def blank(schema: Any) -> Any:
    """An entity with empty values: 0, false, an empty string, null, and one such element in every array."""
    return schema(**{field.name: _blank_value(field.name, field.type, field.metadata) for field in fields(schema)})


def _blank_value(name: str, type_: Any, metadata: Any) -> Any:
    kafka_type = metadata.get("kafka_type")
    is_nullable = NoneType in get_args(type_)
    inner = next(arg for arg in get_args(type_) if arg is not NoneType) if is_nullable else type_
    if get_origin(inner) is tuple:
        return (_blank_value(name, get_args(inner)[0], metadata),)
    if is_dataclass(inner):
        return blank(inner)
    if kafka_type == "string":
        return ""
    if is_nullable:
        return None
    if name == "acks":
        # 0 requests no response.
        return -1
    if kafka_type.startswith("timedelta"):
        return timedelta(seconds=30) if name == "timeout" else timedelta()
    return {"bool": False, "bytes": b"", "uuid": UNKNOWN_TOPIC_ID, "float64": 0.0}.get(kafka_type, 0)


def error_codes(port: int, key: int, version: int) -> Codes:
    with raw_client(port) as client:
        # An OffsetCommit, here or in the fault table, may have created a group with an empty name: delete it.
        client.ask(DELETE_GROUPS, 2, groups_names=("",))
        request = blank(request_schema(key, version))
        header, frame = encode_request(request, correlation_id=1, client_id="blank")
        client.socket.sendall(with_length(frame))
        try:
            return codes(client.receive(header))
        except ConnectionError:
            return CLOSED


@pytest.mark.parametrize("key", WITHOUT_SASL, ids=lambda key: str(request_schema(key, APIS[key].versions[-1]).__name__))
def test_a_request_with_empty_values_gets_kafkas_error_codes(key: int, ready_ports: Callable[[str], int]) -> None:
    embedded, kafka = ready_ports("embedded"), ready_ports("kafka")
    versions = APIS[key].versions
    assert {version: error_codes(embedded, key, version) for version in versions} == {
        version: error_codes(kafka, key, version) for version in versions
    }


def test_the_served_versions_of_kafkas_apis_are_the_same(ready_ports: Callable[[str], int]) -> None:
    served: list[dict[int, tuple[int, int]]] = []
    for kind in ("embedded", "kafka"):
        with raw_client(ready_ports(kind)) as client:
            answer = client.ask(18, 4, client_software_name="tests", client_software_version="1")
        served.append({api.api_key: (api.min_version, api.max_version) for api in answer.api_keys})
    ours, theirs = served
    assert ours.keys() - theirs.keys() == CONNECT_GROUP_APIS
    assert {key: KIO_VERSIONS.get(key, theirs[key]) for key in KAFKAS} == {key: ours[key] for key in KAFKAS}
