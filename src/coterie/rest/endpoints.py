"""The endpoints of a worker's HTTP API as data: one row for each method of each path.

The routes, the header ``Allow``, the responses to OPTIONS and all 405 follow from this table
(:mod:`coterie.rest.routing`); the table in `docs/rest.md` is compared with it.

To add an endpoint:

1. add its operation to :class:`Operation` and its row to :data:`ENDPOINTS`, with models of its bodies from
   :mod:`coterie.rest.models`;
2. write its handler in the file of its resource in ``rest/resources/``, and add it to the ``handlers()`` of that
   resource. The handlers of a new resource are added in :func:`coterie.rest.app.create_app`.

:func:`coterie.rest.routing.AllEndpointsRoute` refuses to start when an operation has no handler, or several.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Any

from coterie.rest import models


class Operation(StrEnum):
    """What an endpoint does. No two rows of :data:`ENDPOINTS` have the same operation."""

    DESCRIBE_SERVER = auto()
    DESCRIBE_HEALTH = auto()
    DESCRIBE_METRICS = auto()
    DESCRIBE_API = auto()

    LIST_CONNECTORS = auto()
    CREATE_CONNECTOR = auto()
    DESCRIBE_CONNECTOR = auto()
    DELETE_CONNECTOR = auto()
    DESCRIBE_CONFIG = auto()
    PUT_CONFIG = auto()
    PATCH_CONFIG = auto()
    DESCRIBE_STATUS = auto()
    DESCRIBE_TOPICS = auto()
    RESET_TOPICS = auto()
    DESCRIBE_TASKS = auto()
    DESCRIBE_TASK_STATUS = auto()
    PAUSE_CONNECTOR = auto()
    RESUME_CONNECTOR = auto()
    STOP_CONNECTOR = auto()
    RESTART_CONNECTOR = auto()
    RESTART_TASK = auto()
    DESCRIBE_OFFSETS = auto()
    CHANGE_OFFSETS = auto()
    RESET_OFFSETS = auto()

    LIST_PLUGINS = auto()
    DESCRIBE_PLUGIN = auto()
    VALIDATE_CONFIG = auto()

    LIST_LOGGERS = auto()
    DESCRIBE_LOGGER = auto()
    SET_LOGGER_LEVEL = auto()

    PUT_TASK_CONFIGS = auto()
    FENCE_TASKS = auto()

    DESCRIBE_WORKER = auto()
    DESCRIBE_GROUP = auto()
    DRAIN_WORKER = auto()
    UNCORDON_WORKER = auto()
    RESTART_WORKER = auto()


class Role(StrEnum):
    """What the sender of a request may do: the role that a user has, and the role that an endpoint requires."""

    READ = auto()
    """Read the state of connectors, workers and the group."""
    OPERATE = auto()
    """Also change states without changing a config: pause, resume, stop, restart."""
    ADMIN = auto()
    """Also change configs and the group."""
    WORKER = auto()
    """The sender is not a user: it is another worker of the group, which signs its requests with the group's session
    key."""

    def includes(self, other: "Role") -> bool:
        """Whether a user with this role may do all that a user with the role ``other`` may do. Neither is WORKER."""
        return USER_ROLES.index(other) <= USER_ROLES.index(self)


USER_ROLES = (Role.READ, Role.OPERATE, Role.ADMIN)
"""The roles that a user can have. Each includes those before it."""


class AnsweredBy(StrEnum):
    """The worker that answers a request. A worker that cannot answer a request forwards it."""

    ANY_WORKER = auto()
    LEADER = auto()
    """The leader of the group."""
    OWNER = auto()
    """The worker to which the connector or task is assigned, or the worker that the path names."""


class ServingListeners(StrEnum):
    """The listeners that serve an endpoint when the key ``admin.listeners`` is set; without this key, the listeners of
    the key ``listeners`` serve all endpoints."""

    MAIN = auto()
    """Only the listeners of the key ``listeners``."""
    ADMIN = auto()
    """Only the listeners of the key ``admin.listeners``."""
    BOTH = auto()


JSON = "application/json"
"""The media type of JSON."""
TEXT = "text/plain"
"""The media type of plain text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An endpoint of the HTTP API: one method of one path, who may use it, which worker answers it, and the types of
    its bodies."""

    method: str
    path: str
    """Segments with parameters: ``{name}`` is one segment, ``{name:path}`` is one segment or several."""
    operation: Operation
    role: Role
    answered_by: AnsweredBy
    listeners: ServingListeners = ServingListeners.MAIN
    type_by_query_parameter: Mapping[str, Any] = field(default_factory=dict)
    """The type of each parameter in the query, by name. Unknown parameters are ignored."""
    accepts_any_content_type: bool = False
    """Whether a request may have any ``Content-Type``, as in Connect for the worker's server. Otherwise it must be
    JSON, also if the request has no body."""
    request_body_type: Any = None
    """The type of the request's JSON body, as pydantic describes it in a schema; None: no body. Bodies are parsed by
    :mod:`coterie.rest.bodies`, as Connect parses them."""
    response_body_type: Any = None
    """The type of the body of a response to a request that succeeded; the form is as for ``request_body_type``. None:
    no body."""
    response_media_type: str = JSON
    """The media type of the body of a success. The bodies of errors are JSON, or a text."""
    success_statuses: tuple[int, ...] = (200,)
    """The HTTP statuses of a success; none if every request is refused."""

    @property
    def changes_state(self) -> bool:
        """Whether a request can change something, so that the audit log has a line for it. Connect's validation of a
        config is a PUT that changes nothing."""
        return self.method != "GET" and self.operation is not Operation.VALIDATE_CONFIG


_CONNECTOR_PATH = "/connectors/{connector}"
_PLUGIN_CONFIG_PATH = "/connector-plugins/{plugin}/config"
_TASK_PATH = "/connectors/{connector}/tasks/{task}"
_WORKER_PATH = "/coterie/workers/{worker:path}"  # A worker's name may contain slashes.

ENDPOINTS: Sequence[Endpoint] = (
    # -- the worker's server ------------------------------------------------------------------------------------------
    Endpoint(
        method="GET",
        path="/",
        operation=Operation.DESCRIBE_SERVER,
        role=Role.READ,
        answered_by=AnsweredBy.ANY_WORKER,
        accepts_any_content_type=True,
        response_body_type=models.Server,
    ),
    Endpoint(
        method="GET",
        path="/health",
        operation=Operation.DESCRIBE_HEALTH,
        role=Role.READ,
        answered_by=AnsweredBy.ANY_WORKER,
        accepts_any_content_type=True,
        response_body_type=models.Health,
    ),
    Endpoint(
        method="GET",
        path="/metrics",
        operation=Operation.DESCRIBE_METRICS,
        role=Role.READ,
        answered_by=AnsweredBy.ANY_WORKER,
        listeners=ServingListeners.BOTH,
        accepts_any_content_type=True,
        response_body_type=str,
        response_media_type=TEXT,
    ),
    Endpoint(
        method="GET",
        path="/coterie/openapi.json",
        operation=Operation.DESCRIBE_API,
        role=Role.READ,
        answered_by=AnsweredBy.ANY_WORKER,
        accepts_any_content_type=True,
        response_body_type=models.JsonObject,
    ),
    # -- connectors ---------------------------------------------------------------------------------------------------
    Endpoint(
        method="GET",
        path="/connectors",
        operation=Operation.LIST_CONNECTORS,
        role=Role.READ,
        answered_by=AnsweredBy.ANY_WORKER,
        type_by_query_parameter={"expand": list[str]},
        response_body_type=list[str] | dict[str, models.ExpandedConnector],
    ),
    Endpoint(
        method="POST",
        path="/connectors",
        operation=Operation.CREATE_CONNECTOR,
        role=Role.ADMIN,
        answered_by=AnsweredBy.LEADER,
        request_body_type=models.NewConnector,
        response_body_type=models.Connector,
        success_statuses=(201,),
    ),
    Endpoint(
        method="GET",
        path=_CONNECTOR_PATH,
        operation=Operation.DESCRIBE_CONNECTOR,
        role=Role.READ,
        answered_by=AnsweredBy.ANY_WORKER,
        response_body_type=models.Connector,
    ),
    Endpoint(
        method="DELETE",
        path=_CONNECTOR_PATH,
        operation=Operation.DELETE_CONNECTOR,
        role=Role.ADMIN,
        answered_by=AnsweredBy.LEADER,
        success_statuses=(204,),
    ),
    Endpoint(
        method="GET",
        path=f"{_CONNECTOR_PATH}/config",
        operation=Operation.DESCRIBE_CONFIG,
        role=Role.READ,
        answered_by=AnsweredBy.ANY_WORKER,
        response_body_type=models.Config,
    ),
    Endpoint(
        method="PUT",
        path=f"{_CONNECTOR_PATH}/config",
        operation=Operation.PUT_CONFIG,
        role=Role.ADMIN,
        answered_by=AnsweredBy.LEADER,
        request_body_type=models.WrittenConfig,
        response_body_type=models.Connector,
        success_statuses=(200, 201),
    ),
    Endpoint(
        method="PATCH",
        path=f"{_CONNECTOR_PATH}/config",
        operation=Operation.PATCH_CONFIG,
        role=Role.ADMIN,
        answered_by=AnsweredBy.LEADER,
        request_body_type=models.ConfigPatch,
        response_body_type=models.Connector,
    ),
    Endpoint(
        method="GET",
        path=f"{_CONNECTOR_PATH}/status",
        operation=Operation.DESCRIBE_STATUS,
        role=Role.READ,
        answered_by=AnsweredBy.ANY_WORKER,
        response_body_type=models.ConnectorStatus,
    ),
    Endpoint(
        method="GET",
        path=f"{_CONNECTOR_PATH}/topics",
        operation=Operation.DESCRIBE_TOPICS,
        role=Role.READ,
        answered_by=AnsweredBy.ANY_WORKER,
        response_body_type=dict[str, models.ActiveTopics],
    ),
    Endpoint(
        method="PUT",
        path=f"{_CONNECTOR_PATH}/topics/reset",
        operation=Operation.RESET_TOPICS,
        role=Role.OPERATE,
        answered_by=AnsweredBy.ANY_WORKER,
        success_statuses=(202,),
    ),
    Endpoint(
        method="GET",
        path=f"{_CONNECTOR_PATH}/tasks",
        operation=Operation.DESCRIBE_TASKS,
        role=Role.READ,
        answered_by=AnsweredBy.ANY_WORKER,
        response_body_type=list[models.Task],
    ),
    Endpoint(
        method="GET",
        path=f"{_TASK_PATH}/status",
        operation=Operation.DESCRIBE_TASK_STATUS,
        role=Role.READ,
        answered_by=AnsweredBy.ANY_WORKER,
        response_body_type=models.TaskStatus,
    ),
    Endpoint(
        method="PUT",
        path=f"{_CONNECTOR_PATH}/pause",
        operation=Operation.PAUSE_CONNECTOR,
        role=Role.OPERATE,
        answered_by=AnsweredBy.ANY_WORKER,
        success_statuses=(202,),
    ),
    Endpoint(
        method="PUT",
        path=f"{_CONNECTOR_PATH}/resume",
        operation=Operation.RESUME_CONNECTOR,
        role=Role.OPERATE,
        answered_by=AnsweredBy.ANY_WORKER,
        success_statuses=(202,),
    ),
    Endpoint(
        method="PUT",
        path=f"{_CONNECTOR_PATH}/stop",
        operation=Operation.STOP_CONNECTOR,
        role=Role.OPERATE,
        answered_by=AnsweredBy.LEADER,
        success_statuses=(204,),
    ),
    Endpoint(
        method="POST",
        path=f"{_CONNECTOR_PATH}/restart",
        operation=Operation.RESTART_CONNECTOR,
        role=Role.OPERATE,
        answered_by=AnsweredBy.LEADER,
        type_by_query_parameter={"includeTasks": str, "onlyFailed": str},
        response_body_type=models.ConnectorStatus,
        success_statuses=(202, 204),
    ),
    Endpoint(
        method="POST",
        path=f"{_TASK_PATH}/restart",
        operation=Operation.RESTART_TASK,
        role=Role.OPERATE,
        answered_by=AnsweredBy.OWNER,
        success_statuses=(204,),
    ),
    # -- plug-ins -----------------------------------------------------------------------------------------------------
    Endpoint(
        method="GET",
        path="/connector-plugins",
        operation=Operation.LIST_PLUGINS,
        role=Role.READ,
        answered_by=AnsweredBy.ANY_WORKER,
        type_by_query_parameter={"connectorsOnly": str},
        response_body_type=list[models.Plugin],
    ),
    Endpoint(
        method="GET",
        path=_PLUGIN_CONFIG_PATH,
        operation=Operation.DESCRIBE_PLUGIN,
        role=Role.READ,
        answered_by=AnsweredBy.ANY_WORKER,
        type_by_query_parameter={"version": str},
        response_body_type=list[models.ConfigKey],
    ),
    Endpoint(
        method="PUT",
        path=f"{_PLUGIN_CONFIG_PATH}/validate",
        operation=Operation.VALIDATE_CONFIG,
        role=Role.ADMIN,
        answered_by=AnsweredBy.ANY_WORKER,
        request_body_type=models.ConfigToValidate,
        response_body_type=models.ConfigInfos,
    ),
    Endpoint(
        method="GET",
        path=f"{_CONNECTOR_PATH}/offsets",
        operation=Operation.DESCRIBE_OFFSETS,
        role=Role.READ,
        answered_by=AnsweredBy.ANY_WORKER,
        response_body_type=models.Offsets,
    ),
    Endpoint(
        method="PATCH",
        path=f"{_CONNECTOR_PATH}/offsets",
        operation=Operation.CHANGE_OFFSETS,
        role=Role.ADMIN,
        answered_by=AnsweredBy.LEADER,
        request_body_type=models.Offsets,
        response_body_type=models.Message,
    ),
    Endpoint(
        method="DELETE",
        path=f"{_CONNECTOR_PATH}/offsets",
        operation=Operation.RESET_OFFSETS,
        role=Role.ADMIN,
        answered_by=AnsweredBy.LEADER,
        response_body_type=models.Message,
    ),
    # -- loggers ------------------------------------------------------------------------------------------------------
    Endpoint(
        method="GET",
        path="/admin/loggers",
        operation=Operation.LIST_LOGGERS,
        role=Role.READ,
        answered_by=AnsweredBy.ANY_WORKER,
        listeners=ServingListeners.ADMIN,
        response_body_type=dict[str, models.Logger],
    ),
    Endpoint(
        method="GET",
        path="/admin/loggers/{logger}",
        operation=Operation.DESCRIBE_LOGGER,
        role=Role.READ,
        answered_by=AnsweredBy.ANY_WORKER,
        listeners=ServingListeners.ADMIN,
        response_body_type=models.Logger,
    ),
    Endpoint(
        method="PUT",
        path="/admin/loggers/{logger}",
        operation=Operation.SET_LOGGER_LEVEL,
        role=Role.ADMIN,
        answered_by=AnsweredBy.ANY_WORKER,
        listeners=ServingListeners.ADMIN,
        type_by_query_parameter={"scope": str},
        request_body_type=models.NewLoggerLevel,
        response_body_type=list[str],
        success_statuses=(200, 204),
    ),
    # -- requests of other workers ------------------------------------------------------------------------------------
    Endpoint(
        method="POST",
        path=f"{_CONNECTOR_PATH}/tasks",
        operation=Operation.PUT_TASK_CONFIGS,
        role=Role.WORKER,
        answered_by=AnsweredBy.LEADER,
        request_body_type=list[models.WrittenConfig],
        success_statuses=(204,),
    ),
    Endpoint(
        method="PUT",
        path=f"{_CONNECTOR_PATH}/fence",
        operation=Operation.FENCE_TASKS,
        role=Role.WORKER,
        answered_by=AnsweredBy.ANY_WORKER,
        success_statuses=(),
    ),
    # -- Coterie's own paths ------------------------------------------------------------------------------------------
    Endpoint(
        method="GET",
        path="/coterie/worker",
        operation=Operation.DESCRIBE_WORKER,
        role=Role.READ,
        answered_by=AnsweredBy.ANY_WORKER,
        accepts_any_content_type=True,
        response_body_type=models.JsonObject,
    ),
    Endpoint(
        method="GET",
        path="/coterie/group",
        operation=Operation.DESCRIBE_GROUP,
        role=Role.READ,
        answered_by=AnsweredBy.LEADER,
        accepts_any_content_type=True,
        response_body_type=models.JsonObject,
    ),
    Endpoint(
        method="POST",
        path=f"{_WORKER_PATH}/drain",
        operation=Operation.DRAIN_WORKER,
        role=Role.ADMIN,
        answered_by=AnsweredBy.OWNER,
        response_body_type=models.AcceptingWorker,
        success_statuses=(202,),
    ),
    Endpoint(
        method="DELETE",
        path=f"{_WORKER_PATH}/drain",
        operation=Operation.UNCORDON_WORKER,
        role=Role.ADMIN,
        answered_by=AnsweredBy.OWNER,
        response_body_type=models.AcceptingWorker,
        success_statuses=(202,),
    ),
    Endpoint(
        method="POST",
        path=f"{_WORKER_PATH}/restart",
        operation=Operation.RESTART_WORKER,
        role=Role.ADMIN,
        answered_by=AnsweredBy.OWNER,
        type_by_query_parameter={"moveJobs": str},
        response_body_type=models.AcceptingWorker,
        success_statuses=(202,),
    ),
)
"""All endpoints. Where two paths match a request, the first is used."""
MAIN_ENDPOINTS: Sequence[Endpoint] = tuple(one for one in ENDPOINTS if one.listeners is not ServingListeners.ADMIN)
"""The endpoints of ``listeners`` when the key ``admin.listeners`` is set."""
ADMIN_ENDPOINTS: Sequence[Endpoint] = tuple(one for one in ENDPOINTS if one.listeners is not ServingListeners.MAIN)
"""The endpoints of ``admin.listeners``."""
