# The guided engine: libFuzzer, through atheris, follows each case through the instrumented Python and the
# compiled modules, and keeps the cases that reach something new. Law: what was learned is kept. The corpus of
# a decoder lies below .cache/fuzz/corpus, and a run goes on where the last one stopped.
#
# libFuzzer owns its process and a crash ends it. So each decoder has a process (guided_child.py), and after a
# crash another one for what is left of its time. They have a build of their own, in build/fuzz: compiled by
# clang for coverage and both sanitizers. Their runtime is atheris's, loaded before all else: it has libFuzzer
# inside, where clang's own would take the coverage and drop it.

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from hashlib import sha256
from pathlib import Path

from tests.torture.decoders import Decoder
from tests.torture.findings import KEPT, Fuzzed, file_name

__all__ = ["Guided", "build", "clang", "environment", "why_not"]

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "build" / "fuzz"
OURS = "tests.torture.fuzz:all_decoders"

HANG_SECONDS = 60
LARGEST_ALLOCATION = 1000  # megabytes at once: nothing here is larger than some kilobytes
MOST_CRASHES = 5  # of one decoder: others are found once these are repaired

_STATUS = re.compile(rb"^#(\d+)\s+\w+\s+cov: (\d+)", re.MULTILINE)
_CASES = re.compile(rb"^stat::number_of_executed_units: (\d+)", re.MULTILINE)
_SUMMARY = re.compile(rb"^SUMMARY: (.+)", re.MULTILINE)
_CRASHES = ("crash-", "timeout-", "oom-")


# --- what it needs ----------------------------------------------------------------------------------


def clang() -> str | None:
    """The clang to compile with: `CC` where it is one, else the newest that is installed."""
    named = os.environ.get("CC", "")
    if "clang" in named and shutil.which(named):
        return named
    return next(filter(shutil.which, ["clang", *(f"clang-{version}" for version in range(40, 11, -1))]), None)


def _runtime() -> Path | None:
    """ASan's and UBSan's, with libFuzzer inside: it comes with atheris."""
    found = importlib.util.find_spec("atheris")
    if found is None or found.origin is None:
        return None
    file = Path(found.origin).parents[1] / "asan_with_fuzzer.so"
    return file if file.exists() else None


def why_not() -> str | None:
    """Why there can be no guided fuzzing here, and what would help; None: there can."""
    if importlib.util.find_spec("atheris") is None:
        return "atheris is not installed: pip install -e '.[fuzz]'"
    if _runtime() is None:
        return "this atheris has no asan_with_fuzzer.so: its wheels for Linux do"
    if clang() is None:
        return "there is no clang: install one (any since 12), or name it in CC"
    return None


def build() -> None:
    """Bring build/fuzz up to date with the sources. Raises CalledProcessError."""
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build", "--build-lib", BUILT, "--build-temp", f"{BUILT}-objects"],
        cwd=ROOT,
        env={**os.environ, "DISKQ_SANITIZE": "fuzz", "CC": clang() or "clang"},
        check=True,
    )


def environment() -> dict[str, str]:
    """In which a Python has the instrumented diskq, and dies of a memory error."""
    return {
        **os.environ,
        "LD_PRELOAD": str(_runtime()),
        "PYTHONPATH": os.pathsep.join([str(BUILT), str(ROOT)]),
        "PYTHONSAFEPATH": "1",  # or the directory it is started in would come first
        "PYTHONMALLOC": "malloc",  # Python's own allocator would hide where a small object ends
        "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=32",  # Python frees not all when it ends
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


# --- a run ------------------------------------------------------------------------------------------


class _Run:
    """One decoder's: what was done in the processes before, and the log of the one under way."""

    def __init__(self, name: str, kept: Path) -> None:
        self.done = Fuzzed(name)
        self.started = time.monotonic()
        self.log = kept / "logs" / file_name(name)
        self.log.write_bytes(b"")
        self._read = 0
        self._cases = 0
        self.summary = ""

    def look(self, *, has_ended: bool = False) -> Fuzzed:
        """Read on in the log."""
        self.done.seconds = time.monotonic() - self.started
        with self.log.open("rb") as log:
            log.seek(self._read)
            told = log.read()
        for status in _STATUS.finditer(told):
            covered = int(status[2])
            first, most = self.done.coverage or (covered, covered)
            self.done.coverage = first, max(most, covered)
            self.done.cases = self._cases + int(status[1])
        if has_ended:
            self._read += len(told)
            for counted in _CASES.finditer(told):
                self.done.cases = self._cases + int(counted[1])
            self._cases = self.done.cases
            found = _SUMMARY.findall(told)
            self.summary = found[-1].decode(errors="replace").replace(": ", " ") if found else "crash"
        return self.done


class Guided:
    """Some decoders under libFuzzer, `jobs` at once, for `seconds` each.

    `source` is the function that has them, as MODULE:FUNCTION: the children call it. `kept` is the directory
    for corpora and logs.
    """

    def __init__(
        self,
        decoders: Mapping[str, Decoder],
        *,
        seconds: float,
        seed: int,
        jobs: int = 1,
        source: str = OURS,
        kept: Path = KEPT,
        say_every: float = 60.0,
    ) -> None:
        self._decoders = decoders
        self._seconds = seconds
        self._seed = seed
        self._jobs = jobs
        self._source = source
        self._kept = kept
        self._say_every = say_every
        self._children: list[subprocess.Popen[str]] = []
        self._mine = threading.local()
        self._runs: dict[str, _Run] = {}
        self._is_closing = False

    def results(self) -> Generator[Fuzzed, None, None]:
        """Each when it is done; what is under way is said every `say_every` seconds. Closing it ends them."""
        for directory in ("corpus", "logs", "seeds"):
            (self._kept / directory).mkdir(parents=True, exist_ok=True)
        with ExitStack() as leaving, ThreadPoolExecutor(self._jobs, initializer=self._start_child) as pool:
            leaving.callback(self._close_pipes)
            waiting = {pool.submit(self._fuzz, name) for name in self._decoders}
            try:
                while waiting:
                    done, waiting = wait(waiting, self._say_every, return_when=FIRST_COMPLETED)
                    for each in done:
                        yield each.result()
                    if not done:
                        self._say()
            finally:
                self._is_closing = True
                for each in waiting:
                    each.cancel()
                for child in self._children:
                    with suppress(ProcessLookupError):
                        os.killpg(child.pid, signal.SIGKILL)
                    child.wait()

    def _close_pipes(self) -> None:
        for child in self._children:
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()

    def _say(self) -> None:
        for run in list(self._runs.values()):
            now = run.look()
            _, reached = now.coverage or (0, 0)
            print(
                f"  {now.name}: {now.seconds:,.0f} of {self._seconds:,.0f} s, {now.cases:,} cases, "
                f"coverage {reached:,}",
                flush=True,
            )

    def _start_child(self) -> None:
        """One to each thread, ready when this returns. It leads a group, with what it forks."""
        with (self._kept / "logs" / f"child-{len(self._children)}").open("w") as log:
            self._mine.child = subprocess.Popen(
                [sys.executable, "-m", "tests.torture.guided_child", self._source],
                cwd=ROOT,
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._children.append(self._mine.child)
        self._answer()

    def _fuzz(self, name: str) -> Fuzzed:
        seeds, corpus = self._kept / "seeds" / file_name(name), self._kept / "corpus" / file_name(name)
        shutil.rmtree(seeds, ignore_errors=True)
        seeds.mkdir()
        corpus.mkdir(exist_ok=True)
        for data in self._decoders[name].seeds:
            (seeds / sha256(data).hexdigest()[:16]).write_bytes(data)
        run = self._runs[name] = _Run(name, self._kept)
        crashes = 0
        while (left := self._seconds - run.done.seconds) >= 1 and self._live(
            run, self._seed + crashes, [f"-max_total_time={int(left)}", str(corpus), str(seeds)]
        ):
            crashes += 1
            if crashes == MOST_CRASHES:
                run.done.ended_early = f"ended by {crashes} crashes"
                break
        del self._runs[name]
        return run.done

    def _live(self, run: _Run, seed: int, options: list[str]) -> bool:
        """A process's life. True where a crash has ended it."""
        name = run.done.name
        largest = max(8192, *(2 * len(data) for data in self._decoders[name].seeds))
        with tempfile.TemporaryDirectory() as scratch:
            told = Path(scratch, "told")
            options += [f"-artifact_prefix={scratch}/", f"-max_len={largest}", f"-seed={seed}"]
            options += [f"-timeout={HANG_SECONDS}", f"-malloc_limit_mb={LARGEST_ALLOCATION}"]
            options += ["-rss_limit_mb=4000", "-print_final_stats=1"]
            wanted = {"name": name, "seed": seed, "told": str(told), "log": str(run.log), "options": options}
            code = self._ask(wanted)
            run.look(has_ended=True)
            with suppress(FileNotFoundError):
                for line in told.read_text().splitlines():
                    finding = json.loads(line)
                    run.done.add(finding["what"], bytes.fromhex(finding["data"]))
            crashed = [file for file in Path(scratch).iterdir() if file.name.startswith(_CRASHES)]
            for file in crashed:
                run.done.add(f"{run.summary}: {run.log}", file.read_bytes())
        if code and not crashed:
            raise RuntimeError(f"{name}: the fuzzer ended with {code}: see {run.log}")
        return bool(crashed)

    def _ask(self, wanted: dict[str, object]) -> int:
        """Have a decoder fuzzed, and wait for its end. Returns the exit code."""
        child = self._mine.child
        assert child.stdin is not None
        with suppress(BrokenPipeError):
            child.stdin.write(json.dumps(wanted) + "\n")
            child.stdin.flush()
        return int(self._answer() or 0)

    def _answer(self) -> str:
        """The next line of this thread's child."""
        answer: str = self._mine.child.stdout.readline()
        if not answer and not self._is_closing:
            raise RuntimeError(f"the fuzzer's process ended: see {self._kept / 'logs'}/child-*")
        return answer
