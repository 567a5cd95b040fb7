# Every document: its links lead somewhere, the tests it names exist, its code is code.

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from pathlib import Path

import pytest

import diskq
from diskq.engine.stream.settings import StreamSettings
from tests.docs.documents import DOCUMENTS, ROOT, Block, blocks, links, named_tests, prose, table_rows
from tests.docs.pages import PROGRAM_INFO, agrees, extras_of, run_page, steps
from tests.public_names import public_names

SLOW = {"README.md", "tail.md", "tutorial.md", "verify.md"}  # with processes of their own
each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


# Pages for one task, or for one other system, and those that start many processes: `make test-all` runs them.
ONE_OF_MANY = {ROOT / "docs" / "howto", ROOT / "docs" / "migrating"}
LONG = {ROOT / "docs" / "tutorial.md", ROOT / "docs" / "verify.md"}


def _marks(path: Path) -> list[pytest.MarkDecorator]:
    slow = [pytest.mark.slow] if path.name in SLOW else []
    return [*slow, pytest.mark.exhaustive] if path.parent in ONE_OF_MANY or path in LONG else slow


RUNNING = [pytest.param(path, marks=_marks(path)) for path in DOCUMENTS if steps(path)]


def each_block(infos: re.Pattern[str]) -> pytest.MarkDecorator:
    found = [(path, block) for path in DOCUMENTS for block in blocks(path) if infos.fullmatch(block.info)]
    names = [f"{path.relative_to(ROOT)}:{block.line}" for path, block in found]
    return pytest.mark.parametrize("block", [block for _, block in found], ids=names)


# --- links and names --------------------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    """The places in a document that a link may name, as GitHub names them."""
    headings = [line.lstrip("#").strip() for line in prose(path).splitlines() if line.startswith("#")]
    kept = ["".join(c for c in heading.lower() if c.isalnum() or c in " -_") for heading in headings]
    return {heading.replace(" ", "-") for heading in kept}


@each_document
def test_every_link_within_the_tree_leads_somewhere(path: Path) -> None:
    for link in links(path):
        if link.startswith(("https://", "http://", "mailto:")):
            continue
        target, _, anchor = link.partition("#")
        there = (path.parent / target).resolve() if target else path
        assert there.exists(), link
        assert there.is_relative_to(ROOT), link
        if anchor:
            assert anchor in anchors(there), link


@each_document
def test_every_test_that_is_named_exists(path: Path) -> None:
    for file, name in named_tests(path.read_text(encoding="utf-8")):
        assert (ROOT / file).is_file(), f"{file}::{name}"
        assert name in defined_tests(ROOT / file), f"{file}::{name}"


@functools.cache
def defined_tests(path: Path) -> set[str]:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    functions = (node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {function.name for function in functions if function.name.startswith("test_")}


ACCIDENTS = ["clean close", "`kill -9`", "power cut", "failed fsync", "full disk", "bit rot"]
OF_DISKS = ["a disk that comes back without a reboot", "a peer that writes first after a power cut"]


@pytest.mark.parametrize(
    "heading, accidents",
    [("## The table", [*ACCIDENTS[:3], *OF_DISKS, *ACCIDENTS[3:]]), ("## Streams", ACCIDENTS)],
    ids=["the table", "streams"],
)
def test_every_promise_names_its_proof(heading: str, accidents: list[str]) -> None:
    rows = table_rows(ROOT / "docs/durability.md", heading)
    assert [row[0].partition(" ([")[0] for row in rows] == accidents
    for row in rows:
        assert named_tests(row[-1]), row[0]


def test_what_streams_promise_names_its_proof() -> None:
    rows = table_rows(ROOT / "docs/streams.md", "## What it promises")
    assert len(rows) > 5
    for row in rows:
        assert named_tests(row[-1]), row[0]


def test_what_spools_promise_names_its_proof() -> None:
    promises = table_rows(ROOT / "docs/spool.md", "## What it promises")
    accidents = table_rows(ROOT / "docs/durability.md", "## Spools")
    assert [row[0] for row in accidents] == ACCIDENTS
    assert len(promises) > 5
    for row in (*promises, *accidents):
        assert named_tests(row[-1]), row[0]


# --- what is said of the code --------------------------------------------------------------


def test_every_layer_is_described() -> None:
    rows = table_rows(ROOT / "docs/design.md", "## Layers")
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    there = {path.stem for path in (ROOT / "diskq").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert named == {name for name in there if not name.startswith("__")}


def test_the_defaults_that_are_told_are_the_defaults() -> None:
    told = diskq.QueueOptions(
        sync_every=2500,
        sync_timeout=2.0,
        durability="written",
        memory_flush=0.010,
        max_unsynced=64 * 2**20,
        segment_size=100 * 2**20,
        checkpoint_slice=100e-6,
        min_message_size=0,
        max_bytes=None,
    )
    assert told == diskq.QueueOptions()


def test_so_are_those_of_streams() -> None:
    told = diskq.StreamOptions(
        sync_every=2500,
        sync_timeout=2.0,
        durability="written",
        memory_flush=0.010,
        max_unsynced=64 * 2**20,
        checkpoint_slice=100e-6,
        min_message_size=0,
        age_rule="newest",
        keep_for_groups=False,
    )
    assert told == diskq.StreamOptions()
    laid_out = StreamSettings()
    assert (laid_out.partitions, laid_out.roll_size) == (3, 32 * 2**20)
    assert diskq.StreamConsumerOptions() == diskq.StreamConsumerOptions(
        checkpoint_slice=100e-6, autocommit=False, sync_every=2500, sync_timeout=2.0, claim_interval=1.0
    )


def test_so_are_those_of_spools() -> None:
    told = diskq.SpoolOptions(
        backoff_initial=0.1,
        backoff_max=60.0,
        backoff_jitter=1.0,
        retry_on=Exception,
        max_attempts=None,
        drain_timeout=0.0,
        commit="written",
        rate=None,
        pause_after=None,
    )
    assert told == diskq.SpoolOptions()


def test_every_option_of_a_consumer_is_in_the_table() -> None:
    page = (ROOT / "docs/streams.md").read_text(encoding="utf-8")
    table = page.partition("\n| `StreamConsumerOptions` |")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == {field.name for field in dataclasses.fields(diskq.StreamConsumerOptions)}


def test_the_words_are_in_alphabetical_order() -> None:
    glossary = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^\*\*(.+?)\*\*", glossary, re.MULTILINE)
    assert words == sorted(words, key=lambda word: word.casefold().replace("_", " "))


@pytest.mark.parametrize(
    "module", ["diskq", "diskq.hub", "diskq.spark", "diskq.spark.pipelines", "diskq.testing"]
)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    shown = [
        name
        for path in (ROOT / "docs" / "reference").glob("*.md")
        for block in blocks(path)
        if block.info == f"{{public}} {module}"
        for name in block.text.split()
    ]
    elsewhere = {"HubError", "HubOptions", "ReplicationOptions"} if module == "diskq.hub" else set()
    assert sorted(shown) == sorted(set(public_names(module)) - elsewhere)


def sections(page: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"^## (.+)$", text, re.MULTILINE)


@pytest.mark.parametrize("kind", ["queues", "streams", "journals", "priority", "spools"])
def test_the_reference_of_each_kind_has_the_same_sections(kind: str) -> None:
    assert sections(f"reference/{kind}.md") == [
        "With an event loop",
        "Without an event loop",
        "Options and results",
    ]


# What several kinds' pages have, in the order in which it is read.
ORDER = (
    "What it promises",
    "What it is made of",
    "Writing",
    "Reading",
    "Retention",
    "Bounds",
    "Several processes",
    "With … on one directory",
    "Without an event loop",
    "What it costs",
    "Limits",
)


@pytest.mark.parametrize("page", ["streams.md", "journals.md", "priority.md", "spool.md", "tables.md"])
def test_the_pages_of_the_kinds_have_their_common_sections_in_one_order(page: str) -> None:
    titles = [re.sub(r"^With .* on one directory$", ORDER[7], title) for title in sections(page)]
    shared = [title for title in titles if title in ORDER]
    assert shared
    assert shared == sorted(shared, key=ORDER.index)


# A peer's word is told where a program of the peer is moved over, and nowhere else.
TRANSLATED = re.compile(
    r"what \S+ calls? [^.|]{1,60} is called|\(\S+'s (word|name|term)\)|which (is|are) called [^.|]{1,40} here"
    r"|\S+ calls (it|them|this) [^.|]{1,60} here",
)


def test_no_page_translates_a_word_but_those_for_moving_over() -> None:
    found = []
    for page in DOCUMENTS:
        if "migrating" in page.parts or page.name == "CHANGELOG.md":
            continue
        found += [(page.name, said[0]) for said in TRANSLATED.finditer(page.read_text(encoding="utf-8"))]
    assert found == []


# --- code -------------------------------------------------------------------------------------


@each_block(PROGRAM_INFO)
def test_python_in_a_document_compiles(block: Block) -> None:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if block.info == "python fragment" else 0
    compile(block.text, "a document", "exec", flags)


@pytest.mark.parametrize("path", RUNNING, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_runs_and_prints_what_it_says(path: Path, tmp_path: Path) -> None:
    for module in extras_of(path):
        pytest.importorskip(module)
    run_page(path, tmp_path)


def test_what_a_page_may_leave_open_is_open() -> None:
    assert agrees("sent ...\nb\n", "sent 12 in 3 s\nb")
    assert agrees("a\n...\nz", "a\nb\nc\nz")
    assert not agrees("a\nb\n", "a\nc\n")
    assert not agrees("a\n", "a\nb\n")


@pytest.mark.parametrize(
    "page, complaint",
    [
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "the page: 2"),
        ("```python\nraise ValueError('no')\n```\n", "ValueError: no"),
        ("```console\n$ echo a\nb\n```\n", "the page: b"),
        ("```console\n$ diskq queue info nowhere\n```\n", "diskq: error"),
    ],
    ids=["another output", "a program that fails", "a command's output", "an error that is not told"],
)
def test_a_page_that_says_something_else_is_caught(page: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(page, encoding="utf-8")
    with pytest.raises(AssertionError, match=complaint):
        run_page(path, tmp_path)


def test_the_programs_in_the_readme_are_the_examples() -> None:
    programs = [block.text for block in blocks(ROOT / "README.md") if block.info == "python"]
    examples = ("quickstart", "quickstart_asyncio", "streams", "spool", "jobs")
    assert programs == [(ROOT / f"examples/{name}.py").read_text(encoding="utf-8") for name in examples]


def test_sparks_program_in_the_readme_is_the_example() -> None:
    (program,) = [block.text for block in blocks(ROOT / "README.md") if block.info == "python spark"]
    assert program == (ROOT / "examples" / "spark.py").read_text(encoding="utf-8")


def test_python_is_either_a_program_or_called_a_fragment() -> None:
    infos = {block.info for path in DOCUMENTS for block in blocks(path) if "python" in block.info}
    assert [info for info in sorted(infos) if not PROGRAM_INFO.fullmatch(info)] == []
