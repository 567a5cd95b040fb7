# Any sequence of calls, kills and power cuts on a journal, its writer and a named reader, against a list.
#
# What must hold, at every look and after every reopen:
#   - messages come in order, none twice, none invented, at the offsets that were returned;
#   - what was acknowledged as synced survives everything, what is written survives a kill;
#   - after a power cut, what survives of the rest is a prefix;
#   - the reader continues after a commit that was made, and not before one that was synced, of what is there.

from __future__ import annotations

from dataclasses import dataclass, field

import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diskq.channels.journal.scanner import JournalScanner
from diskq.channels.journal.writer import JournalWriter
from diskq.testing import CrashFS
from tests.channels.journal_rig import drain, scanning, stored, values, writing
from tests.channels.lives import ENDINGS, WORDS, left_by
from tests.channels.rig import crash_disk
from tests.sampling import examples

ACTS = [
    *("send", "send", "send nowait", "send cancelled", "send_many", "send_many cancelled"),
    *("receive", "receive nowait", "receive cancelled", "receive_many", "wait", "commit", "commit synced"),
    *("yield", *ENDINGS),
]
STEPS = st.lists(
    st.tuples(st.sampled_from(ACTS), WORDS, st.integers(1, 60)),
    max_size=40,
)

Step = tuple[str, str, int]


@dataclass
class Model:
    sent: list[bytes] = field(default_factory=list)
    written: int = 0  # the number that survives a kill
    synced: int = 0  # the number that survives a power cut
    read: int = 0
    committed: int = 0
    committed_durably: int = 0
    number: int = 0

    def body(self, size: int) -> bytes:
        self.number += 1
        return b"%d|" % self.number + b"x" * size

    def accept(self, bodies: list[bytes], word: str) -> None:
        self.sent += bodies
        if word == "synced":
            self.synced = self.written = len(self.sent)
        elif word == "written":
            self.written = len(self.sent)


async def act(model: Model, journal: JournalWriter, scanner: JournalScanner, step: Step) -> None:
    what, word, size = step
    with trio.CancelScope() as scope:
        if what.endswith("cancelled"):
            scope.cancel()
        if what.startswith("send_many"):
            bodies = [model.body(size) for _ in range(1 + size % 7)]
            offsets = await journal.send_many(bodies, durability=word)  # type: ignore[arg-type]
            assert offsets == range(len(model.sent), len(model.sent) + len(bodies))
            model.accept(bodies, word)
        elif what == "send nowait":
            body = model.body(size)
            assert journal.send_nowait(body) == len(model.sent)
            model.accept([body], "written")
        elif what.startswith("send"):
            body = model.body(size)
            offset = await journal.send(body, durability=word)  # type: ignore[arg-type]
            assert offset == len(model.sent)
            model.accept([body], word)
        elif what == "receive_many" and model.read < model.written:
            await trio.lowlevel.checkpoint()
            for message in await scanner.receive_many(size):
                check(model, message.offset, message.value)
        elif what == "receive nowait":
            try:
                message = scanner.receive_nowait()
            except trio.WouldBlock:
                pass
            else:
                check(model, message.offset, message.value)
        elif what == "receive cancelled" or (what == "receive" and model.read < model.written):
            message = await scanner.receive()
            check(model, message.offset, message.value)
        elif what == "wait":
            with trio.move_on_after(0.5):
                message = await scanner.receive()
                check(model, message.offset, message.value)
        elif what.startswith("commit"):
            await scanner.commit()
            model.committed = model.read
            if what == "commit synced":
                await scanner.sync()
                model.committed_durably = model.read
        elif what == "yield":
            await trio.sleep(0.02)
            model.written = len(model.sent)
    assert scope.cancelled_caught == what.endswith("cancelled")


def check(model: Model, offset: int, value: bytes) -> None:
    assert (offset, value) == (model.read, model.sent[model.read])
    model.read += 1


async def live(model: Model, disk: CrashFS, steps: list[Step]) -> CrashFS:
    """Until the journal is closed, or the process or the machine dies. Returns the disk that is left."""
    async with (
        writing(disk, segment_size=200, memory_flush=0.01) as journal,
        scanning(disk, reader="r") as scanner,
    ):
        assert journal.next_offset == len(model.sent)
        assert model.committed_durably <= scanner.position <= max(model.committed, model.committed_durably)
        model.read = model.committed = scanner.position
        while steps:
            step = steps.pop(0)
            if step[0] == "close":
                break
            if step[0] in ENDINGS:
                return left_by(step[0], disk, step[2])
            await act(model, journal, scanner, step)
        await journal.sync()
        for message in drain(scanner):
            check(model, message.offset, message.value)
        assert model.read == len(model.sent)
        await scanner.commit()
        await scanner.sync()
        model.committed = model.committed_durably = model.read
        model.synced = model.written = len(model.sent)
    return disk


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS)
def test_whatever_is_done_and_whenever_it_dies(steps):
    async def run():
        model, disk = Model(), crash_disk()
        left = list(steps)
        while left:
            ends = [step[0] for step in left if step[0] in ENDINGS]
            was_cut = bool(ends) and ends[0] == "power cut"
            disk = await live(model, disk, left)
            async with writing(disk):
                pass
            found = values(stored(disk))
            assert found == model.sent[: len(found)]
            assert len(found) >= (model.synced if was_cut else model.written)
            del model.sent[len(found) :]
            model.synced = model.written = len(found)
            model.committed = min(model.committed, len(found))
            # A reader of messages that a power cut has taken is set back, before others take their place.
            model.committed_durably = min(model.committed_durably, len(found))

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0.001))
