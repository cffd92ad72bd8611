"""Brokers with TLS, users and rules, and what the three Kafka clients are told to reach them."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coterie.broker.security.users import Users
from coterie.broker.settings import BrokerSettings, Security, SecurityProtocol
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
    """A broker that knows alice, and lets in whom ``protocol`` (Kafka's name) lets in.

    Its certificate is ``pair``, or one of ``authority`` for loopback.
    """
    if pair is None and authority is not None:
        pair = authority.pair("broker")
    acl_path = folder / "rules.acl" if rules is not None else None
    if acl_path is not None and rules is not None:
        acl_path.write_text(rules)
    settings = BrokerSettings(
        data_path=folder / "broker",
        limits=QUICK,
        security=Security(
            protocol=SecurityProtocol(protocol),
            certificate_path=pair.certificate if pair else None,
            key_path=pair.key if pair else None,
            client_ca_path=authority.certificate if authority is not None and wants_certificates else None,
            acl_path=acl_path,
        ),
        **more,
    )
    Users(settings.users_path).add(USER, PASSWORD)
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
    """A raw connection of one user, who is added where there is none, past SASL."""
    users = Users(broker.settings.users_path)
    if user not in users.names():
        users.add(user, PASSWORD)
    with raw_client(broker.port) as client:
        assert client.ask(SASL_HANDSHAKE, 1, mechanism="PLAIN").error_code is ErrorCode.none
        token = f"\0{user}\0{PASSWORD}".encode()
        assert client.ask(SASL_AUTHENTICATE, 2, auth_bytes=token).error_code is ErrorCode.none
        yield client
