"""The users of the broker: names and salted credentials, in one file that only its owner can read.

They are in a file and not in the log, for two reasons: `coterie broker user` changes the file while a broker runs,
which locks its log against other processes; and a backup of the log contains no credentials. The file is replaced as a
whole by a rename, so a reader gets either the old users or the new ones. A running broker checks at every login for a
newer file. If the new file cannot be read, or the file was deleted, the broker keeps the old users, as with
certificates and access rules, and logs one error for each change.
"""

import base64
import binascii
import hmac
import json
import logging
import secrets
from collections.abc import Mapping
from pathlib import Path

from coterie.broker.storage.folder import make_folder_private_if_new
from coterie.config.durable_files import replace_private_file
from coterie.nouns.errors import WorldError
from coterie.wire.scram import HASH_BY_MECHANISM, Credential

logger = logging.getLogger(__name__)

ITERATIONS = 16_384
"""The number of iterations of SCRAM's hash for a new password. RFC 7677 requires at least 15,000; this number is
Kafka's maximum. Checking a password takes about 5 ms."""
_SALT_SIZE = 18
"""The size of a credential's salt, in bytes."""

CredentialsByMechanism = Mapping[str, Credential]
"""A user's credentials by mechanism."""


class BrokerUsersFile:
    """The users in the file at ``path``; there are none if the file does not exist and was not read before. All methods
    block, and first read the file if it has changed. `add` replaces the password of a user that exists, and returns
    whether the user is new; `remove` returns whether the user existed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._users: Mapping[str, CredentialsByMechanism] = {}
        self._last_error = ""
        """The error of the last read by `find_or_fake_credentials`; empty if the read succeeded."""
        self._unknown_user_secret = secrets.token_bytes(32)
        """A secret from which the salts of unknown users are derived."""

    def find_or_fake_credentials(self, name: str) -> CredentialsByMechanism:
        """The credentials of the user ``name``, after a check for a newer file. An unknown user gets credentials that
        match no password, with the same salt during one run of the broker, so that a client cannot find out which users
        exist. If the file cannot be read, the users read last are used."""
        self._refresh_or_keep()
        return self._users.get(name) or {
            mechanism: Credential(
                salt=_derive_salt(self._unknown_user_secret, mechanism, name)[:_SALT_SIZE],
                iterations=ITERATIONS,
                stored_key=secrets.token_bytes(64 if "512" in mechanism else 32),
                server_key=bytes(64),
            )
            for mechanism in HASH_BY_MECHANISM
        }

    def read_names(self) -> list[str]:
        """The names of all users, sorted.

        :raises WorldError: the file cannot be read, is not a users file, or was deleted since it was read.
        """
        self._refresh()
        return sorted(self._users)

    def add(self, name: str, password: str) -> bool:
        """Add a user, or replace the user's password; returns whether the user is new.

        :raises WorldError: the file cannot be read or written.
        """
        self._refresh()
        is_new = name not in self._users
        made = {
            mechanism: Credential.from_password(
                mechanism, password, salt=secrets.token_bytes(_SALT_SIZE), iterations=ITERATIONS
            )
            for mechanism in HASH_BY_MECHANISM
        }
        self._write_users({**self._users, name: made})
        return is_new

    def remove(self, name: str) -> bool:
        """Remove a user; returns whether the user existed. The user's open connections stay open.

        :raises WorldError: the file cannot be read or written.
        """
        self._refresh()
        if name not in self._users:
            return False
        self._write_users({other: user for other, user in self._users.items() if other != name})
        return True

    def _refresh_or_keep(self) -> None:
        """Read the file if it has changed. If the file cannot be read, keep the users that were read last, and log the
        error, unless the last call logged the same error."""
        try:
            self._refresh()
        except WorldError as error:
            # Log an error once, although every login tries to read the file.
            if self._last_error != str(error):
                logger.error(
                    "Cannot reload the users, the previous users stay in use until the file is valid again; the broker "
                    "tries again at each login: %s",
                    error,
                )
            self._last_error = str(error)
        else:
            self._last_error = ""

    def _refresh(self) -> None:
        """Read the file if it has changed. If it does not exist and was not read before, there are no users.

        :raises WorldError: the file cannot be read, is not a users file, or was deleted since it was read.
        """
        try:
            status = self._path.stat()
        except FileNotFoundError as error:
            if self._stamp is None:
                return
            raise WorldError(
                f"the users file {self._path} is missing; restore it, or add the users again with"
                " `coterie broker user add`"
            ) from error
        except OSError as error:
            raise WorldError(f"the users in {self._path} cannot be read: {error.strerror}") from error
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        if stamp != self._stamp:
            self._users = _read_existing_users_file(self._path)
            self._stamp = stamp

    def _write_users(self, users: Mapping[str, CredentialsByMechanism]) -> None:
        """Replace the file by one with ``users``, durably; then read it.

        :raises WorldError: the file cannot be written or read.
        """
        text = json.dumps(
            {"version": 1, "users": {name: _encode_credentials(user) for name, user in sorted(users.items())}}, indent=1
        )
        try:
            make_folder_private_if_new(self._path.parent)
            replace_private_file(self._path, text + "\n")
        except OSError as error:
            raise WorldError(f"the users in {self._path} cannot be written: {error.strerror}") from error
        self._refresh()


# -- the file ---------------------------------------------------------------------------------------------------------


def _read_existing_users_file(path: Path) -> Mapping[str, CredentialsByMechanism]:
    """The credentials by user and mechanism in the file ``path``.

    :raises WorldError: the file cannot be read or is not a users file.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["version"] != 1:
            raise WorldError(f"the users in {path} have version {found['version']}; this broker supports version 1")
        return {
            name: {mechanism: _decode_credential(user[mechanism]) for mechanism in HASH_BY_MECHANISM}
            for name, user in found["users"].items()
        }
    except OSError as error:
        raise WorldError(f"the users in {path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise WorldError(
            f"the file {path} is not a users file; move it away and add the users again with `coterie broker user add`"
        ) from error


def _encode_credentials(user: CredentialsByMechanism) -> Mapping[str, Mapping[str, object]]:
    """A user's credentials by mechanism, as JSON values."""
    return {
        mechanism: {
            "salt": base64.b64encode(one.salt).decode(),
            "iterations": one.iterations,
            "stored_key": base64.b64encode(one.stored_key).decode(),
            "server_key": base64.b64encode(one.server_key).decode(),
        }
        for mechanism, one in user.items()
    }


def _decode_credential(encoded: Mapping[str, str]) -> Credential:
    """The credential in JSON values that :func:`_encode_credentials` made."""
    return Credential(
        salt=base64.b64decode(encoded["salt"]),
        iterations=int(encoded["iterations"]),
        stored_key=base64.b64decode(encoded["stored_key"]),
        server_key=base64.b64decode(encoded["server_key"]),
    )


def _derive_salt(secret: bytes, mechanism: str, name: str) -> bytes:
    """The salt for ``mechanism`` of the unknown user ``name``: always the same, and unpredictable without
    ``secret``."""
    return hmac.digest(secret, f"{mechanism}:{name}".encode(), "sha512")
