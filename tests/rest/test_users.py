"""The file of the REST API's users."""

import json
import stat
from pathlib import Path

import pytest

from coterie.nouns.errors import WorldError
from coterie.rest.endpoints import Role
from coterie.rest.users import PasswordHash, RestUser, read_users, write_users


def test_users_are_read_as_they_were_written_and_no_password_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    users = {
        "alice": RestUser(role=Role.ADMIN, password_hash=PasswordHash.from_password("correct horse")),
        "CN=loader,O=Big Co": RestUser(role=Role.READ, password_hash=None),
    }
    write_users(path, users)
    assert read_users(path) == users
    assert "horse" not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_only_the_right_password_matches_and_equal_passwords_have_different_hashes() -> None:
    stored = PasswordHash.from_password("pässword")
    assert stored.matches_password("pässword")
    assert not stored.matches_password("password")
    assert PasswordHash.from_password("pässword") != stored


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 1}',
        '{"version": 1, "users": {"a": {"role": "worker"}}}',
        '{"version": 1, "users": {"a": {"role": "read", "scrypt": "!"}}}',
    ],
)
def test_another_file_is_refused_with_advice(tmp_path: Path, text: str) -> None:
    path = tmp_path / "users.json"
    path.write_text(text)
    with pytest.raises(WorldError, match=r"is not a file of REST users; .* `coterie rest user add`"):
        read_users(path)


def test_a_file_of_a_later_version_is_named(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    path.write_text(json.dumps({"version": 2, "users": {}}))
    with pytest.raises(WorldError, match="have version 2; this Coterie reads version 1: use the version"):
        read_users(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match=r"users\.json cannot be read: No such file"):
        read_users(tmp_path / "users.json")
