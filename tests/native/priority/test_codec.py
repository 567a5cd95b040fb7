# TaskFlux's codecs against known vectors, the format's examples, and an oracle that shares no line with them.

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskq._native.priority import codec as priority_codec
from diskq._native.priority import state_codec
from diskq._native.priority.crc32_mpeg2 import crc32_mpeg2
from diskq.storage.numbers import NO_NUMBER
from tests.reference import taskflux_oracle as oracle

LAYOUTS = ["code", "aligned", "padout", "doc", "docin"]

I64 = st.integers(-(2**63), 2**63 - 1)
U64 = st.integers(0, 2**64 - 1)
COUNTED = st.integers(0, NO_NUMBER - 1)
LIMIT = st.none() | st.integers(0, 2**31 - 1)
NAME = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=40) | st.just("n" * 255)
KEYS = st.none() | st.tuples(I64, I64).map(lambda pair: (min(pair), max(pair)))

COMMANDS = st.one_of(
    st.builds(oracle.create, NAME, st.integers(-(2**31), 2**31 - 1), LIMIT, LIMIT, KEYS),
    st.builds(oracle.delete, NAME),
    st.builds(oracle.add, NAME, I64, st.binary(max_size=60)),
    st.builds(oracle.remove, NAME, U64),
)

# --- the checksum ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data, expected",
    [
        (b"", 0xFFFFFFFF),
        (b"\0", 0x4E08BFB4),
        (bytes(4), 0xC704DD7B),
        (b"123456789", 0x0376E6E7),
        (b"hello, world", 0xBD0822B5),
        (bytes(range(256)), 0x494A116A),
        (bytes.fromhex("0122f2348aa0"), 0x1EDB283B),
        (bytes.fromhex("8423ba3b3290cc273350d2"), 0xE70CBF17),
    ],
)
def test_the_checksum_of_what_the_format_names(data, expected):
    assert crc32_mpeg2(data) == expected == oracle.crc(data)


@given(st.binary(max_size=200), st.integers(0, 200))
def test_the_checksum_chains(data, cut):
    assert crc32_mpeg2(data[cut:], crc32_mpeg2(data[:cut])) == crc32_mpeg2(data) == oracle.crc(data)


@given(st.binary(max_size=100))
def test_bytes_followed_by_their_checksum_give_zero(data):
    assert crc32_mpeg2(data + crc32_mpeg2(data).to_bytes(4, "big")) == 0


# --- commands -------------------------------------------------------------------------------------


def command_of(parts):
    """Return the bytes of what `scan` returned, by the oracle."""
    kind, name, *rest = parts
    if kind == priority_codec.CREATE:
        return oracle.create(name.decode(), *rest)
    if kind == priority_codec.DELETE:
        return oracle.delete(name.decode())
    return (oracle.add if kind == priority_codec.ADD else oracle.remove)(name.decode(), *rest)


@given(st.lists(COMMANDS, max_size=6), st.sampled_from(LAYOUTS), st.integers(1, 2**31 - 1))
def test_every_layout_is_read(commands, layout, term):
    data = oracle.segment(commands, layout, term)[8:]
    found = priority_codec.scan(data)
    assert [command_of(parts) for parts in found.commands] == commands
    assert found.stop == "END"
    assert found.term == (term if commands else 0)
    fill = -len(commands[-1]) % 4 if commands and layout in ("doc", "padout") else 0
    # Zeros after the last record look like the end marker.
    assert found.end == len(data) - 4 - fill
    assert found.trailing == 0


@given(st.lists(COMMANDS, min_size=1, max_size=4), st.sampled_from(LAYOUTS), st.data())
def test_a_record_larger_than_the_buffer_is_asked_for_again(commands, layout, data):
    content = oracle.segment(commands, layout)[8:]
    cut = data.draw(st.integers(0, len(content) - 1))
    found = priority_codec.scan(content[:cut], len(content))
    rest = priority_codec.scan(content[found.end :])
    assert found.stop in ("MORE", "END")
    assert [command_of(parts) for parts in found.commands + rest.commands] == commands


@given(st.lists(COMMANDS, min_size=1, max_size=4), st.booleans(), st.integers(1, 2**31 - 1))
def test_what_is_written_follows_the_layout(commands, document, term):
    layout = "document" if document else "aligned"
    data = priority_codec.FILE_HEAD
    for command in commands:
        encoded = priority_codec.encode(command, term, document)
        assert encoded[-4:] == bytes(4)
        data += encoded[:-4]
    found = oracle.records(data + bytes(4), layout)
    assert [(each.term, each.command) for each in found] == [(term, command) for command in commands]
    assert data + bytes(4) == oracle.segment(commands, "doc" if document else "aligned", term)


@given(NAME, st.lists(st.tuples(st.binary(max_size=40), I64), min_size=1, max_size=8), st.booleans(), U64)
def test_batches_are_records_one_after_the_other(name, items, document, first):
    payloads, keys = [payload for payload, _ in items], [key for _, key in items]
    layout = "doc" if document else "aligned"
    adds = [oracle.add(name, key, payload) for payload, key in items]
    encoded, stop = priority_codec.encode_adds(name.encode(), payloads, keys, document=document)
    assert (priority_codec.FILE_HEAD + encoded, stop) == (oracle.segment(adds, layout), len(items))
    ids = [min(first + i, 2**64 - 1) for i in range(len(items))]
    removes = [oracle.remove(name, number) for number in ids]
    encoded, stop = priority_codec.encode_removes(name.encode(), ids, document=document)
    assert (priority_codec.FILE_HEAD + encoded, stop) == (oracle.segment(removes, layout), len(ids))


def test_one_key_serves_a_whole_batch():
    encoded, _ = priority_codec.encode_adds(b"q", [b"a", b"b"], -7)
    assert [parts[2] for parts in priority_codec.scan(encoded).commands] == [-7, -7]


def test_a_batch_ends_with_the_record_that_reaches_the_bound():
    payloads = [bytes(20)] * 10  # records of 56 bytes
    encoded, stop = priority_codec.encode_adds(b"q", payloads, 0, 2, 100)
    assert (len(encoded), stop) == (2 * 56 + 4, 4)
    encoded, stop = priority_codec.encode_removes(b"q", list(range(10)), 2, 65)  # records of 32 bytes
    assert (len(encoded), stop) == (3 * 32 + 4, 5)
    assert priority_codec.encode_adds(b"q", payloads, 0, 0, 0)[1] == 1, "at least one"
    assert priority_codec.encode_removes(b"q", [1, 2], 0, 0)[1] == 1


@pytest.mark.parametrize("key", [2**63, -(2**63) - 1])
def test_a_key_beyond_64_bits_is_refused(key):
    with pytest.raises(OverflowError):
        priority_codec.encode_adds(b"q", [b""], [key])


@given(NAME, st.integers(-(2**31), 2**31 - 1), LIMIT, LIMIT, KEYS)
def test_a_queue_is_made_as_the_oracle_makes_it(name, code, size, message, keys):
    assert priority_codec.create_command(name.encode(), code, size, message, keys) == oracle.create(
        name, code, size, message, keys
    )
    assert priority_codec.delete_command(name.encode()) == oracle.delete(name)


@given(COMMANDS, st.data())
def test_a_cut_command_is_distinguished_from_a_whole_one(command, data):
    cut = data.draw(st.integers(0, len(command) - 1))
    found = priority_codec.scan(oracle.record(command[:cut], "code") + bytes(4))
    assert (found.commands, found.records, found.end, found.stop) == ([], 0, 0, "BAD")


@pytest.mark.parametrize("name", [b"a b", b"\x7f", b"\xff", b"\0"])
def test_a_name_that_cannot_be_is_bad(name):
    command = b"D" + bytes([len(name)]) + name
    assert priority_codec.scan(oracle.record(command)).stop == "BAD"


def test_an_unknown_command_is_reported():
    assert priority_codec.scan(oracle.record(b"X\0")).stop == "UNKNOWN"
    assert priority_codec.scan(oracle.record(b"")).stop == "BAD"


def test_skipped_records_are_not_read():
    data = oracle.record(b"X\0") + oracle.record(oracle.delete("q"))
    assert priority_codec.scan(data, skip=1).commands == [(priority_codec.DELETE, b"q")]
    assert priority_codec.scan(data, only_records=True).records == 2


@given(COMMANDS, st.binary(min_size=1, max_size=9))
def test_bytes_after_a_command_are_counted_unless_they_are_fill(command, more):
    filling = not any(more) and len(more) < 4 and not (len(command) + len(more)) % 4
    assert priority_codec.scan(oracle.record(command + more, "code")).trailing == (not filling)


# --- damage ---------------------------------------------------------------------------------------

SOME = [
    oracle.create("orders", 2, 10, 100, (-3, 4)),
    oracle.add("orders", 1, b"payload"),
    oracle.remove("q", 7),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_truncation_leaves_the_records_before_it(layout):
    ends = [0]
    for command in SOME:
        ends.append(ends[-1] + len(oracle.record(command, layout)))
    data = oracle.segment(SOME, layout)[8:-4]
    for cut in range(len(data)):
        found = priority_codec.scan(data[:cut])
        # The fill after the last one may be missing.
        whole = sum(
            end - (-len(command) % 4 if layout in ("doc", "padout") else 0) <= cut
            for end, command in zip(ends[1:], SOME, strict=True)
        )
        assert found.records == whole
        assert [command_of(parts) for parts in found.commands] == SOME[:whole]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_flipped_bit_alters_a_command(layout):
    data = oracle.segment(SOME, layout)[8:]
    for position in range(len(data)):
        for bit in (0, 3, 7):
            rotten = bytearray(data)
            rotten[position] ^= 1 << bit
            found = [command_of(parts) for parts in priority_codec.scan(bytes(rotten)).commands]
            assert found == SOME[: len(found)], f"byte {position}, bit {bit}"


def test_a_record_after_damage_is_found():
    data = b"\xaa\xf5" + bytes(7) + oracle.record(SOME[0])
    assert priority_codec.has_record(data)
    assert not priority_codec.has_record(data, 10)
    assert not priority_codec.has_record(data[:-1])
    assert not priority_codec.has_record(b"")


@given(st.binary(max_size=80))
def test_no_bytes_make_it_read_past_the_buffer(data):
    found = priority_codec.scan(data)
    assert 0 <= found.end <= len(data)
    assert found.stop in priority_codec.STOPS
    priority_codec.has_record(data)


def test_random_bytes_around_real_records():
    rng = random.Random(1)
    for _ in range(300):
        data = (
            rng.randbytes(rng.randrange(30)) + oracle.record(SOME[1], rng.choice(LAYOUTS)) + rng.randbytes(9)
        )
        for start in range(len(data)):
            assert 0 <= priority_codec.scan(data[start:]).end <= len(data) - start


# --- metadata and snapshots -----------------------------------------------------------------------


@given(st.integers(1, 2**31 - 1), st.integers(-1, 2**31 - 1), st.booleans())
def test_metadata_is_read_as_it_is_written(term, vote, document):
    layout = "document" if document else "aligned"
    data = state_codec.encode_metadata(term, vote, document)
    assert data == oracle.metadata(term, vote, layout)
    assert state_codec.decode_metadata(data + b"what follows") == (term, vote, document)


def test_the_default_metadata_is_what_the_format_shows():
    assert state_codec.encode_metadata(1).hex() == "5a6ea012000000010000000000000001ffffffff3380ce3b"


@pytest.mark.parametrize("document", [False, True])
def test_metadata_with_any_bit_flipped_or_cut_is_refused(document):
    data = state_codec.encode_metadata(7, 3, document)
    for cut in range(len(data)):
        assert state_codec.decode_metadata(data[:cut]) is None
    for position in range(len(data) * 8):
        rotten = bytearray(data)
        rotten[position // 8] ^= 1 << position % 8
        assert state_codec.decode_metadata(bytes(rotten)) is None


def test_metadata_of_another_version_says_so():
    covered = bytes.fromhex("0000000200000000000000010000000a")
    data = bytes.fromhex("5a6ea012") + covered + oracle.crc(covered).to_bytes(4, "big")
    with pytest.raises(ValueError, match="2"):
        state_codec.decode_metadata(data)


@given(st.integers(0, 2**31 - 1), st.integers(1, 2**31 - 1), st.booleans())
def test_the_head_of_a_snapshot_is_read_as_it_is_written(lsn, term, document):
    data = oracle.snapshot(lsn, term, {"": oracle.Queue()}, "document" if document else "aligned")
    length = len(data) - (20 if document else 28)
    start = 16 if document else 24
    assert state_codec.encode_snapshot_head(lsn, term, length, document) == data[:start]
    heads = state_codec.decode_snapshot_heads(data[:24], len(data))
    assert (lsn, term, start, length, document) in heads


@pytest.mark.parametrize("lsn", [NO_NUMBER - 1, NO_NUMBER, 2**63 - 1])
def test_a_snapshot_with_an_impossible_count_is_none(lsn):
    data = oracle.snapshot(lsn, 1, {"": oracle.Queue()})
    assert not [
        head for head in state_codec.decode_snapshot_heads(data[:24], len(data)) if not head.is_document
    ]


@given(NAME, st.integers(1, 2), COUNTED, LIMIT, LIMIT, KEYS, st.integers(0, 2**31 - 1))
def test_the_head_of_a_queue_is_read_as_it_is_written(name, code, last_id, size, message, keys, count):
    data = state_codec.encode_queue_head(name.encode(), code, last_id, size, message, keys, count)
    fields = (name.encode(), code, last_id, size, message, keys, count, 3 + len(data))
    assert state_codec.decode_queue_head(b"...."[:3] + data, 3) == fields
    for cut in range(len(data)):
        assert state_codec.decode_queue_head(data[:cut]) is None


@pytest.mark.parametrize(
    "change",
    [
        {"name": b"a b"},
        {"max_messages": -2},
        {"max_message_size": -5},
        {"keys": (1, 0)},
        {"last_id": NO_NUMBER},
        {"last_id": 2**64 - 1},
    ],
)
def test_the_head_of_a_queue_that_cannot_be_is_refused(change):
    fields: dict[str, Any] = {
        "name": b"q",
        "implementation": 1,
        "last_id": 0,
        "max_messages": 1,
        "max_message_size": 1,
    }
    fields |= {"keys": None, "count": 0} | change
    with pytest.raises(ValueError, match="impossible"):
        state_codec.decode_queue_head(state_codec.encode_queue_head(**fields))
