# The memory of columns. Law: a batch reuses the memory of the batches before it.

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# Each batch of columns is some 65 pages, and is dropped once the next one is there.
PROGRAM = """
import resource, sys
from diskq import Journal, JournalReader

with Journal(sys.argv[1]) as journal:
    for _ in range(300):
        journal.append_many([(b"user-042", bytes(100))] * 1000)
with JournalReader(sys.argv[1]) as reader:
    for _ in range(10):
        found = reader.columns()
    before, batches = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, 0
    while found is not None:
        found = reader.columns()
        batches += 1
    print(batches, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is about glibc's memory")
def test_a_batch_of_columns_takes_no_new_memory_from_the_kernel(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], check=True, capture_output=True, text=True
    )
    batches, faults = map(int, done.stdout.split())
    assert batches > 100
    assert faults < 2 * batches
