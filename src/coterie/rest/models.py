"""The JSON bodies of requests and responses as pydantic models, for schemas only: :mod:`coterie.rest.bodies` parses the
requests, :mod:`coterie.rest.views` makes the responses."""

from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from coterie.nouns.logger_levels import LoggerLevel

Config: TypeAlias = dict[str, str]
"""A connector's config."""
WrittenConfig: TypeAlias = dict[str, str | int | float | bool]
"""A config in a request: a number or a boolean becomes a string."""
ConfigPatch: TypeAlias = dict[str, str | int | float | bool | None]
"""New values of some keys of a config; null removes a key."""
ConfigToValidate: TypeAlias = dict[str, str | int | float | bool | None]
"""A config in a request for a validation: null is an error of its key."""
JsonObject: TypeAlias = dict[str, object]
"""An object whose fields ``docs/rest.md`` describes."""


class Logger(BaseModel):
    """The level of a logger, and when it was last changed."""

    level: LoggerLevel
    last_modified: int | None
    """When the level was last changed by a request, in milliseconds since the Unix epoch; null: never."""


class NewLoggerLevel(BaseModel):
    """The level that a logger is to have."""

    level: LoggerLevel


class Error(BaseModel):
    """The body of an error response."""

    error_code: int
    message: str


class Server(BaseModel):
    """The response of ``GET /``."""

    version: str
    commit: str
    kafka_cluster_id: str


class Health(BaseModel):
    """The response of ``GET /health``."""

    status: Literal["healthy", "starting", "unhealthy"]
    message: str


class TaskId(BaseModel):
    """The id of a task."""

    connector: str
    task: int


class Offset(BaseModel):
    """How far one part of a connector's input was read. In a request, ``offset`` null removes the offset."""

    partition: dict[str, object] | None = None
    offset: dict[str, object] | None = None


class Offsets(BaseModel):
    """The offsets of a connector (KIP-875)."""

    offsets: list[Offset]


class Message(BaseModel):
    """A response that only says what was done."""

    message: str


class NewConnector(BaseModel):
    """The request of ``POST /connectors``."""

    name: str
    config: WrittenConfig
    initial_state: Literal["RUNNING", "PAUSED", "STOPPED"] | None = None
    initial_offsets: list[Offset] | None = None


class Connector(BaseModel):
    """A connector's config and tasks."""

    name: str
    config: Config
    tasks: list[TaskId]
    type: Literal["source", "sink", "unknown"]
    offsets_status: str | None = None
    """Only in the response to a request that has set initial offsets (KIP-995)."""


class Task(BaseModel):
    """A task and its config."""

    id: TaskId
    config: Config


class ActiveTopics(BaseModel):
    """The topics that the tasks of a connector have read or written."""

    topics: list[str]


class JobStatus(BaseModel):
    """The status of a connector itself, or of a task."""

    state: Literal["UNASSIGNED", "RUNNING", "PAUSED", "FAILED", "RESTARTING", "STOPPED"]
    worker_id: str
    version: str | None = None
    trace: str | None = None


class TaskStatus(JobStatus):
    """The status of a task."""

    id: int


class ConnectorStatus(BaseModel):
    """The statuses of a connector and of its tasks."""

    name: str
    connector: JobStatus
    tasks: list[TaskStatus]
    type: Literal["source", "sink", "unknown"]


class ExpandedConnector(BaseModel):
    """A connector in ``GET /connectors?expand=``: with the parts that the request names."""

    info: Connector | None = None
    status: ConnectorStatus | None = None


class AcceptingWorker(BaseModel):
    """The worker that has accepted an operator's order: to drain, to cancel its drain, or to restart."""

    worker_id: str
    """The worker's advertised ``host:port``."""
    name: str
    life: str
    """The random id of the start of the worker's process: another one after a restart."""


class Plugin(BaseModel):
    """A plug-in of a worker."""

    model_config = ConfigDict(populate_by_name=True)

    class_name: str = Field(alias="class")
    type: Literal["sink", "source", "transformation", "predicate", "converter", "header_converter"]
    version: str | None = None


class ConfigKey(BaseModel):
    """The definition of a config key."""

    name: str
    type: Literal["BOOLEAN", "CLASS", "DOUBLE", "INT", "LIST", "LONG", "PASSWORD", "SHORT", "STRING"]
    required: bool
    default_value: str | None
    importance: Literal["HIGH", "MEDIUM", "LOW"]
    documentation: str
    group: str | None
    order_in_group: int
    width: Literal["NONE", "SHORT", "MEDIUM", "LONG"]
    display_name: str
    dependents: list[str]


class ConfigValue(BaseModel):
    """The value of a config key, and its errors."""

    name: str
    value: str | None
    recommended_values: list[str]
    errors: list[str]
    visible: bool


class ConfigInfo(BaseModel):
    """A config key with its value."""

    definition: ConfigKey | None
    value: ConfigValue


class ConfigInfos(BaseModel):
    """The result of the validation of a config."""

    name: str
    error_count: int
    groups: list[str]
    configs: list[ConfigInfo]
