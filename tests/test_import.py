# What `import diskq` costs, and what it offers.

from __future__ import annotations

import subprocess
import sys

import diskq


def test_trio_is_imported_when_a_channel_is_first_asked_for() -> None:
    before, after = "assert 'trio' not in sys.modules", "assert 'trio' in sys.modules"
    program = f"import sys, diskq; {before}; diskq.open_queue; {after}"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_engines_are_imported_when_they_are_first_asked_for() -> None:
    before, after = (
        "assert not any('.engine' in name for name in sys.modules)",
        "assert 'diskq.engine.fifo' in sys.modules",
    )
    program = f"import sys, diskq; {before}; diskq.FifoQueue; {after}"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_public_name_is_there() -> None:
    for name in diskq.__all__:
        assert getattr(diskq, name).__doc__
    assert set(diskq.__all__) <= set(dir(diskq))


def test_the_version_is_the_packages() -> None:
    assert diskq.__version__[0].isdigit()
