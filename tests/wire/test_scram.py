"""SCRAM: the RFCs' examples, our client with our server, and peers without the password."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.nouns.errors import WireError
from coterie.wire.scram import HASH_BY_MECHANISM, AuthenticationFailedError, Credential, ScramClient, ScramServer

MECHANISMS = sorted(HASH_BY_MECHANISM)
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")


def credential(password: str, mechanism: str = "SCRAM-SHA-256") -> Credential:
    return Credential.from_password(mechanism, password, salt=SALT, iterations=4096)


def test_the_example_of_rfc_7677_gives_the_same_messages() -> None:
    server = ScramServer(
        "SCRAM-SHA-256", nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", find_credential=lambda _: credential("pencil")
    )
    client = ScramClient("SCRAM-SHA-256", user="user", password="pencil", nonce="rOprNGfwEbeRWgbNEkqO")
    assert client.first_message() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    first = server.first_message(client.first_message())
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = client.final_message(first)
    assert final == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert server.final_message(final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    client.verify_server_final(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", ["alice", "a,b=c", "=2C", "Ünï"])
def test_client_and_server_agree_on_the_user(mechanism: str, user: str) -> None:
    server = ScramServer(mechanism, nonce="s", find_credential=lambda _: credential("päss,=word", mechanism))
    client = ScramClient(mechanism, user=user, password="päss,=word", nonce="c")
    client.verify_server_final(server.final_message(client.final_message(server.first_message(client.first_message()))))
    assert server.user == user


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_denied(mechanism: str) -> None:
    server = ScramServer(mechanism, nonce="s", find_credential=lambda _: credential("right", mechanism))
    client = ScramClient(mechanism, user="u", password="wrong", nonce="c")
    with pytest.raises(AuthenticationFailedError):
        server.final_message(client.final_message(server.first_message(client.first_message())))


def test_a_server_without_the_password_is_denied() -> None:
    client = ScramClient("SCRAM-SHA-256", user="u", password="right", nonce="c")
    client.final_message(
        ScramServer("SCRAM-SHA-256", nonce="s", find_credential=lambda _: credential("wrong")).first_message(
            client.first_message()
        )
    )
    with pytest.raises(AuthenticationFailedError, match="prove"):
        client.verify_server_final(b"v=" + base64.b64encode(bytes(32)))
    with pytest.raises(AuthenticationFailedError, match="invalid-proof"):
        client.verify_server_final(b"e=invalid-proof")


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,",
        b"n,,n=u",
        b"n,,n=,r=c",
        b"n,,n=u,r=",
        b"n,,r=c,n=u",
        b"n,,n=a=b,r=c",
        b"n,,n===2C3D,r=c",
        b"p=tls-unique,,n=u,r=c",
        b"n,a=other,n=u,r=c",
        b"\xff,,n=u,r=c",
    ],
)
def test_a_malformed_first_message_is_refused(first: bytes) -> None:
    with pytest.raises(WireError):
        ScramServer("SCRAM-SHA-256", nonce="s", find_credential=lambda _: credential("p")).first_message(first)


@pytest.mark.parametrize(
    ("first", "reason"),
    [(b"p=tls-unique,,n=u,r=c", "requests channel binding"), (b"n=u,r=c", 'does not begin with "n," or "y,"')],
)
def test_the_reason_names_channel_binding_only_if_the_client_requests_it(first: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        ScramServer("SCRAM-SHA-256", nonce="s", find_credential=lambda _: credential("p")).first_message(first)


@pytest.mark.parametrize(
    "final", [b"", b"c=biws", b"c=biws,r=cs", b"c=biws,r=cs,p=", b"c=biws,r=cs,p=YQ==", b"c=biws,r=xs,p=YQ==",
              b"c=eSws,r=cs,p=YQ==", b"c=biws,r=cs,p=%%%", b"c=\xc3\xa9,r=cs,p=YQ=="]
)  # fmt: skip
def test_a_malformed_final_message_is_refused(final: bytes) -> None:
    server = ScramServer("SCRAM-SHA-256", nonce="s", find_credential=lambda _: credential("p"))
    server.first_message(b"n,,n=u,r=c")
    with pytest.raises(WireError):
        server.final_message(final)


@pytest.mark.parametrize(
    "first",
    [b"", b"r=x,s=YQ==,i=4096", b"r=c,s=YQ==,i=4096", b"r=cs,s=YQ==,i=1", b"r=cs,s=YQ==,i=2000000000",
     b"r=cs,s=YQ==,i=99999999999999999999999", b"r=cs,s=YQ==,i=0000000004097", b"r=cs,s=YQ==,i=16385",
     b"r=cs,s=YQ==,i=000000000" + b"9" * 30, b"r=cs,s=YQ==,i=" + b"9" * 5_000, "r=cs,s=YQ==,i=٤٠٩٦".encode(),
     b"r=cs,s=,i=x", b"r=cs,s=!,i=4096"],
)  # fmt: skip
def test_a_malformed_server_first_message_is_refused(first: bytes) -> None:
    with pytest.raises(WireError):
        ScramClient("SCRAM-SHA-256", user="u", password="p", nonce="c").final_message(first)


@pytest.mark.parametrize("iterations", [4_096, 16_384])
def test_every_iteration_count_that_kafka_may_require_is_accepted(iterations: int) -> None:
    client = ScramClient("SCRAM-SHA-256", user="u", password="p", nonce="c")
    assert client.final_message(b"r=cs,s=YQ==,i=%d" % iterations).startswith(b"c=biws,r=cs,p=")


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_client_messages_are_refused_or_denied(first: bytes, final: bytes) -> None:
    server = ScramServer("SCRAM-SHA-256", nonce="s", find_credential=lambda _: credential("p"))
    with pytest.raises((WireError, AuthenticationFailedError)):
        _exchange(server, first, final)


def _exchange(server: ScramServer, first: bytes, final: bytes) -> None:
    server.first_message(first)
    server.final_message(final)


def test_a_credential_does_not_contain_the_password() -> None:
    made = credential("a rare password")
    assert b"rare" not in made.stored_key + made.server_key + made.salt
    assert made.matches_password("SCRAM-SHA-256", "a rare password")
    assert not made.matches_password("SCRAM-SHA-256", "a rare passwort")
    assert made.stored_key.hex()[:6] not in repr(made)
