"""``/connector-plugins``: lists this worker's plug-ins, describes their config keys, and validates configs."""

from starlette.requests import Request
from starlette.responses import Response

from coterie.config.infos import ConfigInfos
from coterie.herder.requests.questions import (
    DescribePlugin,
    ListPlugins,
    PluginConfigKeys,
    PluginList,
    ValidateConnectorConfig,
)
from coterie.rest import bodies, plugin_views
from coterie.rest.endpoints import Operation
from coterie.rest.herder_requests import HerderClient
from coterie.rest.json_response import JSONResponse
from coterie.rest.problems import BadRequestError
from coterie.rest.request_parameters import is_query_value_true, query_value
from coterie.rest.routing import Handlers

_CONNECTOR_SUFFIX = "Connector"
"""The end of the names of Connect's connector classes, which a config may leave out."""


class PluginsResource:
    """The HTTP handlers of one worker for ``/connector-plugins``."""

    def __init__(self, herder: HerderClient) -> None:
        self._herder = herder

    def handlers(self) -> Handlers:
        """The methods of this object that handle the requests, by operation of the endpoint."""
        return {
            Operation.LIST_PLUGINS: self.list_plugins,
            Operation.DESCRIBE_PLUGIN: self.describe_plugin,
            Operation.VALIDATE_CONFIG: self.validate_config,
        }

    async def list_plugins(self, request: Request) -> Response:
        """The sources and sinks of this worker; all its plug-ins if the query has a value of ``connectorsOnly`` other
        than ``true``."""
        connectors_only = is_query_value_true(request, "connectorsOnly", default=True)
        plugins = await self._herder.ask(ListPlugins(connectors_only=connectors_only), PluginList)
        return JSONResponse(plugin_views.plugins_json(plugins.plugins))

    async def describe_plugin(self, request: Request) -> Response:
        """The config keys of the plug-in in the path. With ``?version=``, one version or a range of versions (KIP-891),
        the request is refused if the plug-in of this worker has another version."""
        question = DescribePlugin(name=request.path_params["plugin"], version_range=query_value(request, "version"))
        keys = await self._herder.ask(question, PluginConfigKeys)
        return JSONResponse(plugin_views.config_keys_json(keys.keys))

    async def validate_config(self, request: Request) -> Response:
        """The result of the validation of a config: the definition, value and errors of each key.

        :raises BadRequestError: when the path and the config name different plug-ins.
        :raises HerderRefusal: when the config names no plug-in.
        """
        config = await bodies.parse_on_thread_if_large(bodies.parse_config_with_nulls, await bodies.read_body(request))
        plugin, connector_class = request.path_params["plugin"], config.get("connector.class")
        if connector_class is not None and not _without_connector_suffix(connector_class).endswith(
            _without_connector_suffix(plugin)
        ):
            raise BadRequestError(f"Included connector type {connector_class} does not match request type {plugin}")
        infos = await self._herder.ask(ValidateConnectorConfig(config=config), ConfigInfos)
        return JSONResponse(plugin_views.config_infos_json(infos))


def _without_connector_suffix(plugin: str) -> str:
    """The name ``plugin`` without the suffix ``Connector``, for a comparison: a path or a config may leave out this
    suffix."""
    return plugin.removesuffix(_CONNECTOR_SUFFIX) or plugin
