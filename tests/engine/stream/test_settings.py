# settings.json. Law: what go-diskq reads we read to the same numbers, and what we write is what it would
# have written. The vectors are what Go's encoder and decoder said to the same bytes.

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.settings import StreamSettings, parse, read_settings, settings_as, settings_of
from diskq.errors import UnsupportedFormatError
from diskq.options import StreamOptions
from diskq.storage.barrier import Barrier
from diskq.testing import CrashFS

GOLDEN = sorted((Path(__file__).parents[2] / "golden" / "diskq").glob("*/data/settings.json"))
DAY_NS = 86_400 * 10**9
LARGEST = 2**63 - 1


@pytest.fixture
def fs():
    fs = CrashFS()
    fs.make_directory_durably("/s/.diskq")
    return fs


@pytest.fixture
def files(fs):
    return StreamFiles(fs, "/s")


# --- as Go writes it --------------------------------------------------------------------------

WRITTEN = [
    (StreamSettings(), b"{}\n"),
    (
        StreamSettings(
            partition_count=5, segment_size=1024, retention_max_bytes=2048, retention_max_age_ns=DAY_NS
        ),
        b'{\n  "partition_count": 5,\n  "segment_size_bytes": 1024,\n'
        b'  "retention_max_bytes": 2048,\n  "retention_max_age": 86400000000000\n}\n',
    ),
    (StreamSettings(retention_max_age_ns=1), b'{\n  "retention_max_age": 1\n}\n'),
    (StreamSettings(segment_size=2**62), b'{\n  "segment_size_bytes": 4611686018427387904\n}\n'),
    (
        StreamSettings(partition_count=1, encoding="varuint"),
        b'{\n  "partition_count": 1,\n  "encoding": "varuint"\n}\n',
    ),
]


@pytest.mark.parametrize("settings, content", WRITTEN)
def test_settings_are_written_as_go_writes_them_and_read_back(settings, content):
    assert settings.render() == content
    assert parse(content) == settings


def test_there_are_golden_settings():
    assert len(GOLDEN) == 9


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.parts[-3])
def test_what_go_wrote_is_read_and_written_again_byte_for_byte(path):
    content = path.read_bytes()
    settings = parse(content)
    assert settings.render() == content
    manifest = json.loads((path.parents[1] / "manifest.json").read_text())
    told = manifest["go"].get("MaybeReadOptions", {"options": manifest.get("options", {})})["options"]
    assert json.loads(settings.render()) == told


def test_what_is_not_said_is_the_default_when_it_is_used():
    settings = parse(b"{}\n")
    assert settings.partition_count is settings.segment_size is None
    assert (settings.partitions, settings.roll_size, settings.encoding) == (3, 32 * 1024 * 1024, "fixed")
    assert settings.retention_max_bytes is settings.retention_max_age_ns is None


numbers = st.none() | st.integers(1, LARGEST)


@given(st.none() | st.integers(1, 999_999), numbers, numbers, numbers, st.sampled_from(["fixed", "varuint"]))
def test_whatever_is_written_is_read_back(partitions, size, most, age, encoding):
    settings = StreamSettings(
        partition_count=partitions,
        segment_size=size,
        retention_max_bytes=most,
        retention_max_age_ns=age,
        encoding=encoding,
    )
    assert parse(settings.render()) == settings


# --- as Go reads it ---------------------------------------------------------------------------

READ = [
    (b" \t\r\n{}", {}),
    (b"null", {}),
    (b"{}garbage", {}),
    (b'{}{"partition_count":9}', {}),
    (b'{"PARTITION_Count":5}', {"partition_count": 5}),
    (b'{"partition_count":5,"partition_count":7}', {"partition_count": 7}),
    (b'{"partition_count":5,"partition_count":null}', {"partition_count": 5}),
    (b'{"partition_count":5,"partition_count":0}', {}),
    (b'{"partit\\u0069on_count":4}', {"partition_count": 4}),
    (b'{"segment_size_bytes":9223372036854775807}', {"segment_size": LARGEST}),
    (b'{"other":[1,{"partition_count":2.5}],"segment_size_bytes":7}', {"segment_size": 7}),
    (b'{"x":"\xff"}', {}),
    (b'{"encoding":"fixed"}', {}),
    (b'{"encoding":null}', {}),
    (b'{"encoding":"varuint"}', {"encoding": "varuint"}),
]


@pytest.mark.parametrize("content, fields", READ)
def test_it_is_read_as_go_reads_it(content, fields):
    assert parse(content) == StreamSettings(**fields)


REFUSED_BY_GO = [
    b"[]",
    b"3",
    b'"{}"',
    b"\xef\xbb\xbf{}",
    b"\x0b{}",
    b"\0\0{}",
    b'{"partition_count":5',
    b'{"partition_count":05}',
    b'{"partition_count":3.0}',
    b'{"partition_count":1e1}',
    b'{"partition_count":-1}',
    b'{"partition_count":true}',
    b'{"partition_count":{}}',
    b'{"partition_count":4294967296}',
    b'{"segment_size_bytes":"5"}',
    b'{"segment_size_bytes":9223372036854775808}',
    b'{"retention_max_bytes":1e400}',
    b'{"retention_max_age":1e3}',
    b'{"x":NaN}',
    b'{"x":Infinity}',
    b'{"x":1,}',
    b'{"x":"\x01"}',
    b"\xff\xfe{\0}\0",
]
REFUSED_BY_US = [
    b'{"segment_size_bytes":-1}',
    b'{"partition_count":4294967295}',
    b'{"encoding":"zstd"}',
    b'{"encoding":["fixed"]}',
    b'{"encoding":1}',
    b'{"x":' + b"7" * 5000 + b"}",
    b"[" * 60_000,
    b"{}" + b" " * 64 * 1024,
]


@pytest.mark.parametrize("content", REFUSED_BY_GO + REFUSED_BY_US, ids=range(31))
def test_what_is_no_settings_is_refused_with_its_path(content):
    with pytest.raises(UnsupportedFormatError, match=r"^/s/settings\.json: found ") as refused:
        parse(content, "/s/settings.json")
    assert refused.value.path == "/s/settings.json"
    assert len(str(refused.value)) < 500


@given(st.binary(max_size=60) | st.text('{}[]:,"0123456789.eE+-truefalsn \n', max_size=40).map(str.encode))
def test_any_bytes_are_settings_or_refused(content):
    try:
        settings = parse(content)
    except UnsupportedFormatError:
        return
    assert parse(settings.render()) == settings


# --- in the stream's directory ----------------------------------------------------------------


def test_a_stream_without_the_file_says_nothing(fs, files):
    assert read_settings(fs, files) is None


@pytest.mark.parametrize("content", [b"", b"\0", b"\0" * 130])
def test_neither_does_one_whose_writer_crashed_over_it(fs, files, content):
    fs.write_durably("/s/settings.json", content)
    assert read_settings(fs, files) is None


def test_what_cannot_be_decoded_is_refused_with_the_files_own_path(fs, files):
    fs.write_durably("/s/settings.json", b"{")
    with pytest.raises(UnsupportedFormatError, match=r"^/s/settings\.json"):
        read_settings(fs, files)


def test_settings_are_durable_with_a_barrier_and_whole_at_any_time(fs, files):
    fs.write_durably("/s/settings.json", b"{}\n")
    settings = StreamSettings(partition_count=2)
    Barrier(replacements=(settings_as(files, settings),)).execute(fs)
    assert read_settings(fs.crash(), files) == settings
    assert [name for name in fs.list_directory("/s") if "tmp" in name] == []


def test_a_temporary_that_a_crash_left_is_known_for_what_it_is(fs, files):
    name = settings_as(files, StreamSettings()).temporary(17)
    fs.write_durably(name, b"{")
    fs.write_durably("/s/.diskq/stream.lock", b"")
    assert files.leftovers() == [name] == ["/s/.diskq/settings.json.17.tmp"]


# --- from options -----------------------------------------------------------------------------


def test_a_new_stream_says_what_its_options_say():
    options = StreamOptions(
        partition_count=5,
        segment_size=1024,
        retention_max_bytes=2048,
        retention_max_age=86_400.0,
        encoding="varuint",
    )
    assert settings_of(options, None) == StreamSettings(
        partition_count=5,
        segment_size=1024,
        retention_max_bytes=2048,
        retention_max_age_ns=DAY_NS,
        encoding="varuint",
    )
    assert settings_of(StreamOptions(), None) == StreamSettings()


EXISTING = StreamSettings(
    partition_count=2, segment_size=3, retention_max_bytes=4, retention_max_age_ns=5, encoding="varuint"
)


def test_what_options_leave_open_is_as_it_was():
    assert settings_of(StreamOptions(), EXISTING) == EXISTING
    assert settings_of(StreamOptions(partition_count=9, retention_max_age=1), EXISTING) == StreamSettings(
        partition_count=9,
        segment_size=3,
        retention_max_bytes=4,
        retention_max_age_ns=10**9,
        encoding="varuint",
    )


@pytest.mark.parametrize("had, wanted", [("fixed", "varuint"), ("varuint", "fixed")])
def test_a_stream_keeps_its_encoding(had, wanted):
    existing = StreamSettings(encoding=had)
    assert settings_of(StreamOptions(encoding=had), existing) == existing
    with pytest.raises(UnsupportedFormatError, match=f"/s/settings.json: .* encoding {had}"):
        settings_of(StreamOptions(encoding=wanted), existing, "/s/settings.json")


@pytest.mark.parametrize(
    "seconds, nanoseconds", [(1e-12, 1), (0.1, 10**8), (7, 7 * 10**9), (1 / 3, 333333333)]
)
def test_an_age_is_whole_nanoseconds_and_never_none_of_them(seconds, nanoseconds):
    settings = settings_of(StreamOptions(retention_max_age=seconds), None)
    assert settings.retention_max_age_ns == nanoseconds


@pytest.mark.parametrize(
    "option",
    [
        {"retention_max_age": float("inf")},
        {"retention_max_age": 9.3e9},
        {"segment_size": 2**63},
        {"retention_max_bytes": 2**63},
    ],
)
def test_options_that_settings_cannot_hold_are_refused(option):
    with pytest.raises(ValueError, match="is at most"):
        StreamOptions(**option)
