"""For all tests: ^C is what it is in a terminal.

A shell lets what it runs in its background ignore SIGINT, and so do all whom that starts. Tests that
interrupt would wait for ever.
"""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
