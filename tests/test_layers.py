# The layers, and what each may import. Law: who wants to break a rule changes the table, in the open.
#
# Every module under diskq/, and the one beside it, is read, not imported: Python by `ast` (imports inside
# functions and under TYPE_CHECKING count as well), Cython by its import, cimport and include lines. Inside a
# layer as between layers, no modules import each other in a circle.

from __future__ import annotations

import ast
import functools
import graphlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# --- the table --------------------------------------------------------------------------------

# "a.b" is that module alone, "a.b.*" is it and everything below it; capitals are the groups below.
TABLE = """
  layer             may import
  diskq             STDLIB LEAVES diskq.channels.* diskq.engine.* diskq.storage.* diskq.tables.*
  diskq.__main__    diskq.cli.*
  diskq.distribution  PURE
  diskq.errors      PURE
  diskq.messages    PURE diskq._native.core.message
  diskq.options     PURE
  diskq.keywords    PURE diskq.options
  diskq._native.*   PURE C diskq._native.*
  diskq.storage.*   PURE LEAVES PATH diskq.storage.*
  diskq.engine.*    PURE LEAVES diskq._native.* diskq.storage.* diskq.engine.*
  diskq.channels.*  STDLIB LEAVES trio.* outcome diskq.storage.* diskq.engine.* diskq.channels.*
  diskq.hub.*       STDLIB LEAVES trio.* grpc.* diskq.storage.* diskq.engine.* diskq.channels.* diskq.hub.*
  diskq.logging     STDLIB LEAVES diskq.storage.fs diskq.storage.log_events diskq.engine.spool.*
  diskq.scrapy      STDLIB LEAVES scrapy.* diskq.storage.fs diskq.engine.layouts diskq.engine.queue.*
  diskq.metrics.*   STDLIB LEAVES diskq.storage.sync_times diskq.storage.log_events diskq.metrics.*
  diskq.tools.*     STDLIB LEAVES diskq._native.* diskq.storage.* diskq.engine.* diskq.tools.*
  diskq.tables.*    PURE LEAVES pyarrow.* diskq.storage.* diskq.engine.* diskq.tables.*
  diskq.cli.*       STDLIB LEAVES BELOW trio.* rich.* diskq diskq.cli.*
  diskq.spark.*     STDLIB LEAVES pyspark.* pyarrow.* diskq.engine.* diskq.tables.* diskq.spark.*
  diskq.testing.*   STDLIB LEAVES trio.* diskq.storage.* diskq.testing.*
  pyspark_diskq     PURE diskq.spark.*

  module                            may import beyond its layer
  diskq._native.core.file_calls     libc.errno
  diskq._native.core.inotify        libc.errno <errno.h> <unistd.h> <sys/inotify.h>
  diskq._native.core.platform       POSIX_C <errno.h> <windows.h> <intrin.h> <sys/eventfd.h>
  diskq._native.core.crc32c         <nmmintrin.h> <arm_acle.h>
  diskq.tables.arrow_files          tempfile
  diskq.tables.iceberg              pyiceberg.*
  diskq.storage.fs                  os.* fcntl mmap socket threading time portalocker.*
  diskq.channels.core.cancellation  diskq._native.core.cancellation
  diskq.channels.core.event_loops.on_asyncio  asyncio
  diskq.channels.core.event_loops.seam  diskq._native.core.cancellation sniffio
  diskq.channels.core.sleeping      diskq._native.core.sleep
  diskq.channels.core.gathering     diskq._native.core.send_batch
  diskq.channels.core.sync_executor diskq._native.core.sync_queue
  diskq.storage.file_watch          diskq._native.core.inotify select
  diskq.storage.forks               os.* diskq._native.core.thread_guard
  diskq.storage.budget              threading
  diskq.storage.log_events          threading
  diskq.storage.lock                time
  diskq.engine.log.file_line        threading
  diskq.engine.log.shared_sync      threading
  diskq.engine.log.thread_line      threading time
  diskq.engine.spool.spool          threading
  diskq.engine.stream.transactions.side_by_side  concurrent.futures
  diskq.hub.client                  diskq._native.hub.wire diskq._native.journal.codec
  diskq.hub.replication             diskq._native.journal.codec
  diskq.hub.service                 diskq._native.hub.wire
  diskq.hub.store                   diskq._native.hub.wire diskq._native.journal.codec
  diskq.metrics.prometheus          prometheus_client.*
  diskq.metrics.otel                opentelemetry.metrics
  diskq.cli.completion         argcomplete
  diskq.cli.pipeline.runs           diskq.spark.* pyspark.*
  diskq.spark.layouts.queue         diskq.storage.fs
  diskq.spark.columns               diskq._native.stream.columns
  diskq.spark.sink                  diskq._native.stream.columns
  diskq.cli.stream.view             diskq.storage.fs
  diskq.cli.core.directories        diskq.storage.fs diskq.storage.directories
  diskq.cli.priority.view           diskq.storage.fs
  diskq.cli.core.following          diskq.storage.fs
  diskq.cli.core.terminal           diskq.storage.one_line
"""

# The packages of a layer, and which of the others in it each may import. "." is the modules that lie in the
# layer itself. No kind imports another, but for those that are made of one: a spool is a queue, a hub copies
# journals.
PACKAGES = """
  package           may import beside itself
  _native.core
  _native.queue     core
  _native.stream    core
  _native.journal   core
  _native.priority  core
  _native.hub       core journal
  storage.log       .
  engine.log
  engine.queue      log
  engine.stream     log
  engine.journal    log
  engine.priority   log
  engine.spool      log queue
  channels.core
  channels.queue    core
  channels.stream   core
  channels.journal  core
  channels.priority core
  channels.spool    core queue
  tools.view        .
  tools.verify      .
  tools.repair      . verify
  tools.convert     .
  tools.salvage     . convert repair
  tools.watch       . view
  cli.core
  cli.queue         core
  cli.stream        . core replay
  cli.journal       . core replay
  cli.priority      . core
  cli.spool         . core queue
  cli.hub           core
  cli.replay        core stream journal
  cli.pipeline      core stream
  cli.bench         core
  cli.top           core
  spark.layouts     .
  spark.pipelines   . layouts
"""

# Layers whose packages are kinds, and what they share. What holds of kinds in one of them holds across them:
# the engine of a queue imports the compiled modules of queues and the shared ones, and no other kind's.
BY_KIND = {"_native": "core", "engine": "log", "channels": "core"}

# Doors to the operating system, and clocks.
SYSTEM = """
    asyncio ctypes fcntl glob io mmap multiprocessing os pathlib posix select selectors shutil signal socket
    subprocess tempfile threading time
"""

GROUPS = {
    "STDLIB": {f"{name}.*" for name in sys.stdlib_module_names - {"asyncio"}},
    "PURE": {f"{name}.*" for name in sys.stdlib_module_names - {*SYSTEM.split()}},
    "LEAVES": {"diskq.distribution", "diskq.errors", "diskq.keywords", "diskq.messages", "diskq.options"},
    # What a command may be about.
    "BELOW": {"diskq.engine.*", "diskq.channels.*", "diskq.hub.*", "diskq.tables.*", "diskq.tools.*"},
    # The compiled objects that every message passes through; the codecs are their neighbours.
    "PATH": {
        *(f"diskq._native.core.{name}" for name in ("append_buffer", "blocks", "crc32c", "file_calls")),
        *(f"diskq._native.core.{name}" for name in ("framing", "gate", "log_entry", "read_ahead")),
    },
    "POSIX_C": {f"<{name}.h>" for name in ("fcntl", "sys/stat", "sys/sysctl", "sys/types", "time", "unistd")},
    "C": {"cpython.*", "cython.*", "libc.limits", "libc.stdint", "libc.stdlib", "libc.string", "posix.types"}
    | {"<limits.h>", "<stddef.h>", "<stdint.h>", "<stdlib.h>", "<string.h>"},
}

# What makes bytes durable or takes names away: called in the barrier, implemented by file systems.
DURABLE = {"datasync", "fdatasync", "fsync", "sync_directory", "sync_files", "rename", "rmtree", "unlink"}
DURABLE |= {"remove_directory"}
DURABLE_OF_OS = {"remove", "removedirs", "replace", "rmdir"}  # common words elsewhere: only as os.NAME
# The last are file systems over another one, which pass the calls on.
MAY_CALL_DURABLE = {"diskq.storage.barrier", "diskq.storage.fs", "diskq.storage.overlay", "diskq.testing.*"}

# The language's own `open` goes round the door; above the engines that harms no promise.
ABOVE = {
    "diskq.channels.*",
    "diskq.cli.*",
    "diskq.hub.*",
    "diskq.spark.*",
    "diskq.testing.*",
    "diskq.tools.*",
}
MAY_CALL_OPEN = {"diskq.storage.fs", *ABOVE}

# What the command prints and reads goes through this module, which checks that it has left.
USES_STANDARD_STREAMS = {"diskq.cli.core.stdio"}
STANDARD_STREAMS = {f"{under}{name}{under}" for under in ("", "__") for name in ("stdin", "stdout", "stderr")}

# What says in words, for people, what a kind and numbers say for code; and the same of errors and repairs.
SENTENCES = {"problem", "reason", "trouble", "what"}
SAID_BY_STR = {"damage", "error", "failure", "finding", "loss", "refusal", "repair"}
READING = {
    *("count", "endswith", "find", "index", "partition", "removeprefix", "removesuffix", "replace", "rfind"),
    *("rindex", "rpartition", "rsplit", "split", "splitlines", "startswith"),
}
# `RowError.reason` is one of five words.
ONE_OF_SOME = {
    ("diskq.engine.stream.transactions.staging", "odd.reason == 'value size'"),
    ("diskq.engine.stream.transactions.staging", "odd.reason == 'key size'"),
    ("diskq.spark.sink", "_CODES_OF_ROWS[error.reason]"),
}

# --- the checker ------------------------------------------------------------------------------


def matches(name: str, patterns: Iterable[str]) -> bool:
    return any(
        name == pattern.removesuffix(".*") or (pattern.endswith(".*") and name.startswith(pattern[:-1]))
        for pattern in patterns
    )


def read_table(text: str) -> dict[str, set[str]]:
    """What each layer, or module, may import."""
    allowed = {}
    for line in text.split("\n"):
        if line.strip() and "may import" not in line:
            name, *words = line.split()
            allowed[name] = set().union(*(GROUPS.get(word, {word}) for word in words))
    return allowed


LAYERS, ALSO = (read_table(part) for part in TABLE.split("\n\n"))


def layer_of(module: str) -> str | None:
    return module if module in LAYERS else next((layer for layer in LAYERS if matches(module, {layer})), None)


def import_violations(module: str, imported: Iterable[str]) -> list[str]:
    layer = layer_of(module)
    if layer is None:
        return [f"{module} is in no layer: give it one in tests/test_layers.py"]
    allowed = LAYERS[layer] | ALSO.get(module, set())
    return [f"{module} must not import {name}" for name in imported if not matches(name, allowed)]


def read_packages(text: str) -> dict[str, set[str]]:
    """Which packages of its layer, and "." for the layer's own modules, each package may import."""
    rows = [line.split() for line in text.split("\n") if line.strip() and "may import" not in line]
    return {name: {name.partition(".")[2], *others} for name, *others in rows}


BESIDE = read_packages(PACKAGES)


def package_of(module: str) -> tuple[str, str]:
    """Return layer and package: ("engine", "queue") of diskq.engine.queue.files, ("tools", ".") of
    diskq.tools.gaps.
    """
    parts = module.split(".")
    if len(parts) < 3 or parts[0] != "diskq":
        return "", "."
    is_package = len(parts) > 3 or f"{parts[1]}.{parts[2]}" in BESIDE
    return parts[1], parts[2] if is_package else "."


def package_violations(module: str, imported: Iterable[str]) -> list[str]:
    layer, package = package_of(module)
    if not layer or package == ".":
        return []
    if f"{layer}.{package}" not in BESIDE:
        return [f"{layer}.{package} has no row: give it one in tests/test_layers.py"]
    allowed = BESIDE[f"{layer}.{package}"]
    found = []
    for name in imported:
        other_layer, other = package_of(name)
        if layer in BY_KIND and other_layer in BY_KIND and other != ".":
            shared = {BY_KIND[other_layer]}
            kinds = (allowed if package != BY_KIND[layer] else set()) | shared
        elif other_layer == layer:
            kinds = allowed
        else:
            continue
        if other not in kinds:
            found.append(f"{module} must not import {name}")
    return found


def python_imports(tree: ast.AST, module: str, *, is_package: bool = False) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".")
            parent = parts[: len(parts) - node.level + is_package] if node.level else []
            origin = ".".join([*parent, *([node.module] if node.module else [])])
            yield from named_from(origin, [alias.name for alias in node.names])


def cython_imports(source: str) -> Iterator[str]:
    for found in re.finditer(r"^\s*c?import\s+(.+)$", source, re.MULTILINE):
        yield from (name.split()[0] for name in found[1].split("#")[0].split(","))
    for found in re.finditer(r"^\s*from\s+([\w.]+)\s+c?import\s+(\([^)]*\)|.+)$", source, re.MULTILINE):
        yield from named_from(found[1], re.findall(r"\w+", found[2].split("#")[0]))
    yield from re.findall(r"""(?:extern from ["']|#\s*include\s*)(<[^>]+>)""", source)


def named_from(origin: str, names: Iterable[str]) -> Iterator[str]:
    """`from origin import names`, as modules: a package of ours is asked which of them are its modules."""
    if not matches(origin, {"diskq.*"}):
        yield origin
        return
    yield from dict.fromkeys(
        f"{origin}.{name}" if f"{origin}.{name}" in MODULES else origin for name in names
    )


def call_violations(module: str, tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=verb)) if verb in DURABLE:
                allowed = MAY_CALL_DURABLE
            case ast.Call(func=ast.Attribute(value=ast.Name("os"), attr=verb)) if verb in DURABLE_OF_OS:
                allowed = MAY_CALL_DURABLE
            case ast.Call(func=ast.Name("open" as verb)):
                allowed = MAY_CALL_OPEN
            case _:
                continue
        if not matches(module, allowed):
            found.append(f"{module}:{node.lineno} must not call {verb}()")
    return found


def stream_violations(module: str, tree: ast.AST) -> list[str]:
    """What prints, or reads stdin, in a module of the command other than that for it."""
    if not matches(module, {"diskq.cli.*"}) or module in USES_STANDARD_STREAMS:
        return []
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name("print" | "input" as what)):
                pass
            case ast.Attribute(value=ast.Name("sys"), attr=what) if what in STANDARD_STREAMS:
                pass
            case ast.ImportFrom(module="sys", names=names) if {n.name for n in names} & STANDARD_STREAMS:
                what = "from sys import"
            case ast.Call(func=ast.Attribute(value=ast.Name("os"), attr="read" | "write" as what), args=args):
                if not (args and isinstance(args[0], ast.Constant)):
                    continue
            case ast.Call(func=ast.Name("open" | "Console" as what) | ast.Attribute(attr="fdopen" as what)):
                target = node.args[0] if node.args else None
                is_number = isinstance(target, ast.Constant) and isinstance(target.value, int)
                is_named = any(word.arg == "file" for word in node.keywords)
                if is_named if what == "Console" else not is_number:
                    continue
            case ast.ImportFrom(module="rich", names=names):
                what = "from rich import"
            case _:
                continue
        found.append(f"{module}:{node.lineno} must not use {what}: see diskq/cli/core/stdio.py")
    return found


def sentence_violations(module: str, tree: ast.AST) -> list[str]:
    """Uses of a sentence by code: what a finding or a repair is, its kind and its numbers say."""
    found = []
    names = {
        each.targets[0].id
        for each in ast.walk(tree)
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name) and _is_sentence(each.value)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, ops=ops, comparators=others):
                is_by_identity = all(isinstance(each, ast.Is | ast.IsNot) for each in ops)
                read = [] if is_by_identity else [left, *others]
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in READING:
                read = [value]
            case ast.Call(func=ast.Attribute(value=ast.Name("re")), args=arguments):
                read = arguments
            case ast.Subscript(value=value, slice=ast.Slice(lower=lower)):
                read = [] if lower is None else [value]  # the beginning may be shown
            case ast.Subscript(value=value, slice=place):
                read = [value, place]
            case ast.Match(subject=subject):
                read = [subject]
            case ast.ListComp(elt=part) | ast.SetComp(elt=part) | ast.DictComp(key=part):
                read = [part] if isinstance(part, ast.Tuple) or not isinstance(node, ast.ListComp) else []
            case _:
                continue
        if any(_is_sentence(each, names) for each in read) and (module, ast.unparse(node)) not in ONE_OF_SOME:
            found.append(f"{module}:{node.lineno} must not read a sentence: {ast.unparse(node)}")
    return found


def _is_sentence(node: ast.AST, names: Iterable[str] = ()) -> bool:
    match node:
        case ast.Attribute(attr=name):
            return name in SENTENCES
        case ast.Name(name):
            return name in names
        case ast.Call(func=ast.Name("str"), args=[ast.Name(name)]):
            return name in SAID_BY_STR
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return any(_is_sentence(each, names) for each in parts)
    return False


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = sorted(
    [path for suffix in ("py", "pyx", "pxd", "h") for path in (ROOT / "diskq").rglob(f"*.{suffix}")]
    + [ROOT / "pyspark_diskq.py"]
)
OF_PYTHON = [path for path in FILES if path.suffix == ".py"]
MODULES = {module_name(path) for path in FILES}


@functools.cache
def imports_of(path: Path) -> list[str]:
    if path.suffix == ".py":
        return list(python_imports(tree_of(path), module_name(path), is_package=path.stem == "__init__"))
    return list(cython_imports(path.read_text(encoding="utf-8")))


def circle_in(imports: Mapping[str, set[str]]) -> list[str]:
    """Modules of which each imports the one before it, the last being the first; none: there is no circle."""
    others = {module: imported - {module} for module, imported in imports.items()}
    try:
        graphlib.TopologicalSorter(others).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


@functools.cache
def tree_of(path: Path) -> ast.AST:
    return ast.parse(path.read_text(encoding="utf-8"), path)


# --- the laws ---------------------------------------------------------------------------------


def test_a_layer_imports_only_what_its_row_allows():
    assert [each for path in FILES for each in import_violations(module_name(path), imports_of(path))] == []


def test_a_package_imports_only_what_its_row_allows():
    assert [each for path in FILES for each in package_violations(module_name(path), imports_of(path))] == []


def test_every_row_is_of_a_package():
    assert BESIDE.keys() <= {".".join(package_of(module)) for module in MODULES}


def test_only_the_barrier_makes_durable_and_only_the_door_opens():
    assert [each for path in OF_PYTHON for each in call_violations(module_name(path), tree_of(path))] == []


def test_the_command_prints_and_reads_in_one_module():
    assert [each for path in OF_PYTHON for each in stream_violations(module_name(path), tree_of(path))] == []


def test_no_code_reads_a_sentence():
    assert [
        each for path in OF_PYTHON for each in sentence_violations(module_name(path), tree_of(path))
    ] == []


def test_each_class_has_a_name_of_its_own():
    homes: dict[str, list[str]] = {}
    for path in FILES:
        if path.suffix in (".py", ".pyx"):
            found = re.findall(r"^ *(?:cdef )?class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
            for name in dict.fromkeys(found):
                homes.setdefault(name, []).append(module_name(path))
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


def test_no_modules_import_each_other_in_a_circle():
    imports: dict[str, set[str]] = {}
    for path in FILES:
        imports.setdefault(module_name(path), set()).update(MODULES.intersection(imports_of(path)))
    assert circle_in(imports) == []


# --- the checker, checked ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "module, planted",
    [
        ("diskq.errors", "import diskq.options"),
        ("diskq.errors", "from . import options"),
        ("diskq.engine.queue.fifo_queue", "import trio"),
        ("diskq.engine.queue.fifo_queue", "import os.path"),
        ("diskq.engine.queue.fifo_queue", "def now():\n    from time import monotonic"),
        ("diskq.engine.queue.fifo_queue", "from diskq.channels.queue import queue"),
        ("diskq.engine.queue.fifo_queue", "from ...channels.queue import queue"),
        ("diskq.engine.queue.fifo_queue", "import pyspark"),
        ("diskq.channels.queue.queue", "from diskq._native.queue import codec as queue_codec"),
        ("diskq.channels.queue.queue", "import asyncio"),
        ("diskq.storage.barrier", "import os"),
        ("diskq.storage.barrier", "from crc32c import crc32c"),
        ("diskq.storage.checksums", "import portalocker"),
        ("diskq.storage.append_file", "import diskq._native.queue.codec"),
        ("diskq.storage.append_file", "from diskq._native.queue.codec import scan"),
        (
            "diskq.storage.append_file",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import diskq.engine.queue.fifo_queue",
        ),
        ("diskq.cli.queue.parser", "import diskq.spark.source"),
        ("diskq.unheard_of", ""),
    ],
)
def test_a_planted_python_import_is_flagged(module, planted):
    assert len(import_violations(module, python_imports(ast.parse(planted), module))) == 1


@pytest.mark.parametrize(
    "module, planted",
    [
        ("diskq.engine.queue.files", "from diskq.engine.stream.files import StreamFiles"),
        ("diskq.engine.log.writer", "from diskq.engine.queue import files"),
        ("diskq.engine.queue.files", "from diskq._native.journal import codec"),
        ("diskq.channels.core.tail", "from diskq.engine.stream.reader import ReadableStream"),
        ("diskq.engine.journal.files", "from diskq.engine import layouts"),
        ("diskq.tools.view.queue", "from diskq.tools.verify.queue import verify_queue"),
        ("diskq.engine.unheard_of.files", ""),
    ],
)
def test_a_planted_import_of_another_kind_is_flagged(module, planted):
    assert len(package_violations(module, python_imports(ast.parse(planted), module))) == 1


@pytest.mark.parametrize(
    "module, allowed",
    [
        ("diskq.engine.spool.files", "from diskq.engine.queue.files import QueueFiles"),
        ("diskq.channels.spool.spool", "from diskq.engine.queue import files"),
        ("diskq.channels.replay", "from diskq.engine.stream.reader import ReadableStream"),
        (
            "diskq.tools.watch.queue",
            "from diskq.tools.view.queue import QueueView\nfrom diskq.tools import gaps",
        ),
    ],
)
def test_an_import_that_a_package_needs_is_not_flagged(module, allowed):
    assert package_violations(module, python_imports(ast.parse(allowed), module)) == []


def test_a_planted_circle_is_found():
    planted = "def read():\n    from diskq.engine.queue.fifo_queue import Queue"
    imported = set(python_imports(ast.parse(planted), "diskq.engine.queue.work"))
    imports = {
        "diskq.engine.queue.work": imported,
        "diskq.engine.queue.fifo_queue": {"diskq.engine.queue.work", "diskq.engine.queue.fifo_queue"},
    }
    assert set(circle_in(imports)) == {"diskq.engine.queue.work", "diskq.engine.queue.fifo_queue"}


@pytest.mark.parametrize(
    "module, planted",
    [
        ("diskq._native.queue.codec", "cimport posix.unistd"),
        ("diskq._native.queue.codec", "from posix.unistd cimport pwrite"),
        ("diskq._native.queue.codec", "from libc.stdio cimport printf"),
        ("diskq._native.queue.codec", 'cdef extern from "<unistd.h>" nogil:'),
        ("diskq._native.queue.codec", "cdef extern from '<stdio.h>':"),
        ("diskq._native.queue.codec", '    """\n    #include <fcntl.h>\n    """'),
        ("diskq._native.queue.codec", "import os"),
        ("diskq._native.queue.codec", "    import trio  # only this once"),
        ("diskq._native.queue.codec", "from diskq.storage.fs import FileSystem"),
    ],
)
def test_a_planted_cython_import_is_flagged(module, planted):
    assert len(import_violations(module, cython_imports(planted))) == 1


@pytest.mark.parametrize(
    "module, allowed",
    [
        ("diskq.storage.fs", "import os, time\nimport portalocker"),
        ("diskq.storage.append_file", "from diskq._native.core.append_buffer import AppendBuffer"),
        ("diskq.storage.barrier", "from .fs import FileSystem"),
        (
            "diskq.engine.queue.fifo_queue",
            "from diskq._native.queue import codec as queue_codec\nfrom diskq.errors import CorruptionError",
        ),
        ("diskq.channels.queue.queue", "import trio.lowlevel\nfrom diskq.engine.queue import fifo_queue"),
        ("diskq.cli.pipeline.runs", "def run():\n    import diskq.spark.source"),
    ],
)
def test_what_the_table_allows_is_not_flagged(module, allowed):
    assert import_violations(module, python_imports(ast.parse(allowed), module)) == []


@pytest.mark.parametrize(
    "module, planted",
    [
        ("diskq.engine.queue.fifo_queue", "self.fs.unlink(path)"),
        ("diskq.engine.queue.fifo_queue", "fs.rename(old, new)"),
        ("diskq.storage.numbered_files", "fs.sync_directory(path)"),
        ("diskq.storage.numbered_files", "fs.sync_files((handle,))"),
        ("diskq.channels.queue.queue", "os.fsync(handle)"),
        ("diskq.channels.queue.queue", "os.replace(old, new)"),
        ("diskq.engine.queue.fifo_queue", "with open(path) as file: pass"),
    ],
)
def test_a_planted_call_is_flagged(module, planted):
    assert len(call_violations(module, ast.parse(planted))) == 1


@pytest.mark.parametrize(
    "planted",
    [
        "print(1)",
        "input()",
        "sys.stdout.buffer.write(data)",
        "to = sys.stderr",
        "sys.__stdout__",
        "from sys import stdin",
        "os.write(2, data)",
        "os.fdopen(1, 'w')",
        "open(1, 'wb')",
        "Console().print(table)",
        "from rich import print",
    ],
)
def test_a_planted_use_of_a_standard_stream_is_flagged(planted):
    assert len(stream_violations("diskq.cli.queue.verbs", ast.parse(planted))) == 1
    assert stream_violations("diskq.cli.core.stdio", ast.parse(planted)) == []


@pytest.mark.parametrize(
    "innocent",
    [
        "stdout.print(1)",
        "sys.argv",
        "os.write(resize, b'.')",
        "open('/dev/tty', 'w')",
        "open(path)",
        "Console(file=stdout.as_text_file())",
    ],
)
def test_an_innocent_use_of_a_stream_is_not_flagged(innocent):
    assert stream_violations("diskq.cli.queue.verbs", ast.parse(innocent)) == []


@pytest.mark.parametrize(
    "planted",
    [
        "if repair.reason == 'torn': pass",
        "'implementation' in snapshot.trouble",
        "finding.what.endswith(GONE)",
        "repair.reason.removesuffix(REPAIRS)",
        "loss.reason.split(': ')[0]",
        "seen = [(repair.path, repair.reason) for repair in repairs]",
        "{finding.what for finding in findings}",
        "(finding.path, finding.what) in before",
        "str(repair) in before",
        "re.match('torn', loss.reason)",
        "WORDS[finding.what]",
        "repair.reason[5:]",
        "why = repair.reason\nif why == 'torn': pass",
    ],
)
def test_a_planted_reading_of_a_sentence_is_flagged(planted):
    assert len(sentence_violations("diskq.tools.report", ast.parse(planted))) == 1


@pytest.mark.parametrize(
    "innocent",
    [
        "say(f'{repair.path}: {repair.reason}')",
        "report.damage(repair.kind, repair.path, 0, repair.reason)",
        "if segment.trouble is None: pass",
        "if repair.kind is RepairKind.TORN: pass",
        "shown = letter.reason[:200]",
        "'; '.join(each.reason for each in repairs)",
    ],
)
def test_an_innocent_use_of_a_sentence_is_not_flagged(innocent):
    assert sentence_violations("diskq.tools.report", ast.parse(innocent)) == []


def test_an_innocent_call_is_not_flagged():
    innocent = "fs.open(path)\nname.replace('a', 'b')\nitems.remove(3)\nbarrier.pay(fs)"
    assert call_violations("diskq.engine.queue.fifo_queue", ast.parse(innocent)) == []


# What channels use of Trio besides the seam between them and the event loop: names that have no loop.
TRIO_WITHOUT_A_LOOP = {
    "trio.abc",
    *(f"trio.{name}Error" for name in ("BrokenResource", "BusyResource", "ClosedResource", "TooSlow")),
    *("trio.EndOfChannel", "trio.WouldBlock", "trio.MemoryReceiveChannel"),
    *("trio.lowlevel.enable_ki_protection", "trio.lowlevel.disable_ki_protection"),
}
# Trio's side of the seam, and racing's way with Trio's own channels.
OF_TRIO = {
    "diskq.channels.core.cancellation",
    "diskq.channels.core.event_loops.on_trio",
    "diskq.channels.core.event_loops.seam",
    "diskq.channels.core.racing",
    "diskq.channels.core.sleeping",
}


@pytest.mark.parametrize(
    "path", [path for path in OF_PYTHON if matches(module_name(path), {"diskq.channels.*"})], ids=module_name
)
def test_channels_use_an_event_loop_through_the_seam_alone(path: Path) -> None:
    used = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("trio."):
            used.add(ast.unparse(node))
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "trio":
            used |= {f"{node.module}.{alias.name}" for alias in node.names}
    if module_name(path) not in OF_TRIO:
        assert {
            name for name in used if not matches(name, {f"{each}.*" for each in TRIO_WITHOUT_A_LOOP})
        } == set()
