"""Configs of connectors as the caller of a request may see them."""

from collections.abc import Mapping
from dataclasses import replace

from starlette.requests import Request

from coterie.config.secrets import masked_config
from coterie.herder.requests.reads import ConnectorInfo
from coterie.rest.endpoints import Role
from coterie.rest.request_context import context_of


def config_masked_unless_admin(request: Request, config: Mapping[str, str]) -> Mapping[str, str]:
    """``config`` as the caller of ``request`` may see it: for a caller with the role ADMIN, who may write configs,
    exactly as it was written; for every other caller with masked secret values (:func:`masked_config`)."""
    caller = context_of(request).caller
    return config if caller is not None and caller.role is Role.ADMIN else masked_config(config)


def with_config_masked_unless_admin(request: Request, info: ConnectorInfo) -> ConnectorInfo:
    """``info`` with its config as the caller of ``request`` may see it (:func:`config_masked_unless_admin`)."""
    return replace(info, config=config_masked_unless_admin(request, info.config))
