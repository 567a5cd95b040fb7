# What leaves a command, and what comes in: each verb that prints or reads, with standard streams that are
# closed, full, or do not wait. Law: exit code 0 means that everything has left; a count is true; what was not
# printed was not taken.

from __future__ import annotations

import base64
import fcntl
import os
import re
import select
import shutil
import termios
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import diskq
from diskq.cli import command_parser
from diskq.cli.core.parsing import parse
from diskq.cli.stream.view import StreamView
from diskq.engine.journal.journal import Journal
from diskq.engine.journal.reader_offset import JournalCommittedOffset
from diskq.engine.priority.store import PriorityStore
from diskq.engine.spool.dead_letters import DeadLetter, DeadLetters
from diskq.engine.spool.files import SPOOL
from diskq.engine.stream.groups import ConsumerGroup
from diskq.tools.stores import stores_below
from diskq.tools.verify.verification import verify
from tests.cli.conftest import Terminal, fill, program
from tests.cli.forked import Forks
from tests.cli.test_command_line import VERBS as COMMANDS
from tests.sampling import sampled
from tests.tools.damaged import flip

COUNT = 200
BODIES = [b"%06d " % number + b"x" * 290 for number in range(COUNT)]
LINES = b"".join(body + b"\n" for body in BODIES)
JSON_LINES = b"".join(b'{"value":"%s"}\n' % base64.b64encode(body) for body in BODIES)
ROOM = 20_000  # bytes that fit before the disk is full
PIPE = 4096
SEGMENT = 16_000  # bytes: streams and journals have several

# --- the verbs --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verb:
    """A command line, in a directory with a store of its name."""

    words: str
    store: str
    stdin: bytes | None = field(default=None, repr=False)
    effect: str = "none"  # or "send", "take"; "print": a line for each message, and their number
    is_exact: bool = True
    """False: times, processes and sizes in what it prints differ from run to run."""
    code: int = 0
    """The exit code where all is well."""

    def __str__(self) -> str:
        return self.words


VERBS = [
    Verb("queue send ./queue q", "queue", LINES, "send"),
    Verb("stream send ./stream", "stream", LINES, "send", is_exact=False),
    Verb("journal send ./journal", "journal", LINES, "send"),
    Verb("priority send ./priority", "priority", LINES, "send"),
    Verb("spool send ./spool", "spool", LINES, "send"),
    Verb("convert - ./queue --to nsq --into q --append", "queue", JSON_LINES, "send"),
    Verb("queue receive ./queue q", "queue", effect="take"),
    Verb("queue receive ./queue q --base64", "queue", effect="take"),
    Verb("queue receive ./queue q --follow -n 200", "queue", effect="take"),
    Verb("priority receive ./priority", "priority", effect="take"),
    Verb("priority receive ./priority --follow -n 200", "priority", effect="take"),
    Verb("stream read ./stream --group g", "stream", effect="take"),
    Verb("stream read ./stream", "stream"),
    Verb("stream read ./stream --json", "stream"),
    Verb("stream read ./stream --end wait -n 200", "stream"),
    Verb("stream tail ./stream -n 150", "stream"),
    Verb("stream replay ./stream --speed max", "stream", effect="print"),
    Verb("journal read ./journal", "journal"),
    Verb("journal tail ./journal --max-messages 150", "journal"),
    Verb("journal dump ./journal/jnl/0000000000000000.jnl --json", "journal"),
    Verb("journal replay ./journal --speed max", "journal", effect="print"),
    Verb("queue peek ./queue q -n 150", "queue"),
    Verb("priority peek ./priority -n 150", "priority"),
    Verb("convert ./stream -", "stream", effect="print"),
    Verb("convert ./queue -", "queue", effect="print"),
    Verb("convert ./journal -", "journal", effect="print"),
    Verb("convert ./priority -", "priority", effect="print"),
    Verb("repair ./stream --salvage -", "stream", effect="print"),
    Verb("repair ./queue --salvage -", "queue", effect="print"),
    Verb("repair ./journal --salvage -", "journal", effect="print"),
    Verb("repair ./priority --salvage -", "priority", effect="print"),
    Verb("repair ./spool --salvage -", "spool", effect="print"),
    Verb("repair ./journal-damaged --salvage -", "journal-damaged", effect="print"),
    Verb("repair ./priority-damaged --salvage -", "priority-damaged", effect="print"),
    Verb("spool dead list ./spool --json", "spool"),
    Verb("spool dead list ./spool", "spool"),
    Verb("spool dead purge ./spool --all", "spool"),
    Verb("spool dead replay ./spool --all --json", "spool"),
    Verb("spool status ./spool", "spool", is_exact=False),
    Verb("spool info ./spool", "spool", is_exact=False),
    Verb("spool run ./spool --exec true --drain", "spool"),
    Verb("queue info ./queue", "queue", is_exact=False),
    Verb("queue info ./queue q --json", "queue", is_exact=False),
    Verb("queue clear ./queue q --yes", "queue"),
    Verb("stream info ./stream", "stream", is_exact=False),
    Verb("stream stats ./stream", "stream", is_exact=False),
    Verb("stream groups ./stream", "stream", is_exact=False),
    Verb("stream lookup ./stream --at -1h", "stream"),
    Verb("stream groups ./stream --reset seen --to oldest", "stream"),
    Verb("stream vacuum ./stream --max-bytes 1", "stream"),
    Verb("stream create ./stream", "stream"),
    Verb("stream table ./stream --into ./lake", "stream", is_exact=False),
    Verb("journal count ./journal", "journal"),
    Verb("journal table ./journal --into ./lake", "journal", is_exact=False),
    Verb("journal info ./journal", "journal", is_exact=False),
    Verb("journal timestamp ./journal --offset 0", "journal", is_exact=False),
    Verb("journal offset ./journal", "journal"),
    Verb("journal reset ./journal --reader seen --to oldest", "journal"),
    Verb("journal old ./journal --days 0", "journal"),
    Verb("journal file ./journal/jnl/0000000000000000.jnl", "journal", is_exact=False),
    Verb("priority create ./priority alarms", "priority"),
    Verb("priority delete ./priority mail --yes", "priority"),
    Verb("priority info ./priority", "priority", is_exact=False),
    Verb("priority snapshot ./priority", "priority"),
    Verb("priority repair ./priority-damaged", "priority-damaged"),
    Verb("priority repair ./priority-damaged --apply", "priority-damaged"),
    Verb("priority queues ./priority", "priority", is_exact=False),
    Verb("priority inspect ./priority", "priority", is_exact=False),
    Verb("info ./queue ./stream ./journal ./priority ./spool", "", is_exact=False),
    Verb("verify ./queue ./stream ./journal ./priority ./spool", "", is_exact=False),
    Verb("verify ./queue --json", "queue", is_exact=False),
    Verb("repair ./stream", "stream"),
    Verb("repair ./stream-damaged", "stream-damaged", code=1),
    Verb("repair ./queue-damaged --apply", "queue-damaged"),
    Verb("repair ./spool-damaged --apply", "spool-damaged"),
    Verb("repair ./stream-damaged --apply", "stream-damaged"),
    Verb("repair ./journal-damaged --apply", "journal-damaged"),
    Verb("repair ./priority-damaged --apply", "priority-damaged"),
    Verb("checkpoint ./queue", "queue", is_exact=False),
    Verb("top ./queue --once --interval 10ms", "queue", is_exact=False),
    Verb("top ./queue --json -n 2 --interval 10ms", "queue", is_exact=False),
    Verb("completion bash", "queue"),
    Verb("queue --help", "queue"),
    Verb("--version", "queue"),
    Verb("queue receive", "queue", code=2),  # an invalid command line
    Verb("queue info ./nowhere", "queue", code=1),
]  # fmt: skip

# The verbs that no case runs, with the reason.
NOT_RUN = {
    "hub serve": "it goes on until it is interrupted: test_signals.py",
    "hub push": "it needs a hub, which takes a second to start: test_hub.py",
    "hub status": "it needs a hub, too",
    "pipeline aggregate": "a pipeline needs Spark, which takes seconds to start: tests/spark",
    "pipeline replay": "it needs Spark",
    "pipeline reshard": "it needs Spark",
    "pipeline merge": "it needs Spark",
    "pipeline dedupe-merge": "it needs Spark",
    "bench": "it takes three seconds, and prints something else each time: test_bench.py",
}

STREAMS = ["stdin", "stdout", "stderr"]
CONDITIONS = [
    "stdin closed",
    "stdout closed",
    "stderr closed",
    "stdin does not wait",
    "stdout does not wait",
    "stderr does not wait",
    "stdout full",
    "stdout full later",
    "stderr full",
]

CASES = [
    (verb, condition, is_unbuffered)
    for verb in VERBS
    for condition in CONDITIONS
    for is_unbuffered in (False, True)
]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stores")
    (root / "queue").mkdir()
    fill(root / "queue", *BODIES)
    options = diskq.StreamOptions(partition_count=2, segment_size=SEGMENT)
    with diskq.Stream(root / "stream", options=options) as stream:
        for number, body in enumerate(BODIES):
            stream.append(body, b"%d" % number)
    commit_all(root / "stream", "seen")
    with Journal(root / "journal", options=diskq.JournalOptions(segment_size=SEGMENT)) as journal:
        for body in BODIES:
            journal.append(body)
    with JournalCommittedOffset(root / "journal", "seen") as reader:
        reader.commit_to(COUNT)
    with PriorityStore(root / "priority") as store:
        store.create_queue("mail")
        for body in BODIES:
            store.put(store.queue(""), body, 1)
    (root / "spool").mkdir()
    fill(root / "spool", *BODIES, name=SPOOL)
    with DeadLetters(root / "spool") as found:
        found._add([DeadLetter(f"a-{n}", "too long", 10**18, 1, body) for n, body in enumerate(BODIES)])
    for kind in ("queue", "stream", "journal", "priority", "spool"):
        copy_damaged(root / kind)
    return root


def commit_all(path: Path, group: str) -> None:
    """Make a group that has read all of a stream."""
    view = StreamView(str(path))
    for partition in view.partitions():
        with (
            view.reader(partition) as reader,
            ConsumerGroup(view.fs, view.files, group).committed_offset(partition) as committed,
        ):
            committed.commit(reader.next_offset() - 1, seek=True)


def copy_damaged(store: Path) -> None:
    """Make a copy of a store, `<name>-damaged`, in which a bit of a message has rotted."""
    copy = store.with_name(f"{store.name}-damaged")
    shutil.copytree(store, copy)
    body = BODIES[COUNT // 2]
    for path in sorted(copy.rglob("*")):
        if path.is_file() and body in (content := path.read_bytes()):
            flip(path, content.index(body) + len(body) // 2)
            return
    raise AssertionError(f"{store} has no file with message {COUNT // 2}")


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as forks:
        yield forks


# --- one run ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    code: int
    out: bytes
    err: str
    left: int
    """Messages in the store afterwards; where a group reads, those that it has not committed."""
    is_unchanged: bool


class Pipe:
    """A pipe to a command, or from it, that is served by a thread."""

    def __init__(self, serve: Callable[[], None], *handles: int) -> None:
        self._handles = handles
        self._thread = threading.Thread(target=serve)
        self._thread.start()

    def end(self) -> None:
        self._thread.join()
        for handle in self._handles:
            os.close(handle)


def feeding(data: bytes, *, waits: bool) -> tuple[int, Pipe]:
    """Return the end that a command reads: it gets a piece, then nothing until it has read that."""
    source, sink = os.pipe()
    os.set_blocking(source, waits)

    def serve() -> None:
        try:
            for at in range(0, len(data), len(data) // 3 or 1):
                while not waits and has_unread(sink):
                    os.sched_yield()
                rest = data[at : at + (len(data) // 3 or 1)]
                while rest:
                    rest = rest[os.write(sink, rest[:PIPE]) :]
        except BrokenPipeError:
            pass
        finally:
            os.close(sink)

    return source, Pipe(serve)


def has_unread(sink: int) -> bool:
    """True if a pipe has bytes that its reader will read."""
    ends = select.poll()
    ends.register(sink, 0)
    is_broken = bool(ends.poll(0))
    return not is_broken and fcntl.ioctl(sink, termios.FIONREAD, bytes(4)) != bytes(4)


def draining(into: bytearray, *, waits: bool) -> tuple[int, Pipe]:
    """Return the end that a command writes to. It is small, so it is full again and again."""
    source, sink = os.pipe()
    fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, PIPE)
    os.set_blocking(sink, waits)

    def serve() -> None:
        while data := os.read(source, PIPE):
            into.extend(data)

    return sink, Pipe(serve, source)


def almost_full(path: Path) -> tuple[int, int]:
    """Return a file that takes ROOM bytes, and where they begin: before the end of all files."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    low, high = 0, 2**63 - 1
    while low < high:
        middle = (low + high + 1) // 2
        try:
            low = os.lseek(handle, middle, os.SEEK_SET)
        except OSError:  # EINVAL
            high = middle - 1
    return handle, os.lseek(handle, low - ROOM, os.SEEK_SET)


def bytes_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def messages_in(root: Path) -> int:
    return sum(verify(store).messages or 0 for store in stores_below(str(root)))


def left_in(at: Path, verb: Verb) -> int:
    """See `Run.left`."""
    words = verb.words.split()
    if "--group" not in words:
        return messages_in(at / verb.store)
    view = StreamView(str(at / verb.store))
    group = ConsumerGroup(view.fs, view.files, words[words.index("--group") + 1])
    committed = group.offsets().offsets
    left = 0
    for partition in view.partitions():
        last = committed.get(partition)
        with view.reader(partition) as reader:
            left += reader.next_offset() - (0 if last is None else last + 1)
    return left


def run(forks: Forks, at: Path, verb: Verb, condition: str = "", *, is_unbuffered: bool = False) -> Run:
    """Run it in the directory `at`."""
    before = bytes_of(at)
    out, err = bytearray(), bytearray()
    start = 0
    stdin, feeder = feeding(verb.stdin or b"", waits=condition != "stdin does not wait")
    stdout, drainer = draining(out, waits=condition != "stdout does not wait")
    stderr, listener = draining(err, waits=condition != "stderr does not wait")
    streams = {0: stdin, 1: stdout, 2: stderr}
    full = -1
    match condition.split():
        case [name, "closed"]:
            del streams[STREAMS.index(name)]
        case [name, "full"]:
            full = streams[STREAMS.index(name)] = os.open("/dev/full", os.O_WRONLY)
        case [name, "full", "later"]:
            full, start = almost_full(at / "out")
            streams[STREAMS.index(name)] = full
    words = [str(at / word) if word.startswith("./") else word for word in verb.words.split()]
    forks.start(words, streams, is_unbuffered=is_unbuffered, environ={"TERM": "dumb", "COLUMNS": "80"})
    for handle in (stdin, stdout, stderr):
        os.close(handle)
    code = forks.code()
    for pipe in (feeder, drainer, listener):
        pipe.end()
    if start:
        out += os.pread(full, ROOM + 1, start)
        os.unlink(at / "out")
    if full >= 0:
        os.close(full)
    text = bytes(out).replace(os.fsencode(at), b"AT")
    notes = err.decode().replace(str(at), "AT")
    is_unchanged = bytes_of(at) == before
    return Run(code, text, notes, left_in(at, verb), is_unchanged)


def copy_of(stores: Path, verb: Verb, to: Path) -> Path:
    """Return a directory with a copy of the store of the verb; of each that is whole, if it names none."""
    to.mkdir()
    for path in stores.iterdir():
        if path.name == verb.store or not (verb.store or path.name.endswith("-damaged")):
            shutil.copytree(path, to / path.name)
    return to


_BASES: dict[Verb, Run] = {}


def base_of(forks: Forks, stores: Path, verb: Verb, tmp_path: Path) -> Run:
    """What it does where all is well."""
    if verb not in _BASES:
        base = run(forks, copy_of(stores, verb, tmp_path / "base"), verb)
        assert base.code == verb.code, base.err  # another error would be compared with itself
        _BASES[verb] = base
    return _BASES[verb]


# --- what has to hold -------------------------------------------------------------------------------------

_DONE = "sent|received|read|converted|written|replayed|delivered|purged|removed"
_COUNT = re.compile(rf"(\d[\d,]*)(?: messages?)?(?: \([^)]*\))? (?:{_DONE})")


def counted(run: Run) -> int | None:
    """Return the number of messages that it reports on stderr, of all its stores; None if it reports none."""
    found = [int(count.replace(",", "")) for count in _COUNT.findall(run.err)]
    return sum(found) if found else None


def is_same(found: Run, base: Run, verb: Verb) -> bool:
    """True if it did and printed what it does where all is well."""
    out = found.out == base.out if verb.is_exact else found.out.count(b"\n") == base.out.count(b"\n")
    return out and (found.code, found.left, counted(found)) == (base.code, base.left, counted(base))


def check(found: Run, base: Run, verb: Verb, condition: str) -> None:
    name, how = condition.split(" ", 1)
    room = {"full": 0, "full later": ROOM}.get(how)
    if how == "closed" and (name != "stdin" or verb.stdin is not None):
        assert (found.code, found.out, found.is_unchanged) == (1, b"", True)
        assert name == "stderr" or f"{name}: it is closed" in found.err
    elif name == "stdout" and room is not None and len(base.out) > room:
        assert found.code not in (0, 70, 120)
        assert "stdout: " in found.err
        assert len(found.out) == room
        assert found.out == base.out[:room] or not verb.is_exact
    elif how == "full" and name == "stderr" and base.err:
        assert found.code not in (0, 70, 120)
        assert found.out == base.out or not verb.is_exact
        assert found.left == base.left
    else:
        assert is_same(found, base, verb)
    if verb.effect == "send" and counted(found) is not None:
        held = COUNT * (2 if verb.store == "spool" else 1)  # it has dead letters, too
        assert counted(found) == found.left - held
    if verb.effect == "take":
        assert found.out.count(b"\n") + found.left >= COUNT  # nothing is gone that has not come out
    if verb.effect in ("take", "print"):
        assert (counted(found) or 0) <= found.out.count(b"\n")


@pytest.mark.parametrize("verb", VERBS, ids=str)
def test_the_command_line_of_a_case_is_a_valid_one(verb: Verb):
    words = verb.words.split()
    code = 0
    try:
        parse(command_parser(words[:1]), words)
    except SystemExit as exit:  # by argparse, also after --help
        code = int(exit.code or 0)
    assert (code == 2) == (verb.code == 2)


def test_each_verb_is_in_a_case_or_it_is_said_why_not():
    lines = [verb.words.split() for verb in VERBS]
    for command in COMMANDS:
        words = command.name.split()[1:]
        is_run = any(line[: len(words)] == words for line in lines)
        assert is_run != (" ".join(words) in NOT_RUN), command.name


@pytest.mark.parametrize("verb, condition, is_unbuffered", sampled(CASES, 32), ids=str)
def test_what_is_printed_has_left_and_what_is_counted_is_true(
    forks: Forks, stores: Path, tmp_path: Path, verb: Verb, condition: str, is_unbuffered: bool
):
    base = base_of(forks, stores, verb, tmp_path)
    at = copy_of(stores, verb, tmp_path / "at")
    check(run(forks, at, verb, condition, is_unbuffered=is_unbuffered), base, verb, condition)


@pytest.mark.parametrize("is_terminal", [False, True], ids=["pipe", "terminal"])
def test_text_that_the_encoding_lacks_is_escaped(forks: Forks, tmp_path: Path, is_terminal: bool):
    fill(tmp_path, b"one", name=SPOOL)
    with DeadLetters(tmp_path) as found:
        found._add([DeadLetter("a-0", "trop élevé", 10**18, 1, b"one")])
    out = bytearray()
    words = ["spool", "dead", "list", str(tmp_path)]
    with Terminal() as terminal, open(os.devnull, "r+b") as nothing:
        handle, drainer = draining(out, waits=True)
        stdout = terminal.outer if is_terminal else handle
        forks.start(words, {0: nothing.fileno(), 1: stdout, 2: nothing.fileno()}, encoding="ascii")
        os.close(handle)
        assert forks.code() == 0
        drainer.end()
        shown = terminal.read_until(r"lev\xe9") if is_terminal else out.decode("ascii")
    assert r"trop \xe9lev\xe9" in shown


@pytest.mark.slow
def test_a_short_write_of_a_process_with_pythonunbuffered_is_an_error(stores: Path, tmp_path: Path):
    handle, start = almost_full(tmp_path / "out")
    environ = os.environ | {"PYTHONUNBUFFERED": "1"}
    done = program("convert", stores / "stream", "-", stdout=handle, env=environ)
    out = os.pread(handle, ROOM + 1, start)
    os.close(handle)
    assert (done.code, len(out)) == (1, ROOM)  # what fits, and not a byte less
    assert done.notes == ["diskq: error: stdout: File too large"]
