# The compiled modules, and the README with links that work on a package index. Every other fact about the
# package is in pyproject.toml.
#
# DISKQ_CYTHON_ANNOTATE=1   writes annotated HTML beside the generated C, in build/cython
# DISKQ_NO_MODULES=1        compiles nothing: for an editable install before `build_ext --inplace`
# DISKQ_SANITIZE=1          builds for the address and undefined-behaviour sanitizers
# DISKQ_SANITIZE=fuzz       the same with clang, and with coverage for libFuzzer (tests/torture/guided.py)

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import sysconfig
import tomllib
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

SANITIZERS = "-fsanitize=address,undefined"


def is_set(name: str) -> bool:
    return os.environ.get(name, "") not in ("", "0")


def extensions() -> list[Extension]:
    """One for each .pyx file below diskq/_native/: a new codec needs no line here."""
    if is_set("DISKQ_NO_MODULES"):
        return []
    compile_args = ["/O2"] if sys.platform == "win32" else ["-O2", "-g0"]
    link_args = []
    if os.environ.get("DISKQ_SANITIZE") == "fuzz":
        # Linked with no runtime: the one that is loaded before all else has libFuzzer inside.
        compile_args = ["-O1", "-g", "-fno-omit-frame-pointer", f"{SANITIZERS},fuzzer-no-link"]
        compile_args += ["-fno-sanitize-recover=undefined"]
    elif is_set("DISKQ_SANITIZE"):
        compile_args = ["-O1", "-g", "-fno-omit-frame-pointer", SANITIZERS]
        link_args = [SANITIZERS]
    return [
        Extension(
            ".".join(source.with_suffix("").parts),
            [source.as_posix()],
            depends=["diskq/_native/core/crc32c.h", "diskq/_native/core/platform.h"],
            include_dirs=["diskq/_native/core"],
            extra_compile_args=compile_args,
            extra_link_args=link_args,
        )
        for source in sorted(Path("diskq/_native").rglob("*.pyx"))
    ]


def use_a_compiler_that_is_here() -> None:
    """Some Pythons remember the compiler of the machine that built them: fall back to `cc`."""
    remembered = shlex.split(sysconfig.get_config_var("CC") or "cc")[0]
    if "CC" not in os.environ and shutil.which(remembered) is None and shutil.which("cc"):
        os.environ["CC"] = "cc"


# `[text](target)`, and `![text](target)` for a picture. A link may have a picture for its text.
LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def long_description(readme: str, project: dict) -> str:  # type: ignore[type-arg]
    """The README as a package index shows it: each relative link leads to this version in the repository.

    The repository is `urls.Repository` of `project`, the table in pyproject.toml. Without one a relative link
    becomes its text, and a picture is left out, so that no link is dead.
    """
    repository = project.get("urls", {}).get("Repository", "").rstrip("/")

    def absolute(found: re.Match[str]) -> str:
        target = found["target"]
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        if not repository:
            return "" if found["picture"] else found["text"]
        kind = "raw" if found["picture"] else "blob"
        place = f"{repository}/{kind}/v{project['version']}/{target}"
        return f"{found['picture']}[{found['text']}]({place})"

    parts = FENCE.split(readme)
    return "".join(part if number % 2 else LINK.sub(absolute, part) for number, part in enumerate(parts))


# The guard is for the worker processes of a parallel build, which import this file again.
if __name__ == "__main__":
    use_a_compiler_that_is_here()
    workers = os.cpu_count() or 1
    about = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    setup(
        long_description=long_description(Path("README.md").read_text(encoding="utf-8"), about),
        long_description_content_type="text/markdown",
        ext_modules=cythonize(
            extensions(),
            include_path=["."],
            build_dir="build/cython",  # the generated C stays out of the source tree
            compiler_directives={"language_level": 3},
            annotate=is_set("DISKQ_CYTHON_ANNOTATE"),
            nthreads=workers,
            quiet=True,
        ),
        options={"build_ext": {"parallel": workers}},
    )
