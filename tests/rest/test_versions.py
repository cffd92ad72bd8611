"""``ETag``, ``If-Match`` and PATCH over HTTP, at any worker."""

import asyncio

from tests.rest.served import JSON, ServedCluster, ServedWorker

CONFIG = {"connector.class": "SimulatedSource", "tasks.max": "1"}


async def created(cluster: ServedCluster, workers: int) -> list[ServedWorker]:
    """Workers of a group with the connector ``a``."""
    served = [await cluster.serve() for _ in range(workers)]
    assert (await served[0].ask("POST", "/connectors", {"name": "a", "config": CONFIG})).status_code == 201
    return served


async def test_every_worker_shows_the_same_version_which_changes_with_each_write(cluster: ServedCluster) -> None:
    workers = await created(cluster, 3)
    versions = []
    for worker in workers:
        written = await worker.ask("PUT", "/connectors/a/config", CONFIG)
        paths = ("/connectors/a", "/connectors/a/config")
        shown = {(await reader.get(path)).headers["etag"] for reader in workers for path in paths}
        assert shown == {written.headers["etag"]}
        versions.append(written.headers["etag"])
    assert len(set(versions)) == len(workers)


async def test_ten_writers_with_if_match_lose_no_write(cluster: ServedCluster) -> None:
    workers = await created(cluster, 3)

    async def add_one(worker: ServedWorker) -> int:
        """Increment the number in the config, as often as it takes; return how often it was refused."""
        for refusals in range(100):
            read = await worker.get("/connectors/a/config")
            config = {**read.json(), "sum": str(int(read.json().get("sum", "0")) + 1)}
            headers = {**JSON, "If-Match": read.headers["etag"]}
            answer = await worker.ask("PUT", "/connectors/a/config", body=config, headers=headers)
            if answer.status_code == 200:
                return refusals
            assert (answer.status_code, answer.json()["error_code"]) == (412, 412)
        raise AssertionError("refused 100 times")

    refusals = await asyncio.gather(*(add_one(workers[number % 3]) for number in range(10)))
    assert (await workers[0].get("/connectors/a/config")).json()["sum"] == "10"
    assert sum(refusals), "no two writers have met: this test shows nothing"


async def test_ten_patches_of_different_keys_are_all_applied(cluster: ServedCluster) -> None:
    workers = await created(cluster, 3)
    patches = (
        workers[number % 3].ask("PATCH", "/connectors/a/config", {f"key.{number}": str(number)}) for number in range(10)
    )
    assert {answer.status_code for answer in await asyncio.gather(*patches)} == {200}
    config = (await workers[0].get("/connectors/a/config")).json()
    assert config == {**CONFIG, "name": "a", **{f"key.{number}": str(number) for number in range(10)}}


STATUS_BY_IF_MATCH = {
    "*": 200,
    '"0", "{version}"': 200,
    '"{version}"': 200,
    'W/"{version}"': 412,
    "{version}": 412,
    '"0{version}"': 412,
    f'"{"1" * 5000}"': 412,
    '"x"': 412,
    '"': 412,
}


async def test_the_forms_of_if_match(cluster: ServedCluster) -> None:
    (worker,) = await created(cluster, 1)
    for if_match, status in STATUS_BY_IF_MATCH.items():
        version = (await worker.get("/connectors/a")).headers["etag"].strip('"')
        headers = {**JSON, "If-Match": if_match.replace("{version}", version)}
        answer = await worker.ask("PATCH", "/connectors/a/config", body={"b": "1"}, headers=headers)
        assert answer.status_code == status, if_match


INVALID_PATCHES: list[tuple[object, str]] = [
    ({"name": "b"}, "Connector name configuration (b) doesn't match connector name in the URL (a)"),
    ({"name": None}, 'Missing required configuration "name" which has no default value.'),
    ({"tasks.max": "0"}, "Invalid value 0 for configuration tasks.max: Value must be at least 1"),
    ([], "Cannot read a config"),
    ({"a": {}}, "as a string"),
]


async def test_an_invalid_patch_is_refused(cluster: ServedCluster) -> None:
    (worker,) = await created(cluster, 1)
    for patch, message in INVALID_PATCHES:
        answer = await worker.ask("PATCH", "/connectors/a/config", patch)
        assert answer.status_code == 400, patch
        assert message in answer.json()["message"]
        assert (await worker.get("/connectors/a/config")).json() == {**CONFIG, "name": "a"}


async def test_a_patch_of_an_unknown_connector_is_a_404_as_recorded(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    answer = await worker.ask("PATCH", "/connectors/nope/config", {"a": "b"})
    assert (answer.status_code, answer.json()["message"]) == (404, "Connector nope not found")
