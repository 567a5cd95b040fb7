# The pipeline noun, as far as it goes without Spark: what it teaches, what it refuses, and how it says what
# is missing. With Spark: tests/spark/test_pipelines.py.

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from diskq.cli import main
from diskq.cli.pipeline import runs as pipeline_runs
from diskq.engine.stream.stream import Stream

VERBS = ["aggregate", "replay", "reshard", "merge", "dedupe-merge"]


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    path = tmp_path / "s"
    with Stream(path) as made:
        made.append_many([b"one", b"two"])
    return path


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail: Spark must not be started."""

    def refuse(*_: object) -> None:
        raise AssertionError("Spark was to be started")

    monkeypatch.setattr(pipeline_runs, "_session", refuse)


# --- help -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["pipeline"], *(["pipeline", verb] for verb in VERBS)])
def test_every_command_has_help_with_examples(run, command):
    done = run(*command, "--help")
    assert done.code == 0
    assert b"examples:\n  diskq pipeline" in done.out


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_with_a_value_says_its_default(verb, capsys):
    with pytest.raises(SystemExit):
        main(["pipeline", verb, "--help"])
    options = capsys.readouterr().out.partition("options:")[2].partition("examples:")[0]
    for option in options.split("\n  -")[1:]:
        head, text = option.split(" ", 1)
        takes_value = text.split()[0].isupper() or text.startswith("{")
        assert "(default: " in " ".join(text.split()) or not takes_value, f"-{head}"


def test_the_examples_can_be_parsed(run, stream, monkeypatch, no_spark):
    """Each gets as far as the streams that it names, which are not there."""
    examples = []
    for verb in VERBS:
        text = run("pipeline", verb, "--help").out.decode().partition("examples:\n")[2]
        examples += [line.strip() for line in text.splitlines() if line.strip()]
    assert len(examples) > 12
    monkeypatch.chdir(stream.parent)
    for example in examples:
        words = shlex.split(example.partition(" | ")[0])[1:]
        done = run(*words)
        assert done.code == 1, example
        assert done.notes[-1].startswith("diskq: error: "), example


def test_neither_diskq_nor_its_help_loads_spark():
    code = (
        "import sys, diskq.cli\n"
        "try: diskq.cli.main(['pipeline', 'reshard', '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(any(name.partition('.')[0] in ('pyspark', 'pyarrow', 'py4j') for name in sys.modules))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0
    )


# --- what makes no sense --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ["nonsense"],
        ["reshard", "s"],
        ["reshard", "s", "t", "--follow", "10"],
        ["reshard", "s", "t", "--batch", "0"],
        ["reshard", "s", "t", "--conf", "spark.executor.memory"],
        ["aggregate", "s"],
        ["aggregate", "s", "--window", "1 hour"],
        ["aggregate", "s", "--window", "1h", "--by", "key", "--json-field", "page"],
        ["aggregate", "s", "--window", "1h", "--measure", "max(offset)"],
        ["replay", "s", "t", "--speed", "-1"],
        ["replay", "s", "t", "--speed", "fast"],
        ["reshard", "s", "t", "--partition-count", "0"],
        ["merge", "s"],
        ["merge", "--into", "t"],
        ["dedupe-merge", "s"],
    ],
)
def test_what_makes_no_sense_is_2_and_says_how_it_is_used(run, stream, monkeypatch, no_spark, command):
    monkeypatch.chdir(stream.parent)
    done = run("pipeline", *command)
    assert done.code == 2
    assert done.notes[0].startswith("usage: diskq")
    assert "error: " in done.notes[-1]


@pytest.mark.parametrize(
    "command, code",
    [
        (["aggregate", "nowhere", "--window", "1h"], 1),
        (["reshard", "nowhere", "t"], 1),
        (["replay", "nowhere", "t"], 1),
        (["merge", "s", "nowhere", "--into", "t"], 1),
        (["dedupe-merge", "nowhere", "--into", "t"], 1),
    ],
)
def test_a_stream_that_is_not_there_is_reported_before_spark_is_started(
    run, stream, monkeypatch, no_spark, command, code
):
    monkeypatch.chdir(stream.parent)
    done = run("pipeline", *command)
    assert done.code == code
    assert done.notes == [line for line in done.notes if "nowhere: " in line]
    assert not (stream.parent / "t").exists()


# --- what is missing ------------------------------------------------------------------------------

HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
from diskq.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("package", ["pyspark", "pyarrow"])
def test_without_spark_it_says_what_to_install(stream, package):
    words = ["pipeline", "reshard", str(stream), str(stream.parent / "a")]
    command = [sys.executable, "-c", HIDE.format(package=package), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"diskq: error: pipelines need {package}: pip install 'diskqueue[spark]'\n"


def test_without_java_it_says_so(run, stream, monkeypatch):
    from diskq.spark import java, sessions

    def missing() -> None:
        raise java.JavaNotFoundError(["java 8"])

    monkeypatch.setattr(sessions, "ensure_java", missing)
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    monkeypatch.setattr("pyspark.SparkContext._gateway", None)
    monkeypatch.setattr(pipeline_runs, "_active", lambda: None)
    done = run("pipeline", "reshard", stream, stream.parent / "a")
    assert done.code == 1
    assert done.notes[-1].startswith("diskq: error: Spark needs Java")
    assert "diskqueue[spark-jre]" in done.notes[-1]


# --- what Spark says ------------------------------------------------------------------------------


def told(run, stream, monkeypatch, failure: BaseException) -> list[str]:
    class Session:
        def __enter__(self) -> object:
            raise failure

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(pipeline_runs, "_session", lambda args: Session())
    done = run("pipeline", "reshard", stream, stream.parent / "a")
    assert done.code == (130 if isinstance(failure, KeyboardInterrupt) else 1)
    notes: list[str] = done.notes
    return notes


def test_an_error_of_ours_comes_out_of_spark_as_its_sentence(run, stream, monkeypatch):
    from pyspark.errors import PySparkException

    text = "It was thrown\nTraceback:\n  ...\ndiskq.DiskqSparkError: DISKQ_LOCKED: s is in use\n at org"
    assert told(run, stream, monkeypatch, PySparkException(text)) == [
        "diskq: error: DISKQ_LOCKED: s is in use"
    ]


def test_of_another_one_its_first_line_is_enough(run, stream, monkeypatch):
    from pyspark.errors import PySparkException

    text = "[UNRESOLVED_COLUMN] There is no column `x`. SQLSTATE: 42703;\n'Aggregate ...\n+- Relation"
    assert told(run, stream, monkeypatch, PySparkException(text)) == [
        "diskq: error: Spark: [UNRESOLVED_COLUMN] There is no column `x`. (--debug shows all that Spark says)"
    ]


def test_an_interrupt_says_nothing_before_anything_was_done(run, stream, monkeypatch):
    assert told(run, stream, monkeypatch, KeyboardInterrupt()) == []
