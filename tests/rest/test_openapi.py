"""The OpenAPI document, and a live worker that schemathesis compares with it: every endpoint with valid and invalid
requests, and sequences of requests, with and without users.
"""

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis import GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import positive_data_acceptance

from coterie.config.reloaded_files import ReloadedFiles
from coterie.rest.access import AccessRules
from coterie.rest.endpoints import ENDPOINTS, Role
from coterie.rest.openapi import openapi_document_for_clients
from coterie.rest.users import PasswordHash, RestUser, read_users, write_users
from coterie.wire.connect import ConnectProtocol
from tests.rest.served import ServedCluster

PASSWORD = "pw"
LOGIN = "Basic " + base64.b64encode(f"alice:{PASSWORD}".encode()).decode()
EXCLUDED_CHECKS: list[Any] = [positive_data_acceptance]
"""A body with the right structure may contain an invalid config, which is refused."""
SETTINGS = hypothesis.settings(
    max_examples=10, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)


def test_the_document_has_every_endpoint_of_clients_and_only_schemas_that_exist() -> None:
    document = openapi_document_for_clients(ENDPOINTS)
    documented = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert documented == {
        (endpoint.method, endpoint.path.replace(":path}", "}"))
        for endpoint in ENDPOINTS
        if endpoint.role is not Role.WORKER
    }
    references = set(_references(document["paths"])) | set(_references(document["components"]))
    assert references == {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}


def _references(node: object) -> Iterator[str]:
    match node:
        case {"$ref": str(reference)}:
            yield reference
        case dict():
            for child in node.values():
                yield from _references(child)
        case list():
            for child in node:
                yield from _references(child)
        case _:
            pass


@pytest.fixture(scope="module", params=["everyone", Role.READ, Role.ADMIN])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str | None]]:
    """The URL of a worker whose loop runs on a thread, and the header by which a client logs in."""
    access = None
    if isinstance(request.param, Role):
        path: Path = tmp_path_factory.mktemp("users") / "users.json"
        write_users(path, {"alice": RestUser(role=request.param, password_hash=PasswordHash.from_password(PASSWORD))})
        access = AccessRules(users=ReloadedFiles("users", [path], lambda: read_users(path)))
    urls: list[str] = []
    started, ended = Event(), Event()

    async def serve() -> None:
        async with ServedCluster(protocol=ConnectProtocol.STATIC) as cluster:
            urls.append((await cluster.serve(access=access)).url)
            started.set()
            await asyncio.to_thread(ended.wait)

    thread = Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert started.wait(30)
        yield urls[0], None if access is None else LOGIN
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_the_responses_of_a_worker_match_its_document(served: tuple[str, str | None], mode: GenerationMode) -> None:
    url, login = served
    headers = {} if login is None else {"Authorization": login}
    schema = schemathesis.openapi.from_url(f"{url}/coterie/openapi.json", headers=headers)
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), result
        operation = result.ok()
        if mode is GenerationMode.NEGATIVE and not (operation.body or operation.path_parameters):
            continue  # No request for it can contradict the document.

        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        @SETTINGS
        def check(case: "schemathesis.Case[Any]") -> None:
            case.call_and_validate(headers=headers, timeout=30, excluded_checks=EXCLUDED_CHECKS)

        check()


def test_the_responses_to_sequences_of_requests_match_the_document(served: tuple[str, str | None]) -> None:
    url, login = served
    headers = {} if login is None else {"Authorization": login}
    schema = schemathesis.openapi.from_url(f"{url}/coterie/openapi.json", headers=headers)

    class Sequences(schema.as_state_machine()):  # type: ignore[misc]
        def get_call_kwargs(self, case: "schemathesis.Case[Any]") -> dict[str, Any]:
            return {"headers": headers, "timeout": 30}

        def validate_response(self, response: Any, case: "schemathesis.Case[Any]", **_: Any) -> None:
            case.validate_response(response, excluded_checks=EXCLUDED_CHECKS)

    Sequences.run(settings=hypothesis.settings(SETTINGS, max_examples=5, stateful_step_count=8))
