"""SCRAM: the RFCs' own examples, both sides against each other, and whoever does not know the password."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.nouns.errors import WireError
from coterie.wire.scram import HASHES, Credential, DeniedError, ScramClient, ScramServer

MECHANISMS = sorted(HASHES)
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")


def credential(password: str, mechanism: str = "SCRAM-SHA-256") -> Credential:
    return Credential.of(mechanism, password, salt=SALT, iterations=4096)


def test_the_example_of_rfc_7677_comes_out_to_the_letter() -> None:
    server = ScramServer("SCRAM-SHA-256", nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", find=lambda _: credential("pencil"))
    client = ScramClient("SCRAM-SHA-256", user="user", password="pencil", nonce="rOprNGfwEbeRWgbNEkqO")
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    first = server.first(client.first())
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = client.final(first)
    assert final == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert server.final(final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    client.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", ["alice", "a,b=c", "=2C", "Ünï"])
def test_both_sides_agree_on_who_it_is(mechanism: str, user: str) -> None:
    server = ScramServer(mechanism, nonce="s", find=lambda _: credential("päss,=word", mechanism))
    client = ScramClient(mechanism, user=user, password="päss,=word", nonce="c")
    client.check(server.final(client.final(server.first(client.first()))))
    assert server.user == user


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_denied(mechanism: str) -> None:
    server = ScramServer(mechanism, nonce="s", find=lambda _: credential("right", mechanism))
    client = ScramClient(mechanism, user="u", password="wrong", nonce="c")
    with pytest.raises(DeniedError):
        server.final(client.final(server.first(client.first())))


def test_a_server_that_does_not_know_the_password_is_denied() -> None:
    client = ScramClient("SCRAM-SHA-256", user="u", password="right", nonce="c")
    client.final(ScramServer("SCRAM-SHA-256", nonce="s", find=lambda _: credential("wrong")).first(client.first()))
    with pytest.raises(DeniedError, match="prove"):
        client.check(b"v=" + base64.b64encode(bytes(32)))
    with pytest.raises(DeniedError, match="invalid-proof"):
        client.check(b"e=invalid-proof")


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
        b"p=tls-unique,,n=u,r=c",
        b"n,a=other,n=u,r=c",
        b"\xff,,n=u,r=c",
    ],
)
def test_a_malformed_first_message_is_refused(first: bytes) -> None:
    with pytest.raises(WireError):
        ScramServer("SCRAM-SHA-256", nonce="s", find=lambda _: credential("p")).first(first)


@pytest.mark.parametrize(
    "final", [b"", b"c=biws", b"c=biws,r=cs", b"c=biws,r=cs,p=", b"c=biws,r=cs,p=YQ==", b"c=biws,r=xs,p=YQ==",
              b"c=eSws,r=cs,p=YQ==", b"c=biws,r=cs,p=%%%", b"c=\xc3\xa9,r=cs,p=YQ=="]
)  # fmt: skip
def test_a_malformed_final_message_is_refused(final: bytes) -> None:
    server = ScramServer("SCRAM-SHA-256", nonce="s", find=lambda _: credential("p"))
    server.first(b"n,,n=u,r=c")
    with pytest.raises(WireError):
        server.final(final)


@pytest.mark.parametrize(
    "first",
    [b"", b"r=x,s=YQ==,i=4096", b"r=c,s=YQ==,i=4096", b"r=cs,s=YQ==,i=1", b"r=cs,s=YQ==,i=2000000000",
     b"r=cs,s=YQ==,i=99999999999999999999999", b"r=cs,s=YQ==,i=0000000004097", b"r=cs,s=YQ==,i=16385",
     b"r=cs,s=YQ==,i=000000000" + b"9" * 30, b"r=cs,s=YQ==,i=" + b"9" * 5_000, "r=cs,s=YQ==,i=٤٠٩٦".encode(),
     b"r=cs,s=,i=x", b"r=cs,s=!,i=4096"],
)  # fmt: skip
def test_a_server_that_asks_for_nonsense_is_refused(first: bytes) -> None:
    with pytest.raises(WireError):
        ScramClient("SCRAM-SHA-256", user="u", password="p", nonce="c").final(first)


@pytest.mark.parametrize("iterations", [4_096, 16_384])
def test_as_many_iterations_are_taken_as_kafka_may_ask_for(iterations: int) -> None:
    client = ScramClient("SCRAM-SHA-256", user="u", password="p", nonce="c")
    assert client.final(b"r=cs,s=YQ==,i=%d" % iterations).startswith(b"c=biws,r=cs,p=")


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_are_refused_or_denied(first: bytes, final: bytes) -> None:
    server = ScramServer("SCRAM-SHA-256", nonce="s", find=lambda _: credential("p"))
    with pytest.raises((WireError, DeniedError)):
        _exchange(server, first, final)


def _exchange(server: ScramServer, first: bytes, final: bytes) -> None:
    server.first(first)
    server.final(final)


def test_a_credential_holds_no_password() -> None:
    made = credential("a rare password")
    assert b"rare" not in made.stored_key + made.server_key + made.salt
    assert made.fits("SCRAM-SHA-256", "a rare password")
    assert not made.fits("SCRAM-SHA-256", "a rare passwort")
    assert made.stored_key.hex()[:6] not in repr(made)
