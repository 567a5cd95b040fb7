# That the guided engine is guided: by the branches of Python and by those of compiled code; and that what it
# finds and what it learned are kept.

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.torture import guided
from tests.torture.decoders import Decoder
from tests.torture.findings import Fuzzed, file_name
from tests.torture.fuzz import fuzz, main, replay
from tests.torture.toy_decoders import COMPILED_IN, compile_toy, toys

SOURCE = "tests.torture.toy_decoders:toys"
SECONDS = 40.0  # at most; a fault in a toy takes one or two
TOYS = toys()


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    if (reason := guided.why_not()) is not None:
        pytest.skip(reason)
    return tmp_path / "kept"


def guided_search(name: str, kept: Path, *, seconds: float = SECONDS) -> Fuzzed:
    decoder = Decoder(TOYS["toy, Python"].seeds, print)  # it is the child's that is run
    search = guided.Guided({name: decoder}, seconds=seconds, seed=7, source=SOURCE, kept=kept)
    with contextlib.closing(search.results()) as results:
        return next(results)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_fault_behind_three_branches_of_python_is_found(kept: Path) -> None:
    found = guided_search("toy, Python", kept, seconds=12)
    ((what, data),) = found.findings.items()
    assert what.startswith("IndexError at toy_decoders.py:")
    assert data.startswith(b"dsk")
    assert found.coverage is not None
    assert found.coverage[1] > found.coverage[0]
    corpus = [file.read_bytes() for file in (kept / "corpus" / file_name(found.name)).iterdir()]
    assert any(each.startswith(b"ds") for each in corpus)
    assert replay(found.name, TOYS[found.name], kept).cases == len(corpus)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_byte_read_behind_the_end_in_compiled_code_is_found(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = guided.clang()
    assert compiler is not None
    monkeypatch.setenv(COMPILED_IN, str(compile_toy(compiler, tmp_path)))
    monkeypatch.setattr(guided, "MOST_CRASHES", 1)
    found = guided_search("toy, compiled", kept)
    ((what, data),) = found.findings.items()
    assert "heap-buffer-overflow" in what
    assert data[:4] in (b"dsk\x10", b"dsk\x11")


def test_bytes_changed_at_random_do_not_find_it() -> None:
    assert fuzz("toy, Python", TOYS["toy, Python"], 7, cases=20_000).findings == {}


def test_without_what_it_needs_it_says_what_that_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(guided, "why_not", lambda: "there is no clang")
    with pytest.raises(SystemExit) as ended:
        main(["--guided", "--only", "nsq records"])
    assert ended.value.code == 2
    assert "--guided: there is no clang" in capsys.readouterr().err


def test_where_it_is_only_tried_bytes_are_changed_at_random_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(guided, "why_not", lambda: "there is no clang")
    assert main(["--guided", "try", "--only", "nsq records", "--each", "0.1"]) == 0
    told = capsys.readouterr().out
    assert "at random, not guided: there is no clang" in told
    assert "1 decoders, 0.1 s each" in told
