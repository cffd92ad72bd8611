"""The users of a worker's REST API, in one file that only its owner can read: names, roles, and salted hashes of
passwords. A user without a password is known by the name in a client certificate.

`coterie rest user` changes the file, and workers read it again when it changes.
"""

import base64
import binascii
import fcntl
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from coterie.config.durable_files import replace_private_file
from coterie.nouns.errors import WorldError
from coterie.rest.endpoints import USER_ROLES, Role

_SALT_SIZE_BYTES = 16
_SCRYPT_COST = 1 << 14
"""scrypt's cost N. With :data:`_SCRYPT_BLOCK_SIZE`, one hash takes about 40 ms and 16 MB."""
_SCRYPT_BLOCK_SIZE = 8
"""scrypt's block size r."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordHash:
    """A salted hash of a password, by scrypt (RFC 7914)."""

    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)

    @classmethod
    def from_password(cls, password: str) -> Self:
        """The hash of ``password`` with a fresh salt. Takes about 40 ms."""
        salt = secrets.token_bytes(_SALT_SIZE_BYTES)
        return cls(salt=salt, digest=_scrypt(password, salt))

    def matches_password(self, password: str) -> bool:
        """Whether this is the hash of ``password``. Takes about 40 ms, whatever the password."""
        return hmac.compare_digest(_scrypt(password, self.salt), self.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestUser:
    """One user of the REST API, whose name is the key in :data:`Users`."""

    role: Role
    """One of :data:`USER_ROLES`."""
    password_hash: PasswordHash | None
    """None: the user has no password, and logs in with a client certificate that has the user's name."""


Users = Mapping[str, RestUser]
"""The users by name."""


def read_users(path: Path) -> Users:
    """The users in the file ``path``.

    :raises WorldError: when the file cannot be read, is not a users file, or has another version than 1.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["version"] != 1:
            raise WorldError(
                f"the users in {path} have version {document['version']}; this Coterie reads version 1: use the "
                "version of Coterie that has written the file"
            )
        return {name: _decode_user(user) for name, user in document["users"].items()}
    except OSError as error:
        raise WorldError(f"the users in {path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise WorldError(
            f"the file {path} is not a file of REST users; move it away and add the users again with "
            "`coterie rest user add`"
        ) from error


@contextmanager
def locked_users_file(path: Path) -> Iterator[None]:
    """Context manager: in the block, no other process changes the file ``path`` that also uses this function. Waits for
    another process. The lock is on the file's folder, since a change replaces the file.

    :raises WorldError: when the folder cannot be opened.
    """
    try:
        folder = os.open(path.absolute().parent, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise WorldError(f"the folder of {path} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def write_users(path: Path, users: Users) -> None:
    """Replace the file ``path`` by one with ``users``, durably.

    :raises WorldError: when the file cannot be written.
    """
    document = {"version": 1, "users": {name: _encode_user(user) for name, user in sorted(users.items())}}
    try:
        replace_private_file(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise WorldError(f"the users in {path} cannot be written: {error.strerror}") from error


def _encode_user(user: RestUser) -> Mapping[str, str]:
    """A user as JSON values."""
    if user.password_hash is None:
        return {"role": user.role.value}
    return {
        "role": user.role.value,
        "salt": base64.b64encode(user.password_hash.salt).decode(),
        "scrypt": base64.b64encode(user.password_hash.digest).decode(),
    }


def _decode_user(encoded: Mapping[str, str]) -> RestUser:
    """The user in ``encoded``, JSON values that :func:`_encode_user` made; without a hash, a user without a password.

    :raises KeyError: when the role is missing, or there is a hash without its salt.
    :raises ValueError: when ``encoded`` contains a role that no user can have, or salt or hash are not base64.
    """
    role = Role(encoded["role"])
    if role not in USER_ROLES:
        raise ValueError(f"{role} is not a role of a user; the roles are {', '.join(USER_ROLES)}")
    if "scrypt" not in encoded:
        return RestUser(role=role, password_hash=None)
    salt, digest = base64.b64decode(encoded["salt"]), base64.b64decode(encoded["scrypt"])
    return RestUser(role=role, password_hash=PasswordHash(salt=salt, digest=digest))


def _scrypt(password: str, salt: bytes) -> bytes:
    """The hash of ``password`` with ``salt``, by scrypt."""
    return hashlib.scrypt(password.encode(), salt=salt, n=_SCRYPT_COST, r=_SCRYPT_BLOCK_SIZE, p=1, maxmem=1 << 26)
