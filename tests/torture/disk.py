# Every disk that a power cut may leave. Law: what one run did is taken from its system calls, by a witness
# that knows nothing of the system; what was synced is there, and of what was not, anything that a file
# system may do.
#
# Two models of a file system. `journal`: names become durable in the order in which they were given, and
# all of them with the next fsync of anything, as ext4 and XFS have it. `posix`: names are durable when
# their directory was synced, and not before; data that was not synced may be there in any of its sectors,
# torn, or as zeros. Stores into shared memory are not seen: what is only in those is lost, which is what a
# power cut may do.

from __future__ import annotations

import os
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.torture.tracing import Call

__all__ = ["Act", "DiskModel", "Files", "Model", "acts_of", "files_in", "write_files"]

Model = Literal["journal", "posix"]
Files = dict[str, bytes | None]
"""Contents by path, and None for a directory."""
SECTOR = 512


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that was done to the disk, or said."""

    verb: Literal["data", "cut", "sync", "create", "make", "rename", "unlink", "remove", "say"]
    path: str = ""
    """From the root of the run; of `data`, `cut` and `sync` of a file there is the file's number instead."""
    file: int = -1
    offset: int = 0
    data: bytes = b""
    target: str = ""

    @property
    def directory(self) -> str:
        return os.path.dirname(self.target or self.path)


# --- from system calls to acts ----------------------------------------------------------------------

_HEX = re.compile(r"\\x([0-9a-f]{2})")
_DESCRIPTOR = re.compile(r"^(\d+)<([^>]*)>")
_STRING = re.compile(r'"([^"]*)"')


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _path(text: str) -> str:
    return os.fsdecode(_HEX.sub(lambda found: chr(int(found[1], 16)), text).encode("latin-1"))


_NAMING = (
    *("rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat"),
    *("mkdir", "mkdirat", "rmdir"),
)


@dataclass
class _Reader:
    root: str
    acts: list[Act] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    open: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """File and whether it appends, by descriptor."""
    positions: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)

    def inside(self, path: str) -> str | None:
        if path == self.root:
            return ""
        return path[len(self.root) + 1 :] if path.startswith(self.root + "/") else None

    def read(self, call: Call) -> None:
        if call.result < 0:
            return
        name = call.name
        if name == "openat":
            self.opened(call)
        elif name in _NAMING:
            self.named(call)
        elif found := _DESCRIPTOR.match(call.arguments):
            self.on_descriptor(call, int(found[1]), _path(found[2]))

    def opened(self, call: Call) -> None:
        place = re.search(r"<([^>]*)>", call.tail)
        if place is None:
            return
        path = self.inside(_path(place[1]).removesuffix(" (deleted)"))
        if path is None:
            self.open.pop(call.result, None)
            return
        flags = call.arguments
        if "O_DIRECTORY" in flags or path == "":
            self.open.pop(call.result, None)
            return
        if path not in self.names:
            if "O_CREAT" not in flags:
                return
            self.names[path] = len(self.sizes)
            self.sizes[self.names[path]] = 0
            self.acts.append(Act("create", path, self.names[path]))
        number = self.names[path]
        if "O_TRUNC" in flags and self.sizes[number]:
            self.cut(number, 0)
        self.open[call.result] = (number, "O_APPEND" in flags)
        self.positions[call.result] = 0

    def cut(self, number: int, size: int) -> None:
        self.sizes[number] = size
        self.acts.append(Act("cut", file=number, offset=size))

    def named(self, call: Call) -> None:
        # A relative name would need the directory it is relative to: strace has that in front of it.
        paths = []
        for found in re.finditer(r'(?:(?:AT_FDCWD|\d+)<([^>]*)>, )?"([^"]*)"', call.arguments):
            base, name = _path(found[1] or ""), _path(found[2])
            paths.append(self.inside(os.path.normpath(os.path.join(base, name))))
        if call.name.startswith("rename"):
            source, target = paths
            if source is None or target is None:
                return
            self.acts.append(Act("rename", source, target=target))
            for path in [path for path in self.names if path == source or path.startswith(source + "/")]:
                self.names[target + path[len(source) :]] = self.names.pop(path)
        elif call.name.startswith("link"):
            source, target = paths
            if source is not None and target is not None:
                self.names[target] = self.names[source]
                self.acts.append(Act("create", target, self.names[target]))
        elif paths and paths[0] is not None:
            path = paths[0]
            if call.name in ("mkdir", "mkdirat"):
                self.acts.append(Act("make", path))
            elif call.name == "rmdir" or "AT_REMOVEDIR" in call.arguments:
                self.acts.append(Act("remove", path))
            else:
                self.acts.append(Act("unlink", path))
                self.names.pop(path, None)

    def on_descriptor(self, call: Call, descriptor: int, path: str) -> None:
        name, where = call.name, self.inside(path)
        if descriptor == 1 and name == "write":
            self.acts += [Act("say", data=line) for line in self.texts(call)[0].splitlines()]
            return
        if name == "close":
            self.open.pop(descriptor, None)
            return
        if name in ("fsync", "fdatasync") and descriptor not in self.open and where is not None:
            self.acts.append(Act("sync", where))
            return
        if descriptor not in self.open:
            return
        number, appends = self.open[descriptor]
        if name in ("fsync", "fdatasync"):
            self.acts.append(Act("sync", file=number))
        elif name in ("write", "writev"):
            at = self.sizes[number] if appends else self.positions[descriptor]
            self.wrote(number, at, b"".join(self.texts(call))[: call.result])
            self.positions[descriptor] = at + call.result
        elif name in ("pwrite64", "pwritev", "pwritev2"):
            at = int(call.arguments.split(", ")[-2 if name == "pwritev2" else -1])
            self.wrote(number, at, b"".join(self.texts(call))[: call.result])
        elif name == "read":
            self.positions[descriptor] += call.result
        elif name == "lseek":
            self.positions[descriptor] = call.result
        elif name == "ftruncate":
            self.cut(number, int(call.arguments.rsplit(", ", 1)[1]))
        elif name == "fallocate":
            mode, offset, length = call.arguments.split(", ")[1:]
            if mode == "0" and int(offset) + int(length) > self.sizes[number]:
                self.cut(number, int(offset) + int(length))
        elif name in ("dup", "dup2", "dup3"):
            self.open[call.result] = (number, appends)

    def texts(self, call: Call) -> list[bytes]:
        return [_bytes(text) for text in _STRING.findall(call.arguments)]

    def wrote(self, number: int, offset: int, data: bytes) -> None:
        self.sizes[number] = max(self.sizes[number], offset + len(data))
        self.acts.append(Act("data", file=number, offset=offset, data=data))


def acts_of(calls: Sequence[Call], root: Path) -> list[Act]:
    """What the calls did below `root`, which was empty."""
    reader = _Reader(str(root))
    for call in calls:
        reader.read(call)
    return reader.acts


# --- from acts to disks -----------------------------------------------------------------------------


def _apply(content: bytearray, act: Act) -> None:
    if act.verb == "cut":
        del content[act.offset :]
        content.extend(bytes(act.offset - len(content)))
        return
    content.extend(bytes(max(0, act.offset - len(content))))
    content[act.offset : act.offset + len(act.data)] = act.data


def _damaged(content: bytearray, pending: Sequence[Act], rng: random.Random, model: Model) -> None:
    """Some of what was not synced."""
    choices = ["none", "all", "prefix", "torn"] + (["zeros", "sectors"] if model == "posix" else [])
    how = rng.choice(choices)
    if how == "none":
        return
    count = len(pending) if how in ("all", "zeros", "sectors") else rng.randrange(len(pending) + 1)
    for act in pending[:count]:
        if act.verb == "cut" or how in ("all", "prefix", "torn"):
            _apply(content, act)
        elif how == "zeros":
            content.extend(bytes(max(0, act.offset + len(act.data) - len(content))))
        else:
            _some_sectors(content, act, rng)
    if how == "torn" and count < len(pending) and pending[count].verb == "data":
        act = pending[count]
        end = (act.offset // SECTOR + 1) * SECTOR
        within = (
            max(0, end - act.offset) if end - act.offset < len(act.data) else rng.randrange(len(act.data) + 1)
        )
        _apply(content, Act("data", offset=act.offset, data=act.data[:within]))


def _some_sectors(content: bytearray, act: Act, rng: random.Random) -> None:
    end = act.offset + len(act.data)
    content.extend(bytes(max(0, end - len(content))))
    at = act.offset
    while at < end:
        upto = min(end, (at // SECTOR + 1) * SECTOR)
        if rng.random() < 0.5:
            content[at:upto] = act.data[at - act.offset : upto - act.offset]
        at = upto


class DiskModel:
    """The disks after the first so many of the acts."""

    def __init__(self, acts: Sequence[Act], model: Model) -> None:
        self.acts = acts
        self.model: Model = model

    def cuts(self) -> list[int]:
        """Before each act that changes or syncs, and at the end."""
        return [at for at, act in enumerate(self.acts) if act.verb != "say"] + [len(self.acts)]

    def said(self, cut: int) -> list[tuple[str, str]]:
        lines = (act.data.decode().partition(" ") for act in self.acts[:cut] if act.verb == "say")
        return [(word, rest) for word, _, rest in lines]

    def at(self, cut: int, rng: random.Random | None) -> Files:
        """The files, and None for directories. Without `rng` all is there, as after a kill."""
        done = self.acts[:cut]
        data = self._data(done, rng)
        kept = self._names(done, rng)
        found: dict[str, int | None] = {"": None}
        for act in kept:
            if act.verb in ("create", "make"):
                if os.path.dirname(act.path) in found:
                    found[act.path] = act.file if act.verb == "create" else None
            elif act.verb == "rename":
                below = [path for path in found if path == act.path or path.startswith(act.path + "/")]
                for path in below:
                    found[act.target + path[len(act.path) :]] = found.pop(path)
            else:
                found.pop(act.path, None)
        return {
            path: None if number is None else data.get(number, b"") for path, number in found.items() if path
        }

    def _data(self, done: Sequence[Act], rng: random.Random | None) -> dict[int, bytes]:
        synced = {act.file: at for at, act in enumerate(done) if act.verb == "sync" and act.file >= 0}
        contents: dict[int, bytearray] = {}
        pending: dict[int, list[Act]] = {}
        for at, act in enumerate(done):
            if act.verb not in ("data", "cut"):
                continue
            content = contents.setdefault(act.file, bytearray())
            if rng is None or at < synced.get(act.file, -1):
                _apply(content, act)
            else:
                pending.setdefault(act.file, []).append(act)
        if rng is not None:
            for file, acts in pending.items():
                _damaged(contents[file], acts, rng, self.model)
        return {file: bytes(content) for file, content in contents.items()}

    def _names(self, done: Sequence[Act], rng: random.Random | None) -> list[Act]:
        naming = [(at, act) for at, act in enumerate(done) if act.verb not in ("data", "cut", "sync", "say")]
        if rng is None:
            return [act for _, act in naming]
        last: dict[str, int] = {}
        for at, act in enumerate(done):
            if act.verb == "sync":
                if self.model == "journal":
                    last[""] = at
                elif act.file < 0:
                    last[act.path] = at

        def is_durable(at: int, act: Act) -> bool:
            return at < last.get("" if self.model == "journal" else act.directory, -1)

        waiting: dict[str, int] = {}
        for at, act in naming:
            if not is_durable(at, act):
                key = "" if self.model == "journal" else act.directory
                waiting[key] = waiting.get(key, 0) + 1
        how = rng.choice(["none", "all", "prefix"])
        room = {
            key: 0 if how == "none" else count if how == "all" else rng.randrange(count + 1)
            for key, count in sorted(waiting.items())
        }
        kept = []
        for at, act in naming:
            key = "" if self.model == "journal" else act.directory
            if is_durable(at, act):
                kept.append(act)
            elif room[key] > 0:
                room[key] -= 1
                kept.append(act)
        return kept


# --- real files -------------------------------------------------------------------------------------


def files_in(root: Path) -> Files:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
    }


def write_files(root: Path, files: Files) -> None:
    root.mkdir(parents=True)
    for path, content in sorted(files.items()):
        if content is None:
            (root / path).mkdir(parents=True, exist_ok=True)
        else:
            (root / path).write_bytes(content)
