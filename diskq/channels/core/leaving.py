# Leaving a handle's own block. Law: what the block raises leaves it as it is.
#
# Trio's resources are closed with a checkpoint, also behind an exception: where the scope around the block is
# cancelled as well, that raises Cancelled in its place, and nobody hears of the exception.

from __future__ import annotations

from types import TracebackType

import trio

__all__ = ["Leaving"]


class Leaving(trio.abc.AsyncResource):
    """For a resource whose `aclose` is its `close`, and a checkpoint."""

    def close(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        """As `close`, and a checkpoint."""
        self.close()
        await trio.lowlevel.checkpoint()

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if value is None:
            await self.aclose()
        else:
            self.close()
