# What is logged: each event at its level, with its facts, and no event that is not in the table.

from __future__ import annotations

import ast
import functools
import logging
import re
from pathlib import Path
from typing import get_args

import pytest

from diskq.storage.log_events import EVENTS, FACTS, Log, Subject
from diskq.storage.one_line import one_line
from diskq.storage.repairs import Repair, RepairKind

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs/logging.md"
MODULES = [path for path in sorted((ROOT / "diskq").rglob("*.py")) if "spark" not in path.parts]
NOT_FACTS = {"exc_info"}


@functools.cache
def calls() -> list[ast.Call]:
    """Return all calls that log an event."""
    found = []
    for text in (path.read_text(encoding="utf-8") for path in MODULES):
        for node in ast.walk(ast.parse(text)) if ".report(" in text else ():
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name("log") | ast.Attribute(attr="_log"), attr="report")
                ):
                    found.append(node)
    return found


def test_an_event_comes_at_its_level_with_its_facts(caplog):
    caplog.set_level(logging.INFO, "diskq")
    Log("queue").report("disk_full", "%s is full", "/q", path="/q", error=None)
    (record,) = caplog.records
    assert (record.name, record.levelno, record.getMessage()) == (
        "diskq.queue",
        logging.WARNING,
        "/q is full",
    )
    facts = {name: fact for name, fact in vars(record).items() if name.startswith("diskq_")}
    assert facts == {"diskq_event": "disk_full", "diskq_path": "/q"}


def test_a_record_names_the_calling_code(caplog):
    Log("queue").report_repair(Repair(path="/q", kind=RepairKind.TORN, kept=5, dropped=3, reason="torn"))
    Log("queue").report("disk_full", "full")
    assert caplog.records[1].funcName == "test_a_record_names_the_calling_code"


def test_a_repair_has_all_that_is_known_of_it(caplog):
    Log("stream").report_repair(
        Repair(
            path="/s",
            kind=RepairKind.TORN,
            kept=5,
            dropped=3,
            reason="torn",
            records=None,
            saved_as="/s.bad",
        )
    )
    (record,) = caplog.records
    facts = {name: fact for name, fact in vars(record).items() if name.startswith("diskq_")}
    assert facts == {
        "diskq_event": "repair",
        "diskq_path": "/s",
        "diskq_kind": "torn",
        "diskq_offset": 5,
        "diskq_dropped_bytes": 3,
        "diskq_saved_as": "/s.bad",
        "diskq_reason": "torn",
    }


EVIL = "no\n2026-01-01 ERROR diskq: all is lost\x1b[2J\x9b1A\u2028\udcff"
HARMLESS = r"no\n2026-01-01 ERROR diskq: all is lost\x1b[2J\x9b1A\u2028\udcff"


@pytest.mark.parametrize(
    "given", [EVIL, ValueError(EVIL), OSError(5, "bad", EVIL)], ids=["text", "error", "path"]
)
def test_text_from_outside_is_one_line_and_controls_no_terminal(caplog, given):
    Log("hub").report("copy_failed", "hub %s: %s", "a", given, peer=given, error=given, reason=EVIL, count=3)
    (record,) = caplog.records
    texts = (record.getMessage(), record.diskq_peer, record.diskq_error, record.diskq_reason)
    assert all(text.isprintable() for text in texts)
    assert record.diskq_reason == HARMLESS
    assert record.diskq_count == 3
    assert "all is lost" in record.getMessage()


def test_no_line_of_a_traceback_looks_like_a_record(caplog):
    failure = ValueError(EVIL)
    failure.__cause__ = KeyError(EVIL)
    failure.add_note(EVIL)
    Log("spool").report("delivery_failed", "cannot deliver", exc_info=failure)
    text = logging.Formatter("%(levelname)s %(message)s").format(caplog.records[0])
    first, *others = text.split("\n")
    assert first == "WARNING cannot deliver"
    assert len(others) > 5
    assert all(line.startswith("  ") and line.isprintable() for line in others)


class Mute(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


def test_an_error_without_a_text_is_logged_all_the_same(caplog):
    Log("spool").report("delivery_failed", "cannot deliver: %s", Mute(), error=Mute(), exc_info=Mute())
    assert "whose str() failed" in caplog.records[0].getMessage()
    assert logging.Formatter().format(caplog.records[0])


def test_what_can_be_printed_stays_as_it_is():
    for text in ("", "naïve – 日本語 💾", r"C:\n", HARMLESS):
        assert one_line(text) == text
    assert one_line(b"caf\xc3\xa9\xff\x1b") == r"café\xff\x1b"


def test_every_logged_event_is_in_the_table():
    logged = {call.args[0].value for call in calls() if isinstance(call.args[0], ast.Constant)}
    assert len(calls()) > 25
    assert logged | {"repair"} == set(EVENTS)


def test_every_logged_fact_is_in_the_table():
    logged = {keyword.arg for call in calls() for keyword in call.keywords} - NOT_FACTS
    assert logged | {"event", "kind", "saved_as"} == set(FACTS)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_has_its_own_logger(path):
    text = path.read_text(encoding="utf-8")
    assert "getLogger(__name__)" not in text
    assert not re.search(r"logger\.(debug|info|warning|error|exception|critical)\(", text)


def test_the_page_lists_what_is_logged():
    names = {logging.ERROR: "ERROR", logging.WARNING: "WARNING", logging.INFO: "INFO"}
    page = PAGE.read_text(encoding="utf-8")
    rows = [f"| {names[level]} | `{event}` | {meaning} |" for event, (level, meaning) in EVENTS.items()]
    assert re.findall(r"^\| [A-Z]+ \|.*$", page, re.MULTILINE) == rows
    rows = [f"| `diskq_{name}` | {meaning} |" for name, meaning in FACTS.items()]
    assert re.findall(r"^\| `diskq_.*$", page, re.MULTILINE) == rows
    for subject in get_args(Subject):
        assert f"`diskq.{subject}`" in page
