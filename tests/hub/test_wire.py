# What goes over the wire, against Protocol Buffers. Law: both read what the other has written, and bytes that
# are no messages are refused.

from __future__ import annotations

import random
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from diskq._native.hub import wire as hubwire
from diskq._native.journal import codec as journal_codec
from diskq.messages import NULL_TIMESTAMP, JournalMessage
from tests.hub.rig import items, messages, put_request, records


def protocol() -> dict[str, Any]:
    """The message classes of sej's hub."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="hub.proto", package="hub", syntax="proto3")
    numbers = {"string": kinds.TYPE_STRING, "uint64": kinds.TYPE_UINT64, "int64": kinds.TYPE_INT64}
    numbers |= {"uint32": kinds.TYPE_UINT32, "bytes": kinds.TYPE_BYTES, "Message": kinds.TYPE_MESSAGE}
    grammar = {
        "Message": "uint64 Offset, int64 Timestamp, uint32 Type, bytes Key, bytes Value",
        "PutRequest": "string ClientID, string JournalDir, Message Messages",
        "GetRequest": "string ClientID, string JournalDir, uint64 Offset",
        "GetResponse": "Message Messages",
    }
    for name, fields in grammar.items():
        made = file.message_type.add(name=name)
        for number, field in enumerate(fields.split(", "), 1):
            kind, called = field.split()
            is_message = kind == "Message"
            made.field.add(
                name=called,
                number=number,
                type=numbers[kind],
                label=kinds.LABEL_REPEATED if is_message else kinds.LABEL_OPTIONAL,
                type_name=".hub.Message" if is_message else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"hub.{name}")) for name in grammar
    }


HUB = protocol()

entries = st.lists(
    st.tuples(
        st.binary(max_size=127),
        st.one_of(st.just(NULL_TIMESTAMP), st.integers(-(2**63), 2**63 - 1)),
        st.integers(0, 255),
        st.binary(max_size=300),
    ),
    max_size=6,
)


def as_theirs(its: Any, first: int) -> list[Any]:
    return [
        HUB["Message"](Offset=first + n, Timestamp=timestamp, Type=type, Key=key, Value=value)
        for n, (key, timestamp, type, value) in enumerate(its)
    ]


@given(entries, st.integers(0, 2**61))
def test_a_put_is_the_same_bytes(its, first):
    ours = hubwire.put_request(
        b"web1", b"log", journal_codec.columns(journal_codec.encode(its, first), first)
    )
    theirs = HUB["PutRequest"](ClientID="web1", JournalDir="log", Messages=as_theirs(its, first))
    assert ours == theirs.SerializeToString()
    told = hubwire.read_put(ours)
    assert (told.client, told.journal, told.messages) == (b"web1", b"log", len(its))
    assert hubwire.records(ours, hubwire.OF_PUT, first) == (
        journal_codec.encode(its, first),
        len(its),
        0,
        None,
    )


@given(entries, st.integers(0, 2**61))
def test_an_answer_is_the_same_bytes(its, first):
    ours = hubwire.get_response(journal_codec.columns(journal_codec.encode(its, first), first))
    assert ours == HUB["GetResponse"](Messages=as_theirs(its, first)).SerializeToString()
    assert (
        hubwire.messages(ours, hubwire.OF_GET)
        == journal_codec.scan(journal_codec.encode(its, first), first).messages
    )


@given(st.integers(0, 2**63 - 1))
def test_a_get_is_the_same_bytes(offset):
    ours = hubwire.get_request(b"web1", b"log", offset)
    assert ours == HUB["GetRequest"](ClientID="web1", JournalDir="log", Offset=offset).SerializeToString()
    assert hubwire.read_get(ours) == (b"web1", b"log", 0, 0, offset)


def test_a_message_without_a_time_goes_as_the_number_it_has_on_disk():
    batch = [JournalMessage(0, 0, None, 0, b"", b"")]
    assert HUB["PutRequest"].FromString(put_request(batch)).Messages[0].Timestamp == NULL_TIMESTAMP


# --- what is taken of a request ---------------------------------------------------------------


def test_what_is_there_is_passed_over_and_a_gap_ends_it():
    batch = [*messages(3, 8), *messages(10, 12)]
    request = HUB["PutRequest"](Messages=[as_theirs(items([one]), one.offset)[0] for one in batch])
    told = hubwire.records(request.SerializeToString(), hubwire.OF_PUT, 5)
    assert told == (records(messages(5, 8)), 3, 2, 10)


def test_what_comes_twice_in_a_request_is_taken_once():
    batch = [*messages(0, 3), *messages(1, 4)]
    request = HUB["PutRequest"](Messages=[as_theirs(items([one]), one.offset)[0] for one in batch])
    told = hubwire.records(request.SerializeToString(), hubwire.OF_PUT, 0)
    assert told == (records(messages(0, 4)), 4, 2, None)


def test_unknown_fields_are_skipped_and_the_last_one_counts():
    unknown = b"\x78\x05" + b"\x71" + bytes(8) + b"\x7a\x02ab" + b"\x7d" + bytes(4)
    inside = unknown + b"\x08\x63\x08\x00" + unknown + b"\x2a\x01x\x2a\x01y"
    request = b"\x0a\x01z" + unknown + b"\x0a\x01c\x12\x01j" + b"\x1a" + bytes([len(inside)]) + inside
    assert hubwire.read_put(request) == (b"c", b"j", 1, 1, 0)
    assert journal_codec.scan(hubwire.records(request, hubwire.OF_PUT, 0).data).messages == [
        JournalMessage(0, 0, 0, 0, b"", b"y")
    ]


@pytest.mark.parametrize(
    "fields, why",
    [
        ({"Type": 256}, "a type is 0 to 255, not 256"),
        ({"Key": bytes(128)}, "a key of 128 bytes"),
        ({"Offset": 2**62}, "an offset of 4611686018427387904"),
        ({"Offset": 2**63}, "an offset of 9223372036854775808"),
    ],
)
def test_a_message_that_no_journal_can_have_is_refused(fields, why):
    request = HUB["PutRequest"](Messages=[HUB["Message"](**fields)]).SerializeToString()
    for read in (hubwire.read_put, lambda data: hubwire.records(data, hubwire.OF_PUT, 0)):
        with pytest.raises(ValueError, match=why):
            read(request)
    with pytest.raises(ValueError, match=why):
        hubwire.messages(HUB["GetResponse"](Messages=[HUB["Message"](**fields)]).SerializeToString(), 1)


@pytest.mark.parametrize("offset", [2**63, 2**64 - 1])
def test_an_offset_that_none_is_cannot_be_asked_for(offset):
    with pytest.raises(ValueError, match="an offset"):
        hubwire.read_get(HUB["GetRequest"](Offset=offset).SerializeToString())


def test_whatever_is_cut_or_flipped_both_say_the_same_of_it():
    request = put_request(messages(0, 4))
    rng = random.Random(5)
    cases = [request[:size] for size in range(len(request))]
    for _ in range(3_000):
        flipped = bytearray(request)
        for _ in range(rng.randrange(1, 4)):
            flipped[rng.randrange(len(flipped))] = rng.randrange(256)
        cases.append(bytes(flipped))
    compared = 0
    for case in cases:
        try:
            told = hubwire.read_put(case)
        except ValueError:
            continue  # stricter than they are in what a journal cannot have, and in groups
        try:
            theirs = HUB["PutRequest"].FromString(case)
        except Exception:
            # Names are UTF-8 for them; ours are judged letter by letter, when they are used.
            assert not told.client.isascii() or not told.journal.isascii()
            continue
        compared += 1
        assert told.messages == len(theirs.Messages)
        assert (told.client.decode(), told.journal.decode()) == (theirs.ClientID, theirs.JournalDir)
        assert [m.value for m in hubwire.messages(case, hubwire.OF_PUT)] == [m.Value for m in theirs.Messages]
    assert compared > 1_000
