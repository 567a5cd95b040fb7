"""What `diskq verify` says, judged by what an open then delivers: python -m tests.torture.truth

A root with a queue, a stream, a journal, a priority store and a spool is filled, and closed or killed. One
file of one of them is damaged. Then `diskq verify` looks at the whole root, and a copy of the damaged one is
opened and read. Law: whatever is missing or altered is reported by both; nothing is called lost that is
delivered; nothing that nobody sent is delivered; the exit code is 1 where something is wrong, the damaged
one is named, and of the others it says what it said before. Ends with 1 where that is not so.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import trio

import diskq
from diskq import cli
from diskq.engine.journal.journal import Journal
from diskq.engine.journal.reader import JournalReader
from diskq.engine.priority.store import PriorityStore
from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.spool.dead_letters import DeadLetters
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.partition_reader import PartitionReader
from diskq.engine.stream.stream import Stream
from diskq.errors import CorruptionError, DiskqError, LockedError, UnsupportedFormatError
from diskq.storage.fs import OsFileSystem
from diskq.tools.findings import Finding, Verification
from diskq.tools.stores import Kind, Store
from tests.torture.messages import message, number_of

__all__ = ["DAMAGES", "KINDS", "Case", "Judged", "Root", "judge", "main", "run"]

KINDS: tuple[Kind, ...] = ("queue", "stream", "journal", "jobs", "spool")
QUEUES = ("", "mail")
MOST = 100_000
LONGEST_OPEN = 2.0
# So many damages are done to copies of one root.
_OF_ONE_ROOT = 20


@dataclass(frozen=True, slots=True)
class Verified:
    """What `diskq verify` says of a root."""

    exit_code: int
    found: list[Verification]
    unseen: list[str] = field(default_factory=list)

    def of(self, kind: Kind) -> list[Verification]:
        return [each for each in self.found if Path(each.store.path).name == kind]

    def of_others(self, kind: Kind) -> dict[str, tuple[str, int, int]]:
        others = [each for each in self.found if Path(each.store.path).name != kind]
        return {Path(each.store.path).name: (each.verdict, each.messages, each.lost) for each in others}


def verified(path: Path) -> Verified:
    """By its command, in this process."""
    told = io.StringIO()
    with redirect_stdout(told):
        code = cli.main(["verify", "--json", str(path)])
    answer = json.loads(told.getvalue())
    found = [
        Verification(
            store=Store(each["kind"], each["path"], each["name"] or ""),
            messages=each["messages"],
            size=each["size"],
            checksummed=each["checksummed"],
            findings=tuple(Finding(**finding) for finding in each["findings"]),
        )
        for each in answer["things"]
    ]
    return Verified(code, found, [each["error"] for each in answer["unseen"]])


# --- a root ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Root:
    """What was made: of each kind the numbers that were sent, and those of them that must come."""

    path: Path
    is_killed: bool
    sent: dict[Kind, set[int]] = field(default_factory=dict)
    due: dict[Kind, set[int]] = field(default_factory=dict)
    verified: Verified = field(default_factory=lambda: Verified(0, []))
    """What verify says of it before it is damaged."""
    twice: set[int] = field(default_factory=set)
    """Between the two steps of becoming a dead letter a message is in both queues of a spool."""

    def save(self, path: Path) -> None:
        listed = [{kind: sorted(numbers) for kind, numbers in of.items()} for of in (self.sent, self.due)]
        path.write_text(json.dumps(listed))

    def load(self, path: Path) -> None:
        self.sent, self.due = ({kind: set(of[kind]) for kind in KINDS} for of in json.loads(path.read_text()))


def make_root(path: Path, seed: int, *, is_killed: bool) -> Root:
    """Fill it in a child, which closes it or dies."""
    root = Root(path, is_killed)
    told = path.with_name(path.name + ".told")
    path.mkdir()
    child = os.fork()
    if not child:
        code = 1
        try:
            trio.run(_fill, root, seed, told)
            root.save(told)
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the root of seed {seed} could not be made"
    root.load(told)
    root.verified = verified(path)
    copy = path.with_name(path.name + ".read")
    shutil.copytree(path / "spool", copy)
    counted = Counter(map(number_of, read_all(str(copy), "spool").bodies))
    root.twice = {number for number, count in counted.items() if number is not None and count > 1}
    shutil.rmtree(copy)
    return root


async def _fill(root: Root, seed: int, told: Path) -> None:
    async with trio.open_nursery() as nursery:
        done = 0
        all_filled = trio.Event()

        async def one(kind: Kind) -> None:
            nonlocal done
            directory = root.path / kind
            directory.mkdir()
            root.sent[kind], root.due[kind] = set(), set()
            chosen = random.Random(f"root {seed} {kind}")
            async with _FILL[kind](str(directory), chosen, root.sent[kind], root.due[kind]):
                done += 1
                if done == len(KINDS):
                    all_filled.set()
                if root.is_killed:
                    await trio.sleep_forever()

        for kind in KINDS:
            nursery.start_soon(one, kind)
        if root.is_killed:
            await all_filled.wait()
            # What was on its way is written; what a thread does in this moment ends with it, too.
            root.save(told)
            os._exit(0)


def _bodies(kind: Kind, chosen: random.Random, most: int = 60) -> list[tuple[int, bytes]]:
    first = 1000 * (KINDS.index(kind) + 1)
    return [(number, message(number)) for number in range(first, first + chosen.randint(1, most))]


def _word(chosen: random.Random) -> diskq.Durability:
    return chosen.choice(("written", "written", "written", "synced"))


@asynccontextmanager
async def _queue(path: str, chosen: random.Random, sent: set[int], due: set[int]) -> AsyncIterator[None]:
    options = diskq.QueueOptions(segment_size=chosen.choice((1500, 3000, 1_000_000)))
    async with diskq.open_queue(path, "events", options=options) as queue:
        bodies = _bodies("queue", chosen)
        for number, body in bodies:
            await queue.send(body, durability=_word(chosen))
            sent.add(number)
            due.add(number)
        for _ in range(chosen.choice((0, 0, len(bodies) // 3, len(bodies)))):
            due.discard(number_of(await queue.receive()) or 0)
        yield


@asynccontextmanager
async def _stream(path: str, chosen: random.Random, sent: set[int], due: set[int]) -> AsyncIterator[None]:
    options = diskq.StreamOptions(
        partition_count=chosen.randint(1, 2), segment_size=chosen.choice((1500, 3000, 1_000_000))
    )
    async with diskq.open_producer(path, options=options) as stream:
        for number, body in _bodies("stream", chosen):
            await stream.send(body, key=b"key %d" % number, durability=_word(chosen))
            sent.add(number)
            due.add(number)
        yield


@asynccontextmanager
async def _journal(path: str, chosen: random.Random, sent: set[int], due: set[int]) -> AsyncIterator[None]:
    options = diskq.JournalOptions(segment_size=chosen.choice((1500, 3000, 1_000_000)))
    async with diskq.open_journal(path, options=options) as journal:
        for number, body in _bodies("journal", chosen):
            await journal.send(body, key=b"key %d" % number, durability=_word(chosen))
            sent.add(number)
            due.add(number)
        yield


@asynccontextmanager
async def _jobs(path: str, chosen: random.Random, sent: set[int], due: set[int]) -> AsyncIterator[None]:
    options = diskq.PriorityOptions(
        soft_limit=chosen.choice((800, 2000, 1_000_000)),
        snapshot_segments=chosen.choice((2, 1000)),
        preallocate=chosen.random() < 0.5,
    )
    async with diskq.open_priority_store(path, options=options) as store:
        queues = [store.queue(), await store.create_queue("mail")]
        for number, body in _bodies("jobs", chosen):
            queue = chosen.choice(queues)
            await queue.send(body, chosen.randint(0, 5), durability=_word(chosen))
            sent.add(number)
            due.add(number)
            if chosen.random() < 0.2 and queue.statistics().ready:
                record = await queue.receive()
                await queue.ack(record)
                due.discard(number_of(record.body) or 0)
        yield


@asynccontextmanager
async def _spool(path: str, chosen: random.Random, sent: set[int], due: set[int]) -> AsyncIterator[None]:
    wanted = chosen.choice((0, 0, 5, 20))

    async def deliver(batch: Sequence[bytes]) -> None:
        numbers = [number_of(body) or 0 for body in batch]
        if len(sent) - len(due) >= wanted:
            raise OSError("nobody is there")
        if bad := [at for at, number in enumerate(numbers) if number % 7 == 3]:
            raise diskq.Permanent("not wanted", bad)
        due.difference_update(numbers)

    options = diskq.SpoolOptions(
        max_messages=3, queue=diskq.QueueOptions(segment_size=chosen.choice((1500, 1_000_000)))
    )
    async with diskq.open_spool(path, deliver=deliver, options=options) as spool:
        for number, body in _bodies("spool", chosen):
            # Delivered as soon as it is in: it is due until then.
            sent.add(number)
            due.add(number)
            await spool.send(body, durability=_word(chosen))
        await trio.sleep(0.005)
        yield


_FILL = {"queue": _queue, "stream": _stream, "journal": _journal, "jobs": _jobs, "spool": _spool}


# --- damage ----------------------------------------------------------------------------------------

Content: TypeAlias = bytes | bytearray | None


def _flip(file: Path, content: bytearray, chosen: random.Random, others: list[Path]) -> Content:
    if not content:
        return None
    content[chosen.randrange(len(content))] ^= 1 << chosen.randrange(8)
    return content


def _cut(file: Path, content: bytearray, chosen: random.Random, others: list[Path]) -> Content:
    return content[: chosen.randrange(len(content))] if content else None


def _empty(file: Path, content: bytearray, chosen: random.Random, others: list[Path]) -> Content:
    return b"" if content else None


def _zero(file: Path, content: bytearray, chosen: random.Random, others: list[Path]) -> Content:
    if not content:
        return None
    start = chosen.randrange(len(content))
    size = chosen.choice((1, 4, 16, 100, 512))
    end = min(len(content), start + size)
    content[start:end] = bytes(end - start)
    return content


def _add_zeros(file: Path, content: bytearray, chosen: random.Random, others: list[Path]) -> Content:
    return content + bytes(chosen.choice((1, 4, 24, 100, 512, 5000)))


def _add_garbage(file: Path, content: bytearray, chosen: random.Random, others: list[Path]) -> Content:
    return content + chosen.randbytes(chosen.choice((1, 4, 24, 100, 512)))


def _delete(file: Path, content: bytearray, chosen: random.Random, others: list[Path]) -> Content:
    file.unlink()
    return None


def _swap(file: Path, content: bytearray, chosen: random.Random, others: list[Path]) -> Content:
    if not others:
        return None
    other = chosen.choice(others)
    kept = other.read_bytes()
    other.write_bytes(content)
    return kept


def _duplicate(file: Path, content: bytearray, chosen: random.Random, others: list[Path]) -> Content:
    """The file again, in another one's place."""
    if others:
        chosen.choice(others).write_bytes(content)
    return None


Damage = Callable[[Path, bytearray, random.Random, list[Path]], Content]
DAMAGES: dict[str, Damage] = {
    "flip": _flip,
    "cut": _cut,
    "empty": _empty,
    "zero": _zero,
    "add zeros": _add_zeros,
    "add garbage": _add_garbage,
    "delete": _delete,
    "swap": _swap,
    "duplicate": _duplicate,
}
# Flips and cuts are what happens; the rest is seldom.
_WEIGHTS = (6, 4, 1, 3, 1, 2, 3, 1, 1)


@dataclass(frozen=True, slots=True)
class Case:
    """What was done to which file."""

    seed: int
    kind: Kind
    is_killed: bool
    damage: str
    file: str
    """Below the store's directory."""

    @property
    def is_moved(self) -> bool:
        """True if a file has another one's place."""
        return self.damage in ("swap", "duplicate")

    def is_known(self, fault: str) -> bool:
        """True if the pages of docs/format say that it is so, and why.

        Complete logs of TaskFlux may change places without a word. Nothing in a file of checksums, or in a
        queue's metadata, names what it is of: how many messages are gone is then told by that of another. And
        what a queue's file has behind its end is what another program appends, whoever it was.
        """
        if self.kind == "jobs" and self.file.endswith(".log") and fault.startswith("gone"):
            return self.is_moved
        if self.kind in ("queue", "spool") and self.file.endswith(".dat") and fault == "altered":
            return self.is_moved
        is_of_another = self.is_moved and self.file.endswith((".sums", ".meta.dat"))
        return is_of_another and fault in ("false lost", "verify counts others")


def damage(root: Path, kind: Kind, seed: int, *, is_killed: bool) -> Case | None:
    """Do one thing to one file. None: nothing has changed."""
    chosen = random.Random(f"damage {seed}")
    directory = root / kind
    files = sorted(file for file in directory.rglob("*") if file.is_file())
    if chosen.random() < 0.5:  # there are more small files than large ones
        sizes = [file.stat().st_size + 1 for file in files]
        (file,) = chosen.choices(files, sizes)
    else:
        file = chosen.choice(files)
    (name,) = chosen.choices(list(DAMAGES), _WEIGHTS)
    before = file.read_bytes()
    others = [each for each in files if each != file and each.suffix == file.suffix]
    others = [each for each in others if each.parent == file.parent and each.read_bytes() != before]
    done = DAMAGES[name](file, bytearray(before), chosen, others)
    if done is not None:
        if bytes(done) == before:
            return None
        file.write_bytes(done)
    elif name not in ("delete", "duplicate") or (name == "duplicate" and not others):
        return None
    return Case(seed, kind, is_killed, name, str(file.relative_to(directory)))


# --- what an open delivers --------------------------------------------------------------------------


@dataclass(slots=True)
class Read:
    """What an open found, and what came."""

    bodies: list[bytes] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    """Repairs, losses: what its owner is told."""
    refusal: str | None = None
    is_broken: bool = False
    """That is no refusal, but a fault of ours."""
    seconds: float = 0.0


def _read_queue(path: str, name: str, read: Read) -> None:
    with Queue(path, name) as queue:
        while got := queue.get_many(MOST):
            read.bodies += got
        read.told += map(str, queue.repairs)


def _read_spool(path: str, read: Read) -> None:
    _read_queue(path, "spool", read)
    with DeadLetters(path) as letters:
        read.bodies += [letter.body for letter in letters.list()]
        read.told += map(str, letters.repairs)


def _read_stream(path: str, read: Read) -> None:
    with Stream(path) as stream:
        read.told += map(str, stream.repairs)
        partitions = stream.partition_count
    fs = OsFileSystem()
    for partition in range(partitions):
        with PartitionReader(fs, StreamFiles(fs, path).partition(partition)) as reader:
            reader.seek_oldest()
            while got := reader.read_many(MOST):
                read.bodies += [each.value for each in got]
            read.told += map(str, reader.losses)


def _read_journal(path: str, read: Read) -> None:
    with Journal(path) as journal:
        read.told += map(str, journal.repairs)
    with JournalReader(path) as reader:
        reader.seek_oldest()
        while got := reader.read_many(MOST):
            read.bodies += [each.value for each in got]
        read.told += map(str, reader.losses)


def _read_jobs(path: str, read: Read) -> None:
    with PriorityStore(path) as store:
        read.told += map(str, store.repairs)
        for info in store.queues():
            read.bodies += [each.body for each in store.get_many(store.queue(info.name), MOST)]


def read_all(path: str, kind: Kind) -> Read:
    """Open it and read it."""
    read = Read()
    began = time.process_time()  # what others do meanwhile does not count
    try:
        if kind == "queue":
            _read_queue(path, "events", read)
        elif kind == "spool":
            _read_spool(path, read)
        elif kind == "stream":
            _read_stream(path, read)
        elif kind == "journal":
            _read_journal(path, read)
        else:
            _read_jobs(path, read)
    except (DiskqError, OSError) as refusal:
        read.refusal = f"{type(refusal).__name__}: {refusal}"
        read.is_broken = not isinstance(refusal, CorruptionError | LockedError | UnsupportedFormatError)
    read.seconds = time.process_time() - began
    return read


# --- the judgement ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Judged:
    """One case. `faults` are the promises that were broken, in short."""

    case: Case
    faults: list[str]
    verdict: str
    lost: int
    """What verify says."""
    gone: int
    """What did not come."""
    more: str = ""


def judge(root: Root, case: Case, said: Verified, read: Read) -> Judged:
    """Compare what was said of the damaged one with what came of it."""
    found = said.of(case.kind)
    numbers = [number_of(body) for body in read.bodies]
    came = {number for number in numbers if number is not None}
    altered = [number for number in numbers if number is None or number not in root.sent[case.kind]]
    gone = root.due[case.kind] - came
    lost = sum(each.lost for each in found)
    messages = sum(each.messages for each in found)
    verdicts = {each.verdict for each in found} or {"clean"}
    verdict = next(each for each in ("damaged", "torn", "clean") if each in verdicts)
    faults = []
    if altered:
        faults.append("altered")
    if said.unseen:
        faults.append("verify could not look")
    if said.exit_code != int(any(each.verdict != "clean" for each in said.found)):
        faults.append("another exit code")
    if said.of_others(case.kind) != root.verified.of_others(case.kind):
        faults.append("verify says something else of the others")
    if read.is_broken:
        faults.append("the open breaks")
    elif read.refusal is not None:
        if verdict == "clean":
            faults.append("refused, and verify says clean")
        elif verdict == "torn":
            faults.append("refused, and verify says torn")
    else:
        if gone and verdict == "clean":
            faults.append("gone, and verify says clean")
        if gone and verdict == "torn":
            faults.append("gone, and verify says torn")
        if gone and not read.told:
            faults.append("gone, and the open is silent")
        twice = len(root.twice) if case.kind == "spool" else 0
        if lost > len(root.sent[case.kind] - came) + twice:
            faults.append("false lost")
        if messages != len(read.bodies):
            faults.append("verify counts others")
        if read.told and not any(each.findings for each in found):
            faults.append("verify says clean, and the open repairs")
    if read.seconds > LONGEST_OPEN:
        faults.append("slow")
    more = [
        f"{each.severity} {each.path}@{each.at}: {each.what} ({each.lost})"
        for v in found
        for each in v.findings
    ]
    more += [f"told: {each}" for each in read.told]
    more += [f"refused: {read.refusal}"] if read.refusal else []
    sent = len(root.sent[case.kind])
    more.append(f"verify: {messages} messages, {lost} lost; came {len(read.bodies)} of {sent}")
    more.append(f"gone {len(gone)}: {sorted(gone)[:8]}")
    return Judged(case, faults, verdict, lost, len(gone), "\n    ".join(more))


def run(
    seeds: Iterable[int], room: Path, *, kinds: tuple[Kind, ...] = KINDS, killed: bool | None = None
) -> Iterator[Judged]:
    """Every case of these seeds."""
    root: Root | None = None
    made = None
    for seed in seeds:
        number = seed // _OF_ONE_ROOT
        if made != number:
            if root is not None:
                shutil.rmtree(root.path)
            is_killed = bool(number % 2) if killed is None else killed
            root = make_root(room / f"root {number}", number, is_killed=is_killed)
            made = number
        assert root is not None
        kind = kinds[seed % len(kinds)]
        path = room / f"case {seed}"
        path.mkdir()
        shutil.copytree(root.path, path, dirs_exist_ok=True)
        case = damage(path, kind, seed, is_killed=root.is_killed)
        if case is not None:
            yield _tried(root, case, path)
        shutil.rmtree(path)


def _tried(root: Root, case: Case, path: Path) -> Judged:
    said = verified(path)
    read = read_all(str(path / case.kind), case.kind)
    return judge(root, case, said, read)


# --- from the command line -------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.truth", description=__doc__)
    parser.add_argument(
        "--seeds",
        type=int,
        default=3000,
        help="so many tries (default: 3000), of which one in eight changes nothing",
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--only", choices=KINDS, help="one kind (default: all)")
    parser.add_argument("--state", choices=("closed", "killed"), help="(default: both)")
    parser.add_argument(
        "--show", type=int, default=0, help="so many cases of each fault, in full (default: 0)"
    )
    args = parser.parse_args()
    logging.disable()
    killed = None if args.state is None else args.state == "killed"
    kinds = KINDS if args.only is None else (args.only,)
    faults: Counter[tuple[str, ...]] = Counter()
    known: Counter[tuple[str, ...]] = Counter()
    verdicts: Counter[tuple[str, str]] = Counter()
    shown: Counter[tuple[str, str, str]] = Counter()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as scratch:
        for judged in run(
            range(args.first, args.first + args.seeds), Path(scratch), kinds=kinds, killed=killed
        ):
            case = judged.case
            state = "killed" if case.is_killed else "closed"
            verdicts[state, judged.verdict] += 1
            for fault in judged.faults:
                if case.is_known(fault):
                    known[state, fault, case.kind] += 1
                    continue
                faults[state, fault, case.kind] += 1
                shown[state, fault, case.kind] += 1
                if shown[state, fault, case.kind] <= args.show:
                    print(f"{state} {fault}: {case}\n    {judged.more}", flush=True)
    for state in ("closed", "killed"):
        counted = {verdict: number for (each, verdict), number in verdicts.items() if each == state}
        print(f"{state}: {sum(counted.values())} cases, {counted}")
    for what, counts in (("", faults), ("known: ", known)):
        for (state, fault, kind), number in sorted(counts.items()):
            print(f"{number:6} {state:7} {kind:8} {what}{fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
