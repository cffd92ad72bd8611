"""Brokers with TLS, users and rules, and clients of them."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coterie.broker.security.users import BrokerUsersFile
from coterie.broker.settings import BrokerSettings, SecurityProtocol, SecuritySettings
from coterie.wire.errors import ErrorCode
from coterie.wire.schemas import SASL_AUTHENTICATE, SASL_HANDSHAKE
from tests.broker.conftest import QUICK, RawClient, ThreadedBroker, raw_client
from tests.certificates import Authority, Pair

PASSWORD = "a pass,word=with 'marks'"
USER = "alice"


@contextmanager
def secured_broker(
    folder: Path,
    protocol: str,
    *,
    authority: Authority | None = None,
    pair: Pair | None = None,
    wants_certificates: bool = False,
    rules: str | None = None,
    **more: Any,
) -> Iterator[ThreadedBroker]:
    """A broker with the user alice and the security ``protocol`` (Kafka's name).

    The broker's certificate is ``pair``, or one that ``authority`` issued for loopback.
    """
    if pair is None and authority is not None:
        pair = authority.pair("broker")
    acl_path = folder / "rules.acl" if rules is not None else None
    if acl_path is not None and rules is not None:
        acl_path.write_text(rules)
    settings = BrokerSettings(
        data_path=folder / "broker",
        group_limits=QUICK,
        security=SecuritySettings(
            protocol=SecurityProtocol(protocol),
            certificate_path=pair.certificate if pair else None,
            key_path=pair.key if pair else None,
            client_ca_path=authority.certificate if authority is not None and wants_certificates else None,
            acl_path=acl_path,
        ),
        **more,
    )
    BrokerUsersFile(settings.users_path).add(USER, PASSWORD)
    broker = ThreadedBroker(settings)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority.certificate)


@contextmanager
def logged_in(broker: ThreadedBroker, user: str) -> Iterator[RawClient]:
    """A raw connection that is authenticated as ``user``, who is added if missing."""
    users = BrokerUsersFile(broker.settings.users_path)
    if user not in users.read_names():
        users.add(user, PASSWORD)
    with raw_client(broker.port) as client:
        assert client.ask(SASL_HANDSHAKE, 1, mechanism="PLAIN").error_code is ErrorCode.none
        token = f"\0{user}\0{PASSWORD}".encode()
        assert client.ask(SASL_AUTHENTICATE, 2, auth_bytes=token).error_code is ErrorCode.none
        yield client
