# `diskq top`: what a person sees, what a program reads, and what keys do.

from __future__ import annotations

import io
import json
import os
import subprocess
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from diskq import Journal, Queue, Stream
from diskq.cli.top.rows import COLUMNS, SORTS, sparkline
from diskq.cli.top.screen import Screen
from diskq.engine.priority.store import PriorityStore
from diskq.tools.stores import Store
from diskq.tools.watch.samples import Sample, SamplePart
from diskq.tools.watch.watch import StoreWatch, WatchReading
from tests.cli.conftest import PROGRAM, Terminal, fill

GOLDEN = Path(__file__).parent.parent / "golden"
QUICKLY = ("--interval", "10ms")


@pytest.fixture
def stores(tmp_path: Path) -> Path:
    """One of each, in directories of their own."""
    for name in ("queue", "spool", "jobs"):
        (tmp_path / name).mkdir()
    fill(tmp_path / "queue", b"one", b"two")
    fill(tmp_path / "spool", b"one", name="spool")
    (tmp_path / "spool" / ".diskq" / "spool.state").write_bytes(b"")
    with Stream(tmp_path / "stream") as stream:
        stream.append(b"one")
    with Journal(tmp_path / "journal") as journal:
        journal.append(b"one")
    with PriorityStore(tmp_path / "jobs") as store:
        store.put(store.queue(), b"one")
    return tmp_path


def objects(out: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


# --- without a terminal ---------------------------------------------------------------------------


def test_help_has_examples(run):
    done = run("top", "--help")
    assert done.code == 0
    assert b"examples:\n  diskq top" in done.out


@pytest.mark.parametrize(
    "arguments",
    [[], ["x", "--interval", "0s"], ["x", "--once", "--json"], ["x", "-n", "1"], ["x", "--json", "-n", "0"]],
    ids=" ".join,
)
def test_what_makes_no_sense_is_2(run, arguments):
    assert run("top", *arguments).code == 2


@pytest.mark.parametrize("kind", ["queue", "spool", "stream", "journal", "jobs"])
def test_once_is_one_table(run, stores, kind):
    done = run("top", stores / kind, "--once", *QUICKLY)
    lines = done.out.decode().splitlines()
    assert (done.code, done.notes, len(lines)) == (0, [], 2)
    assert lines[0].split()[:3] == ["kind", "name", "holder"]
    assert lines[1].startswith(kind)


def test_several_have_a_sum(run, stores):
    done = run("top", stores / "queue", stores / "stream", "--once", *QUICKLY)
    *_, last = done.out.decode().splitlines()
    assert last.split()[:3] == ["all", "2", "stores"]


def test_without_a_terminal_it_is_the_table(run, stores):
    done = run("top", stores / "queue", *QUICKLY)
    assert done.out.startswith(b"kind")


@pytest.mark.parametrize("kind", ["queue", "spool", "stream", "journal", "jobs"])
def test_json_is_an_object_for_each_look(run, stores, kind):
    done = run("top", stores / kind, "--json", "-n", 2, *QUICKLY)
    first, second = objects(done.out)
    assert first["things"][0]["messages_in"] is None
    (store,) = second["things"]
    assert (store["kind"], store["messages_in"]) == (kind, 0.0)
    assert store["depth"] == (2 if kind == "queue" else 1)
    assert store["oldest_of"] == ("message" if kind in ("stream", "journal") else "file")
    assert (store["sync"], store["bound"]) == (None, None)


@pytest.mark.parametrize(
    "path, depth, readers",
    [
        ("nsq/basic/data", 31, {}),
        ("diskq/three_parts/data", 60, None),
        ("sej/segments/data", 44, {"reader1": 27, "reader2": 44}),
        ("taskflux/cases/V05-all-deltas-preallocated/data", None, None),
    ],
)
def test_what_peers_left_is_shown(run, path, depth, readers):
    done = run("top", GOLDEN / path, "--json", "-n", 1)
    (store,) = objects(done.out)[0]["things"]
    assert "failure" not in store
    assert depth in (None, store["depth"])
    if readers is not None:
        assert {part["name"]: part["lag"] for part in store["parts"]} == readers


def test_where_nothing_is_it_says_so(run, tmp_path):
    done = run("top", tmp_path, "--once")
    assert (done.code, done.out) == (1, b"")
    assert "there is no store here" in done.notes[0]


def test_a_path_with_nothing_yet_is_reported_beside_the_others(run, stores):
    (stores / "later").mkdir()
    done = run("top", stores / "queue", stores / "later", "--once", *QUICKLY)
    assert done.code == 0
    assert b"queue" in done.out
    assert done.notes == [f"diskq: {stores / 'later'}: there is no store here yet"]


def test_a_path_that_is_not_there_is_an_error(run, tmp_path):
    assert run("top", tmp_path / "nowhere").code == 1


# --- the screen -----------------------------------------------------------------------------------


def reading(name: str, depth: int, *parts: SamplePart, problems: Sequence[str] = ()) -> WatchReading:
    store = Store("stream", name)
    sample = Sample(
        store=store, at=1.0, depth=depth, parts=tuple(parts), size=2048, segments=1, problems=tuple(problems)
    )
    return WatchReading(sample=sample, store=store, messages_in=float(depth), history=(1.0, 2.0))


def drawn(screen: Screen, width: int = 120, height: int = 20) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(screen)
    return capture.get().splitlines()


def names(screen: Screen) -> list[str]:
    return [line.split()[1] for line in drawn(screen)[2:-2]]


@pytest.fixture
def screen() -> Screen:
    lagging = reading("b", 30, SamplePart(name="billing", lag=7), problems=["x.bad"])
    return Screen(1.0, [reading("a", 10), lagging, reading("c", 20)])


def test_keys_sort(screen):
    assert names(screen) == ["a", "b", "c"]
    while screen.column != "depth":
        screen.press("s")
    assert names(screen) == ["b", "c", "a"]
    screen.press("S")
    assert screen.column == SORTS[SORTS.index("depth") - 1]


def test_keys_pause_and_quit(screen):
    screen.press("p")
    assert screen.is_paused
    assert "paused" in drawn(screen)[0]
    screen.press("q")
    assert screen.is_over


def test_enter_unfolds_the_chosen_one_and_folds_it_again(screen):
    screen.press("down")
    folded = drawn(screen)
    screen.press("enter")
    unfolded = "\n".join(drawn(screen))
    assert "  billing" in unfolded
    assert "  x.bad" in unfolded
    screen.press("enter")
    assert drawn(screen) == folded


@pytest.mark.parametrize("keys", [["up"] * 5, ["down"] * 9, ["right", "left"], ["?"]])
def test_no_key_leads_astray(screen, keys):
    for key in keys:
        screen.press(key)
    assert 0 <= screen.chosen < 3
    assert names(screen) == ["a", "b", "c"]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_what_fits_is_shown_and_no_line_is_longer(screen, width):
    lines = drawn(screen, width)
    assert max(map(len, lines)) <= width
    assert {"name", "in/s", "depth"} <= set(lines[1].replace(" ▾", "").split())


def test_a_wide_terminal_has_all_columns(screen):
    title = drawn(screen, 250)[1]
    assert all(column.name in title for column in COLUMNS)


def test_a_low_terminal_has_the_chosen_one():
    screen = Screen(1.0, [reading(f"s{number:02}", number) for number in range(50)])
    for _ in range(30):
        screen.press("down")
    lines = drawn(screen, height=10)
    assert len(lines) <= 10
    assert any("s30" in line for line in lines)


def test_a_sparkline_is_as_high_as_beside_the_highest():
    assert sparkline([0, 50, 100], 10) == "▁▅█"
    assert sparkline([0, 0], 10) == "▁▁"
    assert sparkline(range(100), 3) == "███"
    assert sparkline([], 10) == ""


def test_names_that_would_command_a_terminal_do_not(tmp_path):
    screen = Screen(1.0, [reading("\x1b[2Jgone", 1)], ["\x1b[2Jlater"])
    lines = drawn(screen)
    assert "\x1b" not in "".join(lines)
    assert "nothing yet at \\x1b[2Jlater" in lines


def test_what_cannot_be_looked_at_is_a_line(tmp_path):
    (tmp_path / "tflux.metadata").write_bytes(b"nonsense")
    (tmp_path / "tflux.snapshot").write_bytes(b"nonsense" * 100)
    lines = drawn(Screen(1.0, StoreWatch([tmp_path]).look()), 300)
    assert any(line.startswith("jobs") for line in lines)


# --- at a terminal --------------------------------------------------------------------------------


@pytest.mark.slow
def test_at_a_terminal_keys_and_sizes_are_heard(stores):
    with Terminal() as terminal:
        before = termios.tcgetattr(terminal.outer)
        streams: Any = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.outer)
        arguments: Any = [PROGRAM, "top", stores / "queue", stores / "stream", "--interval", "50ms"]
        environment: Any = os.environ | {"TERM": "xterm-256color"}
        for size in ("COLUMNS", "LINES"):  # they would go before the terminal's own; xdist sets them
            environment.pop(size, None)
        with subprocess.Popen(arguments, env=environment, **streams) as process:
            try:
                terminal.read_until("by name")
                terminal.type("s")
                terminal.read_until("by in/s")
                termios.tcsetwinsize(terminal.outer, (24, 200))
                process.send_signal(28)  # SIGWINCH: the kernel sends it only to processes of this terminal
                terminal.read_until("last minute")
                terminal.type("p")
                terminal.read_until("paused")
                terminal.type("q")
                terminal.read_until("\x1b[?1049l")
                assert process.wait(20) == 0
            except BaseException:
                process.kill()
                raise
        assert termios.tcgetattr(terminal.outer) == before


def test_a_queue_that_grows_has_a_rate(run, tmp_path):
    with Queue(tmp_path, "q") as queue:
        queue.put(b"x")
        queue.sync()
        watch = StoreWatch([tmp_path])
        watch.look()
        queue.put_many([b"x"] * 100)
        (found,) = watch.look()
    assert found.messages_in is not None
    assert found.messages_in > 0
