"""The way to the leader, where it leads nowhere."""

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
