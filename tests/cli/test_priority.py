# The priority noun: what a person types, and what comes of it.

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

import diskq
from diskq.cli import main
from diskq.engine.priority.store import PriorityStore
from diskq.engine.priority.view import look_at_store
from diskq.storage.fs import OsFileSystem
from tests.cli.conftest import Terminal, frames, program, start, until
from tests.sampling import first

VERBS = ["queues", "create", "delete", "send", "receive", "peek", "snapshot", "inspect", "repair", "info"]
GOLDEN = Path(__file__).parents[1] / "golden/taskflux"
CASES = {case["id"]: case for case in json.loads((GOLDEN / "manifest.json").read_text())["cases"]}
OUTCOMES = {"ok": "ok", "repaired": "mends", "refused": "refused"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store that no process has open, with a queue besides the default one."""
    with PriorityStore(tmp_path / "store") as store:
        store.create_queue("mail", max_messages=4, max_message_size=100, priority_range=(0, 9))
    return tmp_path / "store"


def add(path: Path, *messages: tuple[int, bytes], name: str = "mail") -> None:
    with PriorityStore(path) as store:
        for priority, payload in messages:
            store.put(store.queue(name), payload, priority)


def held(path: Path, name: str = "mail") -> list[tuple[int, bytes]]:
    with PriorityStore(path) as store:
        return [(each.priority, each.body) for each in store.peek(store.queue(name), 10**6)]


def files_of(path: Path) -> dict[str, bytes | None]:
    return {
        str(found.relative_to(path)): found.read_bytes() if found.is_file() else None
        for found in path.rglob("*")
    }


# --- in general -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [[], *([verb] for verb in VERBS)], ids=" ".join)
def test_every_command_has_help_with_examples(run, command):
    done = run("priority", *command, "--help")
    assert done.code == 0
    assert b"examples:\n  diskq priority" in done.out


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_with_a_value_says_its_default(verb, capsys):
    with pytest.raises(SystemExit):
        main(["priority", verb, "--help"])
    options = capsys.readouterr().out.partition("options:")[2].partition("examples:")[0]
    for option in options.split("\n  -")[1:]:
        head, text = option.split(" ", 1)
        takes_value = text.startswith(("N ", "SIZE", "DURATION", "NAME", "LOWEST", "{"))
        assert "(default: " in " ".join(text.split()) or not takes_value, f"-{head}"


@pytest.mark.parametrize(
    "command",
    [
        ["nonsense"],
        ["queues"],
        ["create", "store", "--max-messages", "3"],
        ["create", "store", "other", "--implementation", "QA"],
        ["create", "store", "other", "--priority-range", "3", "2"],
        ["create", "store", "other", "--max-messages", "9999999999"],
        ["delete", "store", "mail"],
        ["send", "store", "hello", "--whole"],
        ["send", "store", "hello", "--json"],
        ["send", "store", "--json", "--whole"],
        ["send", "store", "--priority", "high"],
        ["receive", "store", "-n", "0"],
        ["peek", "store", "--json", "--base64"],
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_2_and_says_how_it_is_used(run, path, monkeypatch, command):
    monkeypatch.chdir(path.parent)
    done = run("priority", *command)
    assert done.code == 2
    assert done.notes[0].startswith("usage: diskq")
    assert "error: " in done.notes[-1]
    with PriorityStore(path) as store:
        assert [info.name for info in store.queues()] == ["", "mail"]


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("create", "delete")])
@pytest.mark.parametrize("what", ["nothing", "other files"])
def test_where_no_store_is_it_says_so_and_makes_none(run, tmp_path, verb, what):
    place = tmp_path / "place"
    if what == "other files":
        place.mkdir()
        (place / "letter").write_text("dear")
    before = sorted(os.listdir(place)) if place.exists() else None
    done = run("priority", verb, place)
    assert (done.code, done.out) == (1, b"")
    assert "no such directory" in done.notes[-1] or "there is no store" in done.notes[-1]
    assert (sorted(os.listdir(place)) if place.exists() else None) == before


@pytest.mark.parametrize(
    "command", [["send", "hi"], ["receive"], ["snapshot"], ["repair"], ["create", "x"]], ids=" ".join
)
def test_a_store_that_another_process_has_is_waited_for_and_named(run, path, command):
    verb, *rest = command
    with PriorityStore(path):
        done = run("priority", verb, path, *rest, "--wait", "0s")
    assert done.code == 1
    assert f"process {os.getpid()}" in done.notes[-1]
    assert "--wait 30s" in done.notes[-1]


# --- queues ---------------------------------------------------------------------------------------


def test_a_store_and_its_queues_are_made(run, tmp_path):
    path = tmp_path / "new" / "store"
    assert run("priority", "create", path).code == 0
    assert "there already" in run("priority", "create", path).notes[-1]
    limits = [
        "--max-messages",
        3,
        "--max-message-size",
        "1KiB",
        "--priority-range",
        -1,
        7,
        "--implementation",
        "QA",
    ]
    assert run("priority", "create", path, "mail", *limits).code == 0
    again = run("priority", "create", path, "mail")
    assert again.code == 1
    assert "'mail'" in again.notes[-1]
    found = json.loads(run("priority", "queues", path, "--json").out)
    assert found[1] == {
        "name": "mail",
        "implementation": "QA",
        "stored": 0,
        "bytes": 0,
        "last_id": 0,
        "max_messages": 3,
        "max_message_size": 1024,
        "priority_range": [-1, 7],
    }
    assert found[0]["name"] == ""


def test_a_name_that_no_queue_can_have_is_refused(run, path):
    done = run("priority", "create", path, "two words")
    assert done.code == 1
    assert "two words" in done.notes[-1]


def test_sending_with_create_makes_the_store(run, tmp_path):
    assert run("priority", "send", tmp_path / "s", "--create", "hello").code == 0
    assert run("priority", "receive", tmp_path / "s").out == b"hello\n"


def test_a_store_is_not_made_among_other_files(run, tmp_path):
    (tmp_path / "letter").write_text("dear")
    done = run("priority", "send", tmp_path, "--create", "hello")
    assert done.code == 1
    assert "letter" in done.notes[-1]
    assert "directory of its own" in done.notes[-1]


def test_the_documents_layout_is_for_a_new_store(run, tmp_path):
    run("priority", "create", tmp_path / "s", "--layout", "document")
    run("priority", "send", tmp_path / "s", "hello")
    assert (
        json.loads(run("priority", "inspect", tmp_path / "s", "--json").out)["opening"]["layout"]
        == "document"
    )
    done = run("priority", "create", tmp_path / "s", "q", "--layout", "aligned")
    assert done.code == 1
    assert "layout" in done.notes[-1]


def test_queues_are_shown_while_a_process_has_them(run, path):
    add(path, (1, b"one"), (2, b"two"))
    with PriorityStore(path) as store:
        store.get(store.queue("mail"))
        done = run("priority", "queues", path)
    assert done.out.splitlines()[2].split()[:3] == [b"mail", b"2", b"6"]
    assert f"process {os.getpid()}" in done.notes[-1]


def test_a_queue_is_removed_with_what_is_in_it(run, path):
    add(path, (1, b"one"))
    done = run("priority", "delete", path, "mail", "--yes")
    assert done.notes == ["diskq: queue 'mail' removed, with 1 messages"]
    done = run("priority", "delete", path, "mail", "--yes")
    assert done.code == 1
    assert "`diskq priority queues`" in done.notes[-1]
    assert run("priority", "delete", path, "", "--yes").code == 1


@pytest.mark.exhaustive
def test_a_person_is_asked_first(path):
    add(path, (1, b"one"))
    for answer, code, left in (("n\n", 1, ["", "mail"]), ("y\n", 0, [""])):
        with (
            Terminal() as terminal,
            start("priority", "delete", path, "mail", stdin=terminal.outer, stderr=terminal.outer) as process,
        ):
            assert "with all messages (1)" in terminal.read_until("[y/N] ")
            terminal.type(answer)
            assert process.wait() == code
        with PriorityStore(path) as store:
            assert [info.name for info in store.queues()] == left


# --- sending and receiving ------------------------------------------------------------------------


def test_messages_come_back_by_priority_and_in_the_order_of_their_coming(run, path):
    assert run("priority", "send", path, "--queue", "mail", "--priority", 5, "b", "c").notes == [
        "diskq: 2 sent"
    ]
    run("priority", "send", path, "--queue", "mail", "--priority", 1, stdin=b"a\n")
    run("priority", "send", path, "--priority", -3, "other")
    assert run("priority", "receive", path, "--queue", "mail", "-n", 2).out == b"a\nb\n"
    assert run("priority", "receive", path, "--queue", "mail").out == b"c\n"
    done = run("priority", "receive", path, "--queue", "mail")
    assert (done.code, done.out, done.notes) == (0, b"", ["diskq: 0 received"])
    assert held(path, "") == [(-3, b"other")]


def test_any_bytes_go_in_and_out(run, path):
    bodies = [b"", b"a\nb", bytes(range(50))]
    assert run("priority", "send", path, "--length-prefixed", stdin=frames(*bodies)).notes == [
        "diskq: 3 sent"
    ]
    assert run("priority", "send", path, "--whole", stdin=b"x\ny\n").code == 0
    done = run("priority", "peek", path, "--base64")
    assert [base64.b64decode(line) for line in done.out.splitlines()] == [*bodies, b"x\ny\n"]
    assert run("priority", "receive", path, "--length-prefixed").out == frames(*bodies, b"x\ny\n")


def test_a_line_of_json_tells_its_queue_and_priority(run, path, tmp_path):
    add(path, (3, b"\0\n"), (1, b"one"))
    run("priority", "send", path, "--priority", 7, "seven")
    lines = run("priority", "peek", path, "--queue", "mail", "--json").out
    assert json.loads(lines.splitlines()[0]) == {"queue": "mail", "id": 2, "priority": 1, "body": "b25l"}
    lines += run("priority", "receive", path, "--json").out
    other = tmp_path / "other"
    run("priority", "create", other, "mail")
    assert run("priority", "send", other, "--json", stdin=lines).notes == ["diskq: 3 sent"]
    assert (held(other), held(other, "")) == ([(1, b"one"), (3, b"\0\n")], [(7, b"seven")])
    run("priority", "send", other, "--json", "--queue", "", "--priority", 9, stdin=lines)
    assert [priority for priority, _ in held(other, "")] == [7, 9, 9, 9]


@pytest.mark.parametrize(
    "line, why",
    [
        (b"{", "line 2"),
        (b"[]", "not an object"),
        (b'{"data":"a"}', "base64"),
        (b'{"priority":1}', "no body"),
        (b'{"data":"","priority":"1"}', "whole number"),
        (b'{"data":"","priority":true}', "whole number"),
        (b'{"data":"","queue":1}', "is not text"),
        (b'{"body":"","Data":""}', "'Data'"),
    ],
)
def test_what_stands_before_a_line_that_is_no_message_is_sent(run, path, line, why):
    done = run("priority", "send", path, "--json", stdin=b'{"body":"b25l"}\n%b\n{"data":""}\n' % line)
    assert done.code == 1
    assert done.notes[-2] == "diskq: 1 sent"
    assert why in done.notes[-1]
    assert '"priority": 5' in done.notes[-1]
    assert held(path, "") == [(0, b"one")]


@pytest.mark.parametrize(
    "command, why",
    [
        (["--queue", "mail", "1", "2", "3", "4", "5"], "receive some first"),
        (["--queue", "mail", "--priority", "10", "1"], "10"),
        (["--queue", "mail", "x" * 101], "100"),
        (["--queue", "post", "1"], "`diskq priority create` makes one"),
    ],
)
def test_what_a_queue_does_not_allow_is_refused_with_the_reason(run, path, command, why):
    done = run("priority", "send", path, *command)
    assert done.code == 1
    assert done.notes[-2] == "diskq: 0 sent"
    assert why in done.notes[-1]
    assert held(path) == []


@pytest.mark.exhaustive
def test_what_cannot_be_written_out_stays(path):
    add(path, *((number % 4, b"%d" % number) for number in range(4)))
    with open("/dev/full", "wb") as full:
        done = program("priority", "receive", path, "--queue", "mail", stdout=full)
    assert done.code == 1
    assert "diskq: 0 received" in done.notes
    assert len(held(path)) == 4


@pytest.mark.exhaustive
def test_a_follower_gets_what_others_send(run, path):
    with start("priority", "receive", path, "--follow", "--json", stdout=-1) as process:
        assert process.stdout is not None
        for text in ("one", "two"):
            done = run("priority", "send", path, "--wait", "10s", text)
            assert done.code == 0
            assert base64.b64decode(json.loads(process.stdout.readline())["body"]) == text.encode()
        # Interrupted before it has acknowledged, it would leave what it wrote last to be read again.
        until(lambda: not look_at_store(path).queues[""].table.stored)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stderr is not None
        assert b"2 received" in process.stderr.read()
    assert held(path, "") == []


@pytest.mark.exhaustive
def test_a_person_sees_a_table(path):
    add(path, (3, b"\x1b[2Jboo"), (1, b"first"))
    with (
        Terminal() as terminal,
        start(
            "priority", "peek", path, "--queue", "mail", "-n", 1, stdout=terminal.outer, stderr=terminal.outer
        ) as process,
    ):
        seen = terminal.read_until("1 more")
        assert process.wait() == 0
    assert "first" in seen
    assert "boo" not in seen


# --- snapshot -------------------------------------------------------------------------------------


def test_a_snapshot_takes_the_place_of_the_log(run, path):
    add(path, (1, b"one"))
    assert run("priority", "snapshot", path).notes == ["diskq: snapshot taken, up to command 1"]
    assert run("priority", "snapshot", path).notes == ["diskq: nothing has changed since the last snapshot"]
    report = json.loads(run("priority", "inspect", path, "--json").out)
    assert report["snapshot"]["lsn"] == 1
    assert report["snapshot"]["queues"] == {"": 0, "mail": 1}


# --- inspect and repair ---------------------------------------------------------------------------


def copied(name: str, directory: Path) -> Path:
    root = directory / "store"
    shutil.copytree(GOLDEN / "cases" / name, root)
    return root


WITH_FILES = [case for case in CASES.values() if case["files"]]
# `make test` takes each fourth.
of_the_golden = pytest.mark.parametrize(
    "case",
    first(len(WITH_FILES) // 4, [case for start in range(4) for case in WITH_FILES[start::4]]),
    ids=lambda case: case["id"],
)


@of_the_golden
def test_inspect_says_of_each_directory_what_is_in_it_and_what_an_open_does(run, tmp_path, case):
    root, expected = copied(case["id"], tmp_path), case["diskq"]
    before = files_of(root)
    done = run("priority", "inspect", root, "--json", "--commands")
    assert files_of(root) == before
    report = json.loads(done.out)
    opening = report["opening"]
    assert opening["outcome"] == OUTCOMES[expected["outcome"]]
    assert done.code == int(expected["outcome"] == "refused")
    if expected["outcome"] == "refused":
        unsupported = ("unsupported_version", "unknown_implementation")
        assert opening["kind"] == (None if expected["error"] in unsupported else expected["error"])
        assert opening["error"] in done.notes[-1]
        return
    assert sorted(opening["warnings"]) == sorted(expected["warnings"])
    assert opening["next_lsn"] == expected["last_lsn"] + 1
    assert opening["layout"] == ("document" if case["layout"] == "doc" else "aligned")
    states = {
        each["name"]: {
            "code": {"H4": 1, "QA": 2}[each["implementation"]],
            "last_id": each["last_id"],
            "max_queue_size": each["max_messages"],
            "max_message_size": each["max_message_size"],
            "key_range": each["priority_range"],
            "records": each["stored"],
        }
        for each in opening["queues"]
    }
    assert states == {
        name: queue | {"records": len(queue["records"])} for name, queue in expected["state"].items()
    }
    if "records" in case and expected["outcome"] == "ok":
        words = {
            "create": "CreateQueue",
            "delete": "DeleteQueue",
            "add": "AddRecord",
            "remove": "RemoveRecord",
        }
        told = [(each["lsn"], each["offset"], words[each["kind"]]) for each in report["commands"]]
        assert told == [(each["lsn"], each["offset"], each["delta"]) for each in case["records"]]


@of_the_golden
def test_repair_tells_first_and_then_makes_each_open_that_can_be(run, tmp_path, case):
    root = copied(case["id"], tmp_path)
    before = files_of(root)
    would = run("priority", "repair", root, "--json")
    assert files_of(root) == before
    done = run("priority", "repair", root, "--json", "--apply")
    assert would.code == done.code
    if case["diskq"].get("error") == "unknown_implementation":
        assert done.code == 1
        assert "queue implementation 3" in done.notes[-1]
        assert {name: data for name, data in files_of(root).items() if name in before} == before
        return
    assert done.code == 0
    told, expected = json.loads(done.out), json.loads(would.out)
    assert told == expected | {"is_applied": True}
    for repair in told["repairs"]:
        name = str(Path(repair["path"]).relative_to(root))
        cut = (before[name] or b"")[repair["kept"] :].rstrip(b"\0")
        if repair["saved_as"] is not None:
            assert Path(repair["saved_as"]).read_bytes().rstrip(b"\0") == cut
        else:
            assert b"\x12\x76\xad\x55\0\0\0\1".startswith(cut)
    with PriorityStore(root) as store:
        assert store.repairs == ()
        assert len(store.queues()) == len(told["queues"])


def test_damage_is_shown_where_it_is(run, tmp_path):
    root = copied("X07-unknown-delta", tmp_path)
    done = run("priority", "inspect", root)
    assert done.code == 1
    assert b"an unknown command, at byte 8, command 0" in done.out
    assert f"diskq repair {root}" in done.notes[-1]


def test_a_repair_says_what_stays_and_what_does_not(run, tmp_path):
    root = copied("C02-crc-middle", tmp_path)
    would = run("priority", "repair", root)
    assert b"327 bytes stay, " in would.out
    assert b"would be cut, and kept in " in would.out
    assert "--apply does it" in would.notes[-1]
    done = run("priority", "repair", root, "--apply")
    assert b"are cut, and kept in " in done.out
    assert run("priority", "repair", root).notes == [
        "diskq: nothing has to be repaired: 1 queues, 7 messages"
    ]


def test_settings_that_are_none_are_an_error_in_one_line(run, path):
    (path / "taskflux.settings.json").write_text("{]")
    done = run("priority", "queues", path)
    assert done.code == 1
    assert len(done.notes) == 1
    assert "taskflux.settings.json" in done.notes[0]


def test_the_holder_of_a_store_is_named_for_taskflux_too(run, path, tmp_path):
    with diskq.PriorityStore(path):
        assert f"process {os.getpid()}".encode() in run("priority", "inspect", path).out
    fs = OsFileSystem()
    handle = fs.open(str(path / "data" / "tflux.metadata"))
    assert fs.try_lock(handle)
    assert b"TaskFlux, or another program" in run("priority", "inspect", path).out
    fs.close(handle)
