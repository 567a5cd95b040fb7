# Decoders of the tests' own, each with a fault that bytes changed at random would find once in 2 ** 24 tries,
# and that a search by coverage finds byte by byte. What it does not find in them, it would not find at all.

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

from tests.torture.decoders import Decoder

__all__ = ["COMPILED_IN", "compile_toy", "toys"]

COMPILED_IN = "DISKQ_TOY_DECODER"
"""The variable that names the compiled toy."""

SOURCE = r"""
#include <stddef.h>
#include <stdlib.h>

static volatile char sink;

/* A length that is believed, behind a magic word: reads up to two bytes more than there are. */
void decode(const unsigned char *data, size_t size) {
    if (size < 4 || data[0] != 'd') return;
    if (data[1] != 's') return;
    if (data[2] != 'k') return;
    char *copy = malloc(16);
    sink = copy[data[3] < 18 ? data[3] : 0];
    free(copy);
}
"""


def compile_toy(compiler: str, directory: Path) -> Path:
    """The fault above as a library, built as `DISKQ_SANITIZE=fuzz` builds diskq."""
    source, library = directory / "toy.c", directory / "toy.so"
    source.write_text(SOURCE)
    flags = ["-shared", "-fPIC", "-O1", "-g", "-fsanitize=fuzzer-no-link,address,undefined"]
    subprocess.run([compiler, *flags, "-o", library, source], check=True)
    return library


def _told_of_length(data: bytes) -> None:
    if data[:1] == b"d":  # noqa: SIM102
        if data[1:2] == b"s":  # noqa: SIM102
            if data[2:3] == b"k":
                raise IndexError(f"{len(data)} bytes")


def toys() -> dict[str, Decoder]:
    found = {"toy, Python": Decoder([b"xxxxxxxx"], _told_of_length)}
    if COMPILED_IN in os.environ:
        decode = ctypes.CDLL(os.environ[COMPILED_IN]).decode
        decode.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
        decode.restype = None
        found["toy, compiled"] = Decoder([b"xxxxxxxx"], lambda data: decode(data, len(data)))
    return found
