# A hub, and another implementation of gRPC with messages encoded by hand, both ways. Law: what one puts the
# other reads as it was, and the files are the same bytes.

from __future__ import annotations

from functools import partial

import pytest
import trio

from diskq.errors import HubError
from diskq.hub import HubClient, Tokens, open_hub, replicate
from tests.compat.conftest import built
from tests.compat.go_hub import GoHub
from tests.hub.rig import bytes_of, messages, records, write_journal

pytestmark = pytest.mark.interop

TOKEN = "0123456789abcdef"


@pytest.fixture(scope="session")
def gohub() -> GoHub:
    return built(GoHub.build)


async def of_go(act, *args, **options):
    return await trio.to_thread.run_sync(partial(act, *args, **options))


async def test_a_client_in_go_puts_into_our_hub(tmp_path, gohub):
    async with open_hub(tmp_path, "127.0.0.1:0") as hub:
        told = await of_go(gohub.put, hub.address, count=2_500, batch=1_000)
        assert (told["code"], told["calls"]) == ("OK", 3)
        again = await of_go(gohub.put, hub.address, count=2_600, batch=700)
        assert again["code"] == "OK"
        assert hub.statistics().duplicates == 2_500
    assert bytes_of(tmp_path / "go.log") == records(messages(0, 2_600, 100))


async def test_a_client_in_go_reads_ranges_from_our_hub(tmp_path, gohub):
    async with open_hub(tmp_path, "127.0.0.1:0") as hub, HubClient(hub.address, "go") as client:
        await client.put("log", messages(0, 50))
        found, beside = await of_go(gohub.get, hub.address, offset=20)
        assert found == messages(20, 50)
        assert beside["diskq-next-offset"] == ["50"]
        assert (await of_go(gohub.get, hub.address, offset=50))[0] == []


async def test_a_client_in_go_gets_the_error_of_a_gap(tmp_path, gohub):
    async with open_hub(tmp_path, "127.0.0.1:0") as hub:
        await of_go(gohub.put, hub.address, count=10)
        told = await of_go(gohub.put, hub.address, **{"from": 12}, count=3)
        assert told["code"] == "FailedPrecondition"
        assert told["error"] == "message 12 does not follow: 10 is expected"


async def test_a_client_in_go_needs_a_token_and_a_name(tmp_path, gohub):
    async with open_hub(tmp_path, "127.0.0.1:0", tokens=Tokens({TOKEN: ["go"]})) as hub:
        assert (await of_go(gohub.put, hub.address))["code"] == "Unauthenticated"
        assert (await of_go(gohub.put, hub.address, token=TOKEN, client="x"))["code"] == "PermissionDenied"
        told = await of_go(gohub.put, hub.address, token=TOKEN, client="../../escape")
        assert told["code"] == "InvalidArgument"
        assert (await of_go(gohub.put, hub.address, token=TOKEN))["code"] == "OK"


async def test_our_client_with_a_hub_in_go(tmp_path, gohub):
    with gohub.serving(tmp_path) as address:
        async with HubClient(address, "web1") as client:
            assert await client.put("log", messages(0, 30)) is None  # it does not tell
            await client.put("log", messages(20, 40))
            assert await client.get("log", 5) == messages(5, 40)
            with pytest.raises(HubError) as gap:
                await client.put("log", messages(50, 51))
            assert (gap.value.code, gap.value.expected) == ("FAILED_PRECONDITION", None)
            with pytest.raises(HubError) as unheard_of:
                await client.status()
            assert unheard_of.value.code == "UNIMPLEMENTED"
    assert bytes_of(tmp_path / "web1.log") == records(messages(0, 40))


async def test_a_journal_is_copied_to_a_hub_in_go(tmp_path, gohub):
    write_journal(tmp_path / "source", messages(0, 500), segment_size=2_000)
    with gohub.serving(tmp_path / "root") as address:
        async with HubClient(address, "web1") as client:
            for _ in range(2):  # which passes over what it has
                await replicate(tmp_path / "source", client, "log", follow=False, max_messages=70)
    assert bytes_of(tmp_path / "root" / "web1.log") == bytes_of(tmp_path / "source")
