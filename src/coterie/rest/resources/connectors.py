"""``/connectors``: creates, lists, describes and deletes connectors, and changes their configs."""

from collections.abc import Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.reads import (
    ConnectorInfo,
    ConnectorNames,
    DescribeConnector,
    ListConnectors,
)
from coterie.herder.requests.writes import (
    DeleteConnector,
    DeletedConnector,
    PatchConnector,
    PutConnector,
    WrittenConnector,
)
from coterie.nouns.jobs import ConnectorName
from coterie.rest import bodies, problems, views
from coterie.rest.endpoints import Operation
from coterie.rest.herder_requests import HerderClient
from coterie.rest.json_response import JSONResponse
from coterie.rest.path_encoding import encoded_path
from coterie.rest.request_parameters import connector_in_path
from coterie.rest.routing import Handlers
from coterie.rest.versions import etag_headers, if_match_of
from coterie.rest.visible_configs import config_masked_unless_admin, with_config_masked_unless_admin


class ConnectorConfigsResource:
    """The HTTP handlers of one worker for ``/connectors``: connectors and their configs."""

    def __init__(self, herder: HerderClient) -> None:
        self._herder = herder

    def handlers(self) -> Handlers:
        """The methods of this object that handle the requests, by operation of the endpoint."""
        return {
            Operation.LIST_CONNECTORS: self.list_connectors,
            Operation.CREATE_CONNECTOR: self.create_connector,
            Operation.DESCRIBE_CONNECTOR: self.describe_connector,
            Operation.DELETE_CONNECTOR: self.delete_connector,
            Operation.DESCRIBE_CONFIG: self.describe_config,
            Operation.PUT_CONFIG: self.put_config,
            Operation.PATCH_CONFIG: self.patch_config,
        }

    async def list_connectors(self, request: Request) -> Response:
        """The names of all connectors, as a list. With ``?expand=info`` or ``?expand=status``, or both, an object
        instead: by connector name, an object with these parts. As in Connect, another value of ``expand`` adds no
        part."""
        connectors = (await self._herder.ask(ListConnectors(), ConnectorNames)).connectors
        expansions = frozenset(request.query_params.getlist("expand"))
        if expansions:
            return await self._expanded_connectors_response(request, connectors, expansions)
        return JSONResponse(list(connectors))

    async def _expanded_connectors_response(
        self, request: Request, connectors: Sequence[ConnectorName], expansions: frozenset[str]
    ) -> Response:
        """The response with the parts ``expansions`` of all ``connectors``. A connector that is deleted meanwhile is
        left out, as in Connect."""
        entries = []
        async for piece in self._herder.describe_existing_connectors_in_pieces(connectors):
            for info, status in piece:
                visible = with_config_masked_unless_admin(request, info)
                entry = views.connector_json_unless_status_missing(
                    visible, status, expansions, self._herder.worker.connector_type
                )
                if entry is not None:
                    entries.append(JSONResponse({info.connector: entry}).body[1:-1])
        return Response(b"{" + b",".join(entries) + b"}", media_type="application/json")

    async def create_connector(self, request: Request) -> Response:
        body = await bodies.read_body(request)
        new_connector = await bodies.parse_on_thread_if_large(bodies.parse_new_connector, body)
        config = bodies.check_and_set_connector_name(new_connector.config, new_connector.name)
        herder_request = PutConnector(
            connector=ConnectorName(new_connector.name),
            config=config,
            may_replace=False,
            initial_state=new_connector.initial_state,
            initial_offsets=new_connector.initial_offsets,
        )
        return await self._herder.ask_or_forward(
            request, body, herder_request, self._written_connector_response_or_raise
        )

    async def describe_connector(self, request: Request) -> Response:
        info = await self._herder.ask(DescribeConnector(connector=connector_in_path(request)), ConnectorInfo)
        info_json = views.connector_info_json(
            with_config_masked_unless_admin(request, info), self._herder.worker.connector_type
        )
        return JSONResponse(info_json, headers=etag_headers(info))

    async def delete_connector(self, request: Request) -> Response:
        herder_request = DeleteConnector(connector=connector_in_path(request), if_match=if_match_of(request))
        return await self._herder.ask_or_forward(
            request, b"", herder_request, self._deleted_connector_response_or_raise
        )

    async def describe_config(self, request: Request) -> Response:
        info = await self._herder.ask(DescribeConnector(connector=connector_in_path(request)), ConnectorInfo)
        return JSONResponse(dict(config_masked_unless_admin(request, info.config)), headers=etag_headers(info))

    async def put_config(self, request: Request) -> Response:
        body = await bodies.read_body(request)
        name = connector_in_path(request)
        herder_request = PutConnector(
            connector=name,
            config=bodies.check_and_set_connector_name(
                await bodies.parse_on_thread_if_large(bodies.parse_config, body), name
            ),
            may_replace=True,
            if_match=if_match_of(request),
        )
        return await self._herder.ask_or_forward(
            request, body, herder_request, self._written_connector_response_or_raise
        )

    async def patch_config(self, request: Request) -> Response:
        """Change the keys of the connector's config that the body contains; null removes a key (KIP-477)."""
        body = await bodies.read_body(request)
        name = connector_in_path(request)
        patch = await bodies.parse_on_thread_if_large(partial(bodies.parse_config_patch, name=name), body)
        herder_request = PatchConnector(connector=name, patch=patch, if_match=if_match_of(request))
        return await self._herder.ask_or_forward(
            request, body, herder_request, self._written_connector_response_or_raise
        )

    def _deleted_connector_response_or_raise(self, answer: Answer) -> Response:
        """The empty response to a deletion.

        :raises HerderRefusal: when the herder refused the request.
        """
        problems.answer_or_raise(answer, DeletedConnector)
        return Response(status_code=204)

    def _written_connector_response_or_raise(self, answer: Answer) -> Response:
        """The response to a written connector config: 201 if the write has created the connector, 200 if it has
        replaced a config.

        :raises HerderRefusal: when the herder refused the request.
        """
        written = problems.answer_or_raise(answer, WrittenConnector)
        written_json = views.written_connector_json(written, self._herder.worker.connector_type)
        if not written.created:
            return JSONResponse(written_json, headers=etag_headers(written.info))
        location = encoded_path(("connectors", written.info.connector))
        return JSONResponse(written_json, status_code=201, headers={"Location": location, **etag_headers(written.info)})
