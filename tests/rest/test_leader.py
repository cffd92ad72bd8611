"""The way to the leader, where it leads nowhere."""

import httpx
import pytest

from coterie.nouns.errors import WorldError
from coterie.nouns.ids import WorkerUrl
from coterie.nouns.jobs import ConnectorName
from coterie.rest.leader import HttpLeaderClient, open_client


@pytest.mark.parametrize("url", ["http://h:abc/", "http://\u2100x:8083/", "", "ftp://h/"])
async def test_a_leader_whose_url_is_none_cannot_be_reached(url: str) -> None:
    """A leader says of itself what it likes; of that its followers do not die."""
    async with open_client() as client:
        with pytest.raises(WorldError, match="cannot be reached"):
            await HttpLeaderClient(client).publish_task_configs(WorkerUrl(url), ConnectorName("a"), [], None)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ('{"error_code": 409, "message": "Cannot complete request"}', "answered 409: Cannot complete request"),
        ('{"echo": {"sasl.password": "open-sesame"}}', "answered 409"),
        ("<html>open-sesame</html>", "answered 409"),
    ],
)
async def test_a_leader_that_refuses_is_quoted_only_in_its_own_form(body: str, told: str) -> None:
    """What else answers, a proxy perhaps, may repeat what it was sent, and this ends in a log."""
    transport = httpx.MockTransport(lambda _: httpx.Response(409, text=body))
    async with httpx.AsyncClient(transport=transport) as client:
        with pytest.raises(WorldError) as refused:
            await HttpLeaderClient(client).publish_task_configs(WorkerUrl("http://h:1/"), ConnectorName("a"), [], None)
    assert str(refused.value).endswith(told)
