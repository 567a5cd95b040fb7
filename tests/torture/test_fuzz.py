# A little of what `python -m tests.torture.fuzz` does for an hour; and that it would notice.

from __future__ import annotations

import pytest

from diskq._native.priority import codec as priority_codec
from tests.sampling import first
from tests.torture.decoders import DECODERS, Decoder
from tests.torture.directories import directories
from tests.torture.fuzz import fuzz
from tests.torture.mutating import Mutator
from tests.torture.vouching import commands, voucher_of

pytestmark = pytest.mark.usefixtures("quiet_log")

DIRECTORIES = directories()
SOME = list(DIRECTORIES)[::4]


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_says_one_thing_of_any_bytes(name: str) -> None:
    decoder = DECODERS[name]
    for seed in decoder.seeds:
        decoder.check(seed)
    assert fuzz(name, decoder, 7, cases=400).findings == {}


@pytest.mark.parametrize("name", first(len(SOME), SOME + [name for name in DIRECTORIES if name not in SOME]))
def test_no_file_of_a_directory_makes_up_a_message(name: str) -> None:
    assert fuzz(name, DIRECTORIES[name], 7, cases=4).findings == {}


def test_a_finding_is_reported_once_with_its_bytes() -> None:
    def check(data: bytes) -> None:
        assert len(data) == 4, f"{len(data)} bytes"

    found = fuzz("toy", Decoder([b"abcd"], check), 7, cases=200)
    assert found.cases == 200
    assert len(found.findings) == 1
    ((what, data),) = found.findings.items()
    assert "test_fuzz.py" in what
    assert len(data) != 4


def test_one_seed_gives_one_sequence() -> None:
    first, again = (Mutator([b"hello world" * 9], 11) for _ in range(2))
    assert [first.next() for _ in range(100)] == [again.next() for _ in range(100)]


@pytest.mark.parametrize("name", [each for each in DIRECTORIES if "lock" not in each])
def test_checksums_that_were_right_stay_as_they_were(name: str) -> None:
    (content,) = DIRECTORIES[name].seeds
    vouch = voucher_of(name, content)
    assert vouch is None or vouch(content) == content


@pytest.mark.parametrize("content", DECODERS["taskflux records"].seeds)
def test_a_record_whose_command_changed_is_read_again_with_its_checksum_made_right(content: bytes) -> None:
    changed = bytearray(content)
    changed[20] ^= 0x55
    assert commands(content) == content
    assert (
        priority_codec.scan(bytes(changed), only_records=True).records
        < priority_codec.scan(commands(bytes(changed)), only_records=True).records
    )
