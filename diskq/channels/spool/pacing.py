# When a destination may be tried: not while somebody has paused the spool, not faster than its rate, and
# after many failures in a row not for a while (a circuit that is open).
#
# Law: whoever waits here can be sent on by `resume`, and nothing is in anybody's hands meanwhile.

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio

from diskq.options import SpoolOptions

__all__ = ["Pacing"]

# A pause is longer by up to this part of it: many spools that were cut off together come back one by one.
_SPREAD = 0.1


class Pacing:
    """One spool's. Times are Trio's."""

    def __init__(self, options: SpoolOptions) -> None:
        self._options = options
        self._is_held = False  # paused by hand
        self._is_open = False  # paused by the circuit
        self._resumed = trio.Event()
        self._sleep: trio.CancelScope | None = None
        self._free_at = -float("inf")  # when the rate allows the next batch
        self.failures = 0
        """In a row."""
        self.next_try_at: float | None = None
        """Not before then. None: nothing is known to be in the way but, perhaps, a hand."""

    @property
    def is_paused(self) -> bool:
        return self._is_held or self._is_open

    def pause(self) -> None:
        """Begin no try any more, until `resume`."""
        self._is_held = True

    def resume(self) -> None:
        """Try now: whatever was waited for, it has been waited for long enough."""
        self._is_held = self._is_open = False
        self._resumed.set()
        self._resumed = trio.Event()
        if self._sleep is not None:
            self._sleep.cancel()

    # --- before a try, and after it ---------------------------------------------------------------

    async def turn(self, items: int) -> None:
        """Return when so many messages may be tried. A cancellation point only where it waits."""
        rate = self._options.rate
        while True:
            while self._is_held:
                await self._resumed.wait()
            now = trio.current_time()
            if rate is None or now >= self._free_at:
                break
            self.next_try_at = self._free_at
            if not await self.sleep(trio.sleep_until, self._free_at):
                break
        self.next_try_at = None
        if rate is not None:
            self._free_at = max(now, self._free_at) + items / rate

    def succeeded(self) -> None:
        self.failures = 0
        self._is_open = False

    def failed(self) -> float | None:
        """Seconds that the destination is to be left alone; None: the back-off decides."""
        self.failures += 1
        limit = self._options.pause_after
        self._is_open = limit is not None and self.failures >= limit
        return self._options.pause * random.uniform(1, 1 + _SPREAD) if self._is_open else None

    async def sleep(self, call: Callable[..., Awaitable[object]], *args: object) -> bool:
        """Wait for a call, which is a kind of sleep. False: `resume` has ended it."""
        with trio.CancelScope() as self._sleep:
            await call(*args)
        was_resumed, self._sleep = self._sleep.cancelled_caught, None
        return not was_resumed
