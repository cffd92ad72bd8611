"""The folder from which a worker takes jars."""

from pathlib import Path

import pytest

from coterie.cli.workers.compose import jar_settings_unless_default_missing
from coterie.config.worker import WorkerSettings
from coterie.nouns.errors import WorldError
from coterie.spark.settings import JarSettings

REQUIRED = {
    "group.id": "fleet",
    "config.storage.topic": "fleet-configs",
    "offset.storage.topic": "fleet-offsets",
    "status.storage.topic": "fleet-status",
    "checkpoint.location": "/shared/checkpoints",
}


def jars_with(**keys: str) -> JarSettings | None:
    properties = REQUIRED | {key.replace("_", "."): value for key, value in keys.items()}
    return jar_settings_unless_default_missing(WorkerSettings.from_properties(properties))


def test_a_worker_uses_the_users_cache_folder_if_it_contains_jars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "coterie" / "jars"
    assert jars_with() is None
    assert jars_with(jars_fetch="true") == JarSettings(folder=folder, fetches_missing_jars=True)
    folder.mkdir(parents=True)
    assert jars_with() == JarSettings(folder=folder)


def test_a_configured_folder_that_does_not_exist_is_refused_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match=rf"^jars\.dir: there is no folder {tmp_path}/none; run `coterie jars fetch"):
        jars_with(jars_dir=f"{tmp_path}/none")
    assert jars_with(jars_dir=f"{tmp_path}/none", jars_fetch="true") == JarSettings(
        folder=tmp_path / "none", fetches_missing_jars=True
    )
    assert jars_with(jars_dir=str(tmp_path), jars_mirror="http://m") == JarSettings(
        folder=tmp_path, repository_url="http://m"
    )


def test_a_user_without_a_home_folder_gets_sparks_own_jars_and_cannot_fetch_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert jars_with() is None
    with pytest.raises(WorldError, match=r"no home folder .* jars\.dir=FOLDER"):
        jars_with(jars_fetch="true")
