"""The OpenAPI document of a worker's HTTP API, made from the table of endpoints."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import TypeAdapter

from coterie import __version__
from coterie.rest import models
from coterie.rest.endpoints import JSON, Endpoint, Role
from coterie.rest.paths import PathTemplate

_REF_TEMPLATE = "#/components/schemas/{model}"
_PARAMETER_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "task": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
}
"""The schemas of path parameters that are not names."""
_NAME_SCHEMA: Mapping[str, Any] = {"type": "string", "minLength": 1, "pattern": r"^[^/\x00-\x1f\x7f]+$"}


def openapi_document_for_clients(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """The OpenAPI 3.1 document of ``endpoints``, without those that only other workers use."""
    schemas: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        if endpoint.role is not Role.WORKER:
            path = endpoint.path.replace(":path}", "}")
            paths.setdefault(path, {})[endpoint.method.lower()] = _operation_object(endpoint, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Coterie",
            "version": __version__,
            "description": "Kafka Connect's REST API, and Coterie's own paths under /coterie.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
        },
        # The empty object: users need not log in to a worker without rest.users.file.
        "security": [{"basic": []}, {}],
    }


def _operation_object(endpoint: Endpoint, schemas: dict[str, Any]) -> dict[str, Any]:
    """OpenAPI's description of ``endpoint``, an operation; the schemas that it refers to are added to ``schemas``."""
    operation: dict[str, Any] = {
        "operationId": endpoint.operation.value,
        "tags": [endpoint.path.split("/")[1] or "worker"],
        "description": f"Role: {endpoint.role}. Answered by: {endpoint.answered_by.replace('_', ' ')}.",
        "parameters": [*_path_parameters(endpoint), *_query_parameters(endpoint, schemas)],
        "responses": {str(status): _response_object(endpoint, status, schemas) for status in endpoint.success_statuses},
    }
    operation["responses"]["default"] = {
        "description": "The request was refused. A request without a log-in gets a text.",
        "content": {
            JSON: {"schema": {"anyOf": [_make_schema_and_add_models(models.Error, schemas), {"type": "string"}]}}
        },
    }
    if endpoint.request_body_type is not None:
        content = {JSON: {"schema": _make_schema_and_add_models(endpoint.request_body_type, schemas)}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _path_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    """OpenAPI's description of each parameter in the path of ``endpoint``."""
    names = [
        segment.strip("{}").removesuffix(":path")
        for segment in PathTemplate.parse(endpoint.path).segments
        if segment.startswith("{")
    ]
    return [
        {"name": name, "in": "path", "required": True, "schema": _PARAMETER_SCHEMAS.get(name, _NAME_SCHEMA)}
        for name in names
    ]


def _query_parameters(endpoint: Endpoint, schemas: dict[str, Any]) -> list[dict[str, Any]]:
    """OpenAPI's description of each parameter in the query of ``endpoint``; the schemas that these refer to are added
    to ``schemas``."""
    return [
        {"name": name, "in": "query", "required": False, "schema": _make_schema_and_add_models(type_, schemas)}
        for name, type_ in endpoint.type_by_query_parameter.items()
    ]


def _response_object(endpoint: Endpoint, status: int, schemas: dict[str, Any]) -> dict[str, Any]:
    """OpenAPI's description of the response of ``endpoint`` to a success with ``status``; the schemas that it refers to
    are added to ``schemas``."""
    if endpoint.response_body_type is None or status == 204:
        return {"description": "Success"}
    return {
        "description": "Success",
        "content": {
            endpoint.response_media_type: {"schema": _make_schema_and_add_models(endpoint.response_body_type, schemas)}
        },
    }


def _make_schema_and_add_models(type_: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of a type; the schemas of the models in it are added to ``schemas``."""
    schema = TypeAdapter(type_).json_schema(by_alias=True, ref_template=_REF_TEMPLATE)
    schemas.update(schema.pop("$defs", {}))
    return schema
