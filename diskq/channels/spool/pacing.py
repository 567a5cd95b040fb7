# When a destination may be tried: not while the spool is paused by hand, not faster than its rate, and not
# for a while after many failures in a row (a circuit breaker that is open).
#
# Law: `resume` ends every wait here, and no message is taken during a wait.

from __future__ import annotations

import random

from diskq.channels.core.event_loops.seam import Scope, running_event_loop
from diskq.options import SpoolOptions

__all__ = ["Pacing"]

# A pause is longer by up to this fraction, so that spools that lost a destination together return one by one.
_SPREAD = 0.1


class Pacing:
    """The pacing of one spool. Times are on the loop's clock."""

    def __init__(self, options: SpoolOptions) -> None:
        self._options = options
        self._is_held = False  # paused by hand
        self._is_open = False  # paused by the circuit
        self._event_loop = running_event_loop()
        self._resumed = self._event_loop.event()
        self._sleep: Scope | None = None
        self._free_at = -float("inf")  # when the rate allows the next batch
        self.failures = 0
        """The number of failures in a row."""
        self.next_try_at: float | None = None
        """The time before which no try begins. None: no time is set, but the spool may be paused by hand."""

    @property
    def is_paused(self) -> bool:
        return self._is_held or self._is_open

    def pause(self) -> None:
        """Begin no further try until `resume`."""
        self._is_held = True

    def resume(self) -> None:
        """End every pause and wait: try now."""
        self._is_held = self._is_open = False
        self._resumed.set()
        self._resumed = self._event_loop.event()
        if self._sleep is not None:
            self._sleep.cancel()

    # --- before a try, and after it ---------------------------------------------------------------

    async def turn(self, items: int) -> None:
        """Return when `items` messages may be tried. It is a cancellation point only if it waits."""
        rate = self._options.rate
        while True:
            while self._is_held:
                await self._resumed.wait()
            now = self._event_loop.clock()
            if rate is None or now >= self._free_at:
                break
            self.next_try_at = self._free_at
            if not await self.sleep_until(self._free_at):
                break
        self.next_try_at = None
        if rate is not None:
            self._free_at = max(now, self._free_at) + items / rate

    def succeeded(self) -> None:
        self.failures = 0
        self._is_open = False

    def failed(self) -> float | None:
        """Note a failure. Returns the pause in seconds before the next try; None: the back-off decides."""
        self.failures += 1
        limit = self._options.pause_after
        self._is_open = limit is not None and self.failures >= limit
        return self._options.pause * random.uniform(1, 1 + _SPREAD) if self._is_open else None

    async def sleep(self, seconds: float) -> bool:
        """Sleep so long. False: `resume` ended it."""
        return await self.sleep_until(self._event_loop.clock() + seconds)

    async def sleep_until(self, at: float) -> bool:
        """Sleep until then. False: `resume` ended it."""
        with self._event_loop.scope() as self._sleep:
            await self._event_loop.sleep_until(at)
        was_resumed, self._sleep = self._sleep.cancelled_caught, None
        return not was_resumed
