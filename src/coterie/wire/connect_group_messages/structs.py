"""The base classes of messages and structs, kio's names of the primitive types, and the structs that several messages
contain."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.static.constants import EntityType

BOOL: dict[str, Any] = {"kafka_type": "bool"}
INT8: dict[str, Any] = {"kafka_type": "int8"}
INT16: dict[str, Any] = {"kafka_type": "int16"}
INT32: dict[str, Any] = {"kafka_type": "int32"}
INT64: dict[str, Any] = {"kafka_type": "int64"}
UUID: dict[str, Any] = {"kafka_type": "uuid"}
STRING: dict[str, Any] = {"kafka_type": "string"}
BYTES: dict[str, Any] = {"kafka_type": "bytes"}


class Struct:
    """The base class of all structs in the messages of connect groups. These messages have one version, 0, which is
    flexible (KIP-482). The dunder attributes of this class and its subclasses are those by which kio reads a schema."""

    __slots__ = ()
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True


class Request(Struct):
    """The base class of the requests of connect groups. A request has the number of its API in ``__api_key__``."""

    __slots__ = ()
    __type__: ClassVar = EntityType.request
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader


class Response(Struct):
    """The base class of the responses of connect groups. A response has the number of its API in ``__api_key__``."""

    __slots__ = ()
    __type__: ClassVar = EntityType.response
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader


class NullableStruct(Struct):
    """The base class of tagged fields that contain a struct or null. A subclass has one field, ``value``: the struct,
    or None when the tagged field is absent."""

    __slots__ = ()
    # The tagged fields of the struct itself end the value: the class around it adds none.
    __flexible__: ClassVar[bool] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksOfConnector(Struct):
    """Tasks of one connector: its name and the tasks' numbers."""

    connector_id: str = field(metadata=STRING)
    """The connector's name."""
    task_ids: tuple[int, ...] = field(metadata=INT32)
    """The numbers of the tasks within the connector, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorsAndTasks(Struct):
    """A set of jobs: connectors by name, and tasks by connector."""

    connectors: tuple[str, ...] = field(metadata=STRING)
    tasks: tuple[TasksOfConnector, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NullableConnectorsAndTasks(NullableStruct):
    """A set of jobs in a tagged field; None: the field is absent."""

    value: ConnectorsAndTasks | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured(Struct):
    """All configured jobs of a group, as the config topic states them up to ``config_offset``."""

    config_offset: int = field(metadata=INT64)
    connectors: tuple[str, ...] = field(metadata=STRING)
    tasks: tuple[TasksOfConnector, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NullableConfigured(NullableStruct):
    """All configured jobs, in a tagged field; None: the field is absent."""

    value: Configured | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnplaceableJobs(Struct):
    """Jobs that no member may run, and why."""

    reason: str = field(metadata=STRING)
    connectors: tuple[str, ...] = field(metadata=STRING)
    tasks: tuple[TasksOfConnector, ...]
