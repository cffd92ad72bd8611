"""Requests to a leader that cannot be reached or refuses them."""

import httpx
import pytest

from coterie.nouns.errors import WorldError
from coterie.nouns.ids import Incarnation, WorkerUrl
from coterie.nouns.jobs import ConnectorName
from coterie.rest.leader import HttpLeaderClient, open_http_client

INCARNATION = Incarnation("i")


@pytest.mark.parametrize("url", ["http://h:abc/", "http://\u2100x:8083/", "", "ftp://h/"])
async def test_a_leader_with_an_invalid_url_cannot_be_reached(url: str) -> None:
    """A leader's metadata may contain any URL; its followers must not fail because of it."""
    async with open_http_client() as client:
        with pytest.raises(WorldError, match="The request to the leader at"):
            await HttpLeaderClient(client).publish_task_configs(
                WorkerUrl(url), ConnectorName("a"), INCARNATION, [], None
            )


@pytest.mark.parametrize("status_code", [301, 307, 308])
async def test_a_redirect_is_no_acceptance_of_task_configs(status_code: int) -> None:
    """A proxy in front of the leader may redirect the request, which httpx does not follow."""
    transport = httpx.MockTransport(lambda _: httpx.Response(status_code, headers={"Location": "http://h:2/"}))
    async with httpx.AsyncClient(transport=transport) as client:
        with pytest.raises(WorldError, match=f"refused the task configs with HTTP {status_code}"):
            await HttpLeaderClient(client).publish_task_configs(
                WorkerUrl("http://h:1/"), ConnectorName("a"), INCARNATION, [], None
            )


@pytest.mark.parametrize(
    ("body", "expected_end"),
    [
        (
            '{"error_code": 409, "message": "Cannot complete request"}',
            "refused the task configs with HTTP 409: Cannot complete request",
        ),
        ('{"echo": {"sasl.password": "open-sesame"}}', "refused the task configs with HTTP 409"),
        ("<html>open-sesame</html>", "refused the task configs with HTTP 409"),
    ],
)
async def test_a_refusal_is_quoted_only_if_it_has_the_format_of_a_leaders_error(body: str, expected_end: str) -> None:
    """Another server, such as a proxy, may quote the request in its response, and the error is logged."""
    transport = httpx.MockTransport(lambda _: httpx.Response(409, text=body))
    async with httpx.AsyncClient(transport=transport) as client:
        with pytest.raises(WorldError) as refused:
            await HttpLeaderClient(client).publish_task_configs(
                WorkerUrl("http://h:1/"), ConnectorName("a"), INCARNATION, [], None
            )
    assert str(refused.value).endswith(expected_end)
