"""The users of the broker: names and salted credentials, in one file that only its owner can read.

They are in a file and not in the log: `coterie broker user` changes the file while a broker runs, whose log is locked
against other processes, and a backup of the log contains no credentials. The file is replaced as a whole by a rename,
so a reader gets either the old users or the new ones; a running broker checks at every login for a newer file. If the
new file cannot be read, the broker keeps the old users, as with certificates and access rules, and logs one error for
each change.
"""

import base64
import binascii
import hmac
import json
import logging
import os
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

from coterie.broker.storage.folder import make_folder
from coterie.nouns.errors import WorldError
from coterie.wire.scram import HASHES, Credential

logger = logging.getLogger(__name__)

ITERATIONS = 16_384
"""RFC 7677 requires at least 15,000; Kafka's maximum is this. Checking a password takes about 5 ms."""
_SALT_SIZE = 18

User = Mapping[str, Credential]
"""A user's credentials by mechanism."""


class Users:
    """The users in the file at ``path``; none if the file does not exist."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._users: Mapping[str, User] = {}
        self._complaint = ""
        self._decoys = secrets.token_bytes(32)

    def find(self, name: str) -> User:
        """The credentials of ``name``. An unknown user gets credentials that match no password, always with the same
        salt, so that a client cannot find out which users exist.
        """
        self._follow()
        return self._users.get(name) or {
            mechanism: Credential(
                salt=_derived(self._decoys, mechanism, name)[:_SALT_SIZE],
                iterations=ITERATIONS,
                stored_key=secrets.token_bytes(64 if "512" in mechanism else 32),
                server_key=bytes(64),
            )
            for mechanism in HASHES
        }

    def names(self) -> list[str]:
        """The names of all users, sorted.

        :raises WorldError: the file cannot be read.
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
            mechanism: Credential.of(mechanism, password, salt=secrets.token_bytes(_SALT_SIZE), iterations=ITERATIONS)
            for mechanism in HASHES
        }
        self._write({**self._users, name: made})
        return is_new

    def remove(self, name: str) -> bool:
        """Remove a user; returns whether the user existed. The user's open connections stay open.

        :raises WorldError: the file cannot be read or written.
        """
        self._refresh()
        if name not in self._users:
            return False
        self._write({other: user for other, user in self._users.items() if other != name})
        return True

    def _follow(self) -> None:
        try:
            self._refresh()
        except WorldError as error:
            # Log an error once, although every login tries to read the file.
            if self._complaint != str(error):
                logger.error("Cannot reload the users, the previous users stay in use: %s", error)
            self._complaint = str(error)
        else:
            self._complaint = ""

    def _refresh(self) -> None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._stamp, self._users = None, {}
            return
        except OSError as error:
            raise WorldError(f"the users in {self._path} cannot be read: {error.strerror}") from error
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        if stamp != self._stamp:
            self._users = _read(self._path)
            self._stamp = stamp

    def _write(self, users: Mapping[str, User]) -> None:
        text = json.dumps(
            {"version": 1, "users": {name: _told(user) for name, user in sorted(users.items())}}, indent=1
        )
        try:
            make_folder(self._path.parent)
            # mkstemp creates the file with mode 0600.
            descriptor, partial = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}-")
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    file.write(text + "\n")
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(partial, self._path)
            except BaseException:
                os.unlink(partial)
                raise
        except OSError as error:
            raise WorldError(f"the users in {self._path} cannot be written: {error.strerror}") from error
        self._refresh()


# -- the file ---------------------------------------------------------------------------------------------------------


def _read(path: Path) -> Mapping[str, User]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["version"] != 1:
            raise WorldError(f"the users in {path} have version {found['version']}; this broker supports version 1")
        return {
            name: {mechanism: _credential(user[mechanism]) for mechanism in HASHES}
            for name, user in found["users"].items()
        }
    except OSError as error:
        raise WorldError(f"the users in {path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise WorldError(
            f"{path} is not a users file; move it away and add the users again with `coterie broker user add`"
        ) from error


def _told(user: User) -> Mapping[str, Mapping[str, object]]:
    return {
        mechanism: {
            "salt": base64.b64encode(one.salt).decode(),
            "iterations": one.iterations,
            "stored_key": base64.b64encode(one.stored_key).decode(),
            "server_key": base64.b64encode(one.server_key).decode(),
        }
        for mechanism, one in user.items()
    }


def _credential(told: Mapping[str, str]) -> Credential:
    return Credential(
        salt=base64.b64decode(told["salt"]),
        iterations=int(told["iterations"]),
        stored_key=base64.b64decode(told["stored_key"]),
        server_key=base64.b64decode(told["server_key"]),
    )


def _derived(secret: bytes, mechanism: str, name: str) -> bytes:
    return hmac.digest(secret, f"{mechanism}:{name}".encode(), "sha512")
