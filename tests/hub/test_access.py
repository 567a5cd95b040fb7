# Who may do what. Law: without a token that the hub knows nothing is read, and a token is for its clients
# alone; and nothing is open to others by default.

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trustme

from diskq.errors import HubError
from diskq.hub import HubClient, Tls, Tokens, open_hub
from diskq.hub.access import is_loopback, read_token
from tests.hub.rig import messages

ANY, ONE = "any-0123456789abcdef", "one-0123456789abcdef"


@pytest.fixture
def tokens() -> Tokens:
    return Tokens({ANY: None, ONE: ["web1", "web2"]})


def test_a_token_is_for_all_or_for_its_clients(tokens):
    assert tokens.clients_of(f"Bearer {ANY}") is None
    assert tokens.clients_of(f"bearer {ONE}".encode()) == frozenset({"web1", "web2"})


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", f"Basic {ANY}", ANY, f"Bearer {ANY}x", f"Bearer {ANY[:-1]}", "\xff"],
)
def test_whatever_else_is_shown_is_no_token(tokens, header):
    with pytest.raises(PermissionError):
        tokens.clients_of(header)


@pytest.mark.parametrize("token", ["", "short", "x" * 15, "a token with spaces in it", "é" * 20])
def test_a_token_that_is_guessed_or_cannot_be_sent_is_refused(token):
    with pytest.raises(ValueError, match="a token is 16 or more"):
        Tokens({token: None})


def test_a_file_of_tokens(tmp_path, caplog):
    path = tmp_path / "tokens"
    path.write_text(f"# of 2026\n\n{ANY}\n{ONE} web1 web2\n")
    path.chmod(0o600)
    found = Tokens.read(str(path))
    assert found.clients_of(f"Bearer {ONE}") == frozenset({"web1", "web2"})
    assert read_token(str(path)) == ANY
    assert not caplog.records
    path.chmod(0o644)
    Tokens.read(str(path))
    assert "may read the tokens" in caplog.text
    assert ANY not in caplog.text


@pytest.mark.parametrize("text, why", [("", "no token"), (f"{ANY}\n{ANY} web1\n", "line 2 is a duplicate")])
def test_a_file_that_makes_no_sense_is_refused(tmp_path, text, why):
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(ValueError, match=why):
        Tokens.read(str(path))


@pytest.mark.parametrize("address", ["localhost:1", "127.3.2.1:1", "[::1]:1", "unix:/run/hub"])
def test_what_stays_on_this_machine(address):
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1", ":1", "localhost.x:1"]
)
def test_what_does_not(address):
    assert not is_loopback(address)


def test_nothing_is_open_to_others_by_default(tmp_path, tokens):
    tls = Tls(certificate="c", key="k")
    for more in ({}, {"tokens": tokens}, {"tls": tls}):
        with pytest.raises(ValueError, match="insecure=True"):
            open_hub(tmp_path, "0.0.0.0:0", **more)
    for more in ({"tls": tls, "tokens": tokens}, {"tls": Tls(certificate="c", key="k", ca="a")}):
        open_hub(tmp_path, "0.0.0.0:0", **more)
    open_hub(tmp_path, "0.0.0.0:0", insecure=True)
    with pytest.raises(ValueError, match="insecure=True"):
        HubClient("hub.example.org:7070", "web1", token=ANY)


def test_a_certificate_and_its_key_go_together():
    with pytest.raises(ValueError, match="go together"):
        Tls(certificate="c")
    with pytest.raises(ValueError, match="needs a certificate"):
        open_hub("root", tls=Tls(ca="a"))


async def test_without_a_token_nothing_is_done(tmp_path, tokens):
    async with open_hub(tmp_path, tokens=tokens) as hub:
        for token in (None, "wrong-0123456789abcdef"):
            async with HubClient(hub.address, "web1", token=token) as client:
                for ask in (client.put("log", messages(0, 1)), client.get("log"), client.status()):
                    with pytest.raises(HubError) as refusal:
                        await ask
                    assert refusal.value.code == "UNAUTHENTICATED"
        assert await hub.journals() == []


async def test_a_token_does_for_its_clients_only_what_they_may(tmp_path, tokens):
    async with open_hub(tmp_path, tokens=tokens) as hub:
        async with HubClient(hub.address, "web3", token=ANY) as client:
            assert await client.put("log", messages(0, 2)) == 2
        async with HubClient(hub.address, "web3", token=ONE) as client:
            for ask in (client.put("log", messages(2, 3)), client.get("log")):
                with pytest.raises(HubError) as refusal:
                    await ask
                assert refusal.value.code == "PERMISSION_DENIED"
        async with HubClient(hub.address, "web1", token=ONE) as client:
            assert await client.put("log", messages(0, 1)) == 1
            assert [each.client for each in (await client.status()).journals] == ["web1"]


# --- certificates -----------------------------------------------------------------------------


class Certificates:
    """An authority of the test's own, and what it has signed, as files."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        self.ca = self._write(directory / "ca.pem", authority.cert_pem.bytes())
        self.hub = self._issue(directory, authority, "localhost")
        self.client = self._issue(directory, authority, "web1")
        self.stranger = self._issue(directory, trustme.CA(), "web2")

    def _issue(self, directory: Path, authority: trustme.CA, name: str) -> dict[str, str]:
        made = authority.issue_cert(name)
        chain = b"".join(blob.bytes() for blob in made.cert_chain_pems)
        return {
            "certificate": self._write(directory / f"{name}.pem", chain),
            "key": self._write(directory / f"{name}.key", made.private_key_pem.bytes()),
        }

    @staticmethod
    def _write(path: Path, data: bytes) -> str:
        path.write_bytes(data)
        return str(path)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


async def test_tls_with_a_token(tmp_path, certificates, tokens):
    async with open_hub(tmp_path, tls=Tls(**certificates.hub), tokens=tokens) as hub:
        async with HubClient(hub.address, "web1", token=ONE, tls=Tls(ca=certificates.ca)) as client:
            assert await client.put("log", messages(0, 3)) == 3
            assert await client.get("log") == messages(0, 3)
        async with HubClient(hub.address, "web1", token=ONE, timeout=2) as plain:
            with pytest.raises(HubError):
                await plain.put("log", messages(3, 4))


async def test_only_clients_whose_certificate_the_authority_has_signed(tmp_path, certificates):
    ca = certificates.ca
    async with open_hub(tmp_path, tls=Tls(ca=ca, **certificates.hub)) as hub:
        async with HubClient(hub.address, "web1", tls=Tls(ca=ca, **certificates.client)) as client:
            assert await client.put("log", messages(0, 3)) == 3
        for tls in (Tls(ca=ca), Tls(ca=ca, **certificates.stranger)):
            async with HubClient(hub.address, "web1", tls=tls, timeout=2) as stranger:
                with pytest.raises(HubError) as refusal:
                    await stranger.put("log", messages(3, 4))
                assert refusal.value.is_temporary


async def test_logs_have_no_token_and_no_message(tmp_path, tokens, caplog):
    caplog.set_level(logging.DEBUG, logger="diskq")
    async with open_hub(tmp_path, tokens=tokens) as hub, HubClient(hub.address, "web3", token=ONE) as client:
        with pytest.raises(HubError):
            await client.put("log", messages(0, 3))
    assert "PERMISSION_DENIED" in caplog.text
    assert ONE not in caplog.text
    assert "00000001" not in caplog.text
