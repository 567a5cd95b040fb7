# docs/format/taskflux.md, taken at its word: its example is what diskq writes, and two readers agree on it.

from __future__ import annotations

from pathlib import Path

from diskq._native.priority import codec as priority_codec
from diskq.engine.priority.files import StorePoint
from diskq.engine.priority.store import PriorityStore
from diskq.options import PriorityOptions
from tests.docs.documents import ROOT, blocks, hex_block
from tests.reference import taskflux_oracle as oracle

DOCUMENT = ROOT / "docs/format/taskflux.md"
SEGMENT, SNAPSHOT, METADATA = "log/0000000000000000000.log", "tflux.snapshot", "tflux.metadata"
EXAMPLE = {name: hex_block(DOCUMENT, f"hex {name}") for name in (SEGMENT, SNAPSHOT, METADATA)}
LEFT = oracle.Queue(2, 2, 1000, None, (0, 9), {1: (5, b"hello")})


def write_the_example(directory: Path) -> None:
    with PriorityStore(directory, options=PriorityOptions(preallocate=False)) as store:
        mail = store.create_queue("mail", implementation="QA", priority_range=(0, 9), max_messages=1000)
        store.put(mail, b"hello", 5)
        store.put(mail, b"now!", 1)
        record = store.get(mail)
        assert record is not None
        assert record.body == b"now!"
        store.ack(mail, record)


def files(directory: Path) -> dict[str, bytes]:
    root = directory / "data"
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_example_is_what_diskq_writes(tmp_path: Path) -> None:
    write_the_example(tmp_path)
    found = files(tmp_path)
    (point,) = [block for block in blocks(DOCUMENT) if block.info == "text .diskq/point"]
    assert found.pop(".diskq/point") == point.text.encode()
    assert len(found.pop(".diskq/lock")) == len(found.pop(".diskq/state")) == 512
    assert found == {SEGMENT: EXAMPLE[SEGMENT], METADATA: EXAMPLE[METADATA]}
    with PriorityStore(tmp_path) as store:
        assert StorePoint.read(store._fs, store.files) == StorePoint(0)
        assert store.snapshot()
    assert files(tmp_path)[SNAPSHOT] == EXAMPLE[SNAPSHOT]


def test_its_log_says_what_the_text_says() -> None:
    commands = [
        oracle.create("mail", 2, 1000, None, (0, 9)),
        oracle.add("mail", 5, b"hello"),
        oracle.add("mail", 1, b"now!"),
        oracle.remove("mail", 2),
    ]
    assert [record.command for record in oracle.records(EXAMPLE[SEGMENT])] == commands
    assert priority_codec.scan(EXAMPLE[SEGMENT][8:]).commands == [
        (priority_codec.CREATE, b"mail", 2, 1000, None, (0, 9)),
        (priority_codec.ADD, b"mail", 5, b"hello"),
        (priority_codec.ADD, b"mail", 1, b"now!"),
        (priority_codec.REMOVE, b"mail", 2),
    ]


def test_its_snapshot_says_the_same_as_its_log() -> None:
    assert oracle.read_snapshot(EXAMPLE[SNAPSHOT]) == (3, {"": oracle.Queue(), "mail": LEFT})
    of_the_log = {name: EXAMPLE[name] for name in (SEGMENT, METADATA)}
    assert oracle.read_files(of_the_log) == {"": oracle.Queue(), "mail": LEFT}
    assert oracle.read_files(EXAMPLE) == {"": oracle.Queue(), "mail": LEFT}


def test_what_is_in_the_document_is_opened(tmp_path: Path) -> None:
    for name, content in EXAMPLE.items():
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_bytes(content)
    with PriorityStore(tmp_path) as store:
        (record,) = store.peek(store.queue("mail"), 9)
        assert (record.id, record.priority, record.body) == (1, 5, b"hello")
        assert (store.repairs, store.warnings) == ((), {})
