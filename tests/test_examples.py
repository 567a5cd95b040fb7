# The examples are run as they stand: what a newcomer copies works.

from __future__ import annotations

import ast
import asyncio
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import diskq
from scripts.requirements import requirements
from tests.docs.documents import ROOT, blocks

EXAMPLES = Path(__file__).parent.parent / "examples"

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# The parts of the demo, whose needs make installs; the README says what spark.py needs.
WITHOUT_A_LINE = {
    "demo",
    "flights",
    "pipeline_demo",
    "queue_demo",
    "screen",
    "spark",
    "stream_demo",
    "victim",
}


def brought(text: str) -> set[str]:
    """The distributions that the `pip install` lines of an example bring, and diskq itself with its needs."""
    found = list(map(Requirement, PROJECT["dependencies"]))
    for line in re.findall(r"pip install ([^`\n]+)", text):
        for named in map(Requirement, shlex.split(line)):
            found.append(named)
            if named.name == PROJECT["name"]:
                found += map(Requirement, requirements(named.extras, PROJECT))
    return {canonicalize_name(each.name) for each in found}


def imported(text: str) -> set[str]:
    """The packages whose modules an example imports, but for the standard library's and diskq's."""
    names = set[str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    tops = {name.partition(".")[0] for name in names}
    return {
        top for top in tops - sys.stdlib_module_names - {"diskq"} if not (EXAMPLES / f"{top}.py").exists()
    }


@pytest.mark.parametrize(
    "path",
    [each for each in sorted(EXAMPLES.glob("*.py")) if each.stem not in WITHOUT_A_LINE],
    ids=lambda it: it.stem,
)
def test_what_an_example_imports_is_installed_by_the_line_at_its_top(path):
    text = path.read_text(encoding="utf-8")
    there = brought(text)
    for package in imported(text):
        distributions = packages_distributions().get(package)
        if distributions is None:
            pytest.skip(f"{package} is not installed")
        assert {canonicalize_name(each) for each in distributions} & there, package


def test_the_quickstart_runs_and_runs_again(tmp_path):
    for _ in range(2):
        command = [sys.executable, str(EXAMPLES / "quickstart.py")]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines() == [
            "b'survives a crash of this process'",
            "[b'survives a power cut', b'one', b'two', b'three']",
        ]


def test_the_quickstart_of_asyncio_runs_and_runs_again(tmp_path):
    for _ in range(2):
        assert sorted(eval("".join(printed("quickstart_asyncio.py", tmp_path)))) == [b"one", b"three", b"two"]


def test_the_example_of_a_queue_on_asyncio_runs_and_runs_again(tmp_path):
    for _ in range(2):
        assert printed("asyncio_queue.py", tmp_path) == ["10 jobs, 10 different ones"]


@pytest.mark.parametrize(
    "example, needs",
    [("asyncio_fastapi.py", ("fastapi", "uvicorn")), ("trio_hypercorn.py", ("hypercorn",))],
    ids=["fastapi", "hypercorn"],
)
def test_the_example_of_a_server_delivers_what_was_posted_and_runs_again(example, needs, tmp_path):
    for package in needs:
        pytest.importorskip(package)
    for _ in range(2):
        accepted = ["202", "202", "202"]
        assert printed(example, tmp_path) == [*accepted, "[b'order 0', b'order 1', b'order 2']"]


def test_the_example_of_aiohttp_does_what_was_posted_and_runs_again(tmp_path):
    pytest.importorskip("aiohttp")
    for _ in range(2):
        assert printed("asyncio_aiohttp.py", tmp_path) == ["done: job 0", "done: job 1", "done: job 2"]


def test_the_example_of_django_delivers_what_its_workers_have_accepted(tmp_path):
    pytest.importorskip("django")
    pytest.importorskip("gunicorn")
    *accepted, delivered = printed("django_gunicorn.py", tmp_path)
    assert accepted == ["202"] * 8
    assert ast.literal_eval(delivered) == [b"order %d" % number for number in range(8)]


def test_the_notebook_runs(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", 4)
    nbclient.NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()
    (counted,) = (output for cell in notebook.cells for output in cell.get("outputs", ()))
    assert counted["data"]["text/plain"].startswith("[((b'user 0', b'page 0'), 48)")


def test_the_cells_of_a_notebook_run(tmp_path, monkeypatch):
    (cells,) = [block.text for block in blocks(ROOT / "docs" / "asyncio.md") if "__aenter__" in block.text]
    monkeypatch.chdir(tmp_path)

    async def notebook() -> None:
        names = {"diskq": diskq}
        for cell in cells.split("\n\n"):
            code = compile(cell, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            found = eval(code, names)
            if found is not None:
                await found

    asyncio.run(notebook())
    with diskq.Queue(tmp_path, "events") as queue:
        assert queue.empty()


def test_the_streams_example_runs_and_runs_again(tmp_path):
    for _ in range(2):
        command = [sys.executable, str(EXAMPLES / "streams.py")]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        *read, first_after = done.stdout.splitlines()
        # Each partition's come in order; the group does not get the first run's again.
        assert [line for line in read if "ada" in line] == [
            "b'ada' b'a key decides on the partition'",
            "b'ada' b'any time will do'",
            "b'ada' b'one'",
        ]
        assert [line for line in read if "grace" in line] == ["b'grace' b'two'"]
        assert first_after == "0"


def printed(name: str, directory: Path) -> list[str]:
    """What an example prints, on a standard error that stays empty."""
    command = [sys.executable, str(EXAMPLES / name)]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_the_spool_example_runs_and_runs_again(tmp_path):
    for _ in range(2):
        assert printed("spool.py", tmp_path) == [
            "attempt 5: [b'one', b'three']",
            "HTTP 400, after 4 attempts: b'two?'",
        ]


def test_the_example_of_a_spool_without_an_event_loop_runs_and_runs_again(tmp_path):
    for _ in range(2):
        assert printed("spool_thread.py", tmp_path) == [*["b'from a thread'"] * 4, "True"]


def test_the_example_of_a_stream_reader_runs_and_runs_again(tmp_path):
    for _ in range(2):
        assert printed("stream_reader.py", tmp_path) == ["one", "two"]


@pytest.mark.exhaustive
def test_the_workers_example_does_each_job_once_and_runs_again(tmp_path):
    for _ in range(2):
        assert printed("workers.py", tmp_path) == [
            "19 jobs are done, each once: True",
            "given up after 5 attempts: b'job 13'",
        ]


@pytest.mark.exhaustive
def test_the_streams_of_ten_machines_are_one_table_and_grow(tmp_path):
    pytest.importorskip("pyarrow")
    for messages in (10_000, 20_000):
        assert printed("fleet.py", tmp_path) == [
            "10 machines in one table, each message once: True",
            f"{messages} messages in table and streams",
        ]


@pytest.mark.exhaustive
def test_the_jobs_example_runs_and_runs_again(tmp_path):
    for _ in range(2):
        assert printed("jobs.py", tmp_path) == [
            "the mail server hung up - the job is back in its place",
            "1 password reset",
            "1 login code",
            "5 receipt",
            "9 newsletter",
        ]


@pytest.mark.exhaustive
def test_the_metrics_example_runs_and_runs_again(tmp_path):
    for _ in range(2):
        sent, waiting, barriers, budget = printed("metrics.py", tmp_path)
        assert waiting == 'diskq_depth_messages{kind="queue",name="orders",shop="north"} 3.0'
        assert sent.endswith(" 4.0")
        assert float(barriers.split()[-1]) >= 1
        assert budget.endswith(" 6.7108864e+07")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_http_example_loses_nothing_and_runs_again(tmp_path):
    for _ in range(2):
        lines = printed("spool_http.py", tmp_path)
        assert "1,997 events are there, in order: True" in lines
        assert lines.count("dead letter: oops (no JSON, says the server)") == 3
        assert any(line.endswith("requests: hangs") for line in lines)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_reconnecting_example_loses_nothing_and_runs_again(tmp_path):
    for _ in range(2):
        sessions, there, _ = printed("spool_reconnect.py", tmp_path)
        assert there == "1,000 readings are there, in order: True"
        assert int(sessions.split()[0]) > 5


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_logging_example_loses_no_record_and_runs_again(tmp_path):
    for _ in range(2):
        assert printed("spool_logging.py", tmp_path)[1:] == [
            "the collector has 1,250 records",
            "of thread 0: 250, in order: True",
            "of Trio's own thread: 250, in order: True",
            "ValueError: Trio's own thread is tired",
        ]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_opentelemetry_example_loses_no_span_and_runs_again(tmp_path):
    for _ in range(2):
        *_, spans, dead = printed("spool_otel.py", tmp_path)
        assert spans.startswith("1,000 spans are there, ")
        assert dead == "0 dead letters"


def test_the_journals_example_adds_each_message_once(tmp_path):
    assert printed("journals.py", tmp_path) == ["each was added once: True"]


@pytest.mark.exhaustive
def test_the_hub_example_runs_and_goes_on(tmp_path):
    for _ in range(2):
        assert printed("hub.py", tmp_path) == [
            "copied from the journal: 2",
            "taken from the queue: 3 left in it: 0",
            "web1.clicks: the last message is b'two'",
            "web1.events: the last message is b'five'",
        ]


def test_the_replay_example_gives_all_clicks_again(tmp_path):
    assert printed("replay.py", tmp_path) == [
        "80 clicks in the order in which they came",
        "the queue has the same, each once: True",
    ]
