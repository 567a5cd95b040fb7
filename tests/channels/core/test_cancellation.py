# The short question is Trio's question.

from __future__ import annotations

import types
from collections.abc import Callable

import pytest
import trio
from trio.lowlevel import checkpoint_if_cancelled

from diskq.channels.core import cancellation


async def would_raise() -> bool:
    try:
        await checkpoint_if_cancelled()
    except trio.Cancelled:
        return True
    return False


async def test_it_says_what_checkpoint_if_cancelled_does() -> None:
    is_cancelled = cancellation.cancellation_test()
    assert not is_cancelled()
    with trio.CancelScope() as outer:
        assert is_cancelled() == await would_raise() == False  # noqa: E712
        outer.cancel()
        assert is_cancelled() == await would_raise() == True  # noqa: E712
        with trio.CancelScope(shield=True) as inner:
            assert is_cancelled() == await would_raise() == False  # noqa: E712
            inner.cancel()
            assert is_cancelled() == await would_raise() == True  # noqa: E712


@pytest.mark.parametrize("context", [object(), types.SimpleNamespace(task=object())])
async def test_where_trio_has_no_such_attribute_every_call_takes_the_public_way(
    monkeypatch: pytest.MonkeyPatch, context: object
) -> None:
    with monkeypatch.context() as patch:  # Trio asks it, too
        patch.setattr(trio._core._run, "GLOBAL_RUN_CONTEXT", context)
        patch.setattr(trio.lowlevel, "current_task", lambda: None)
        found = cancellation.cancellation_test()
    assert found is cancellation.always


async def test_where_trio_keeps_it_elsewhere_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.delattr(trio._core._run, "GLOBAL_RUN_CONTEXT")
        patch.setattr(trio.lowlevel, "current_task", lambda: None)
        found = cancellation.cancellation_test()
    assert found is cancellation.always


def test_outside_a_run_it_raises_what_trio_raises() -> None:
    with pytest.raises(RuntimeError, match="must be called from async context"):
        cancellation.cancellation_test()
    is_cancelled = trio.run(cancellation_of_a_run)
    with pytest.raises(RuntimeError, match="must be called from async context"):
        is_cancelled()


async def cancellation_of_a_run() -> Callable[[], bool]:
    return cancellation.cancellation_test()
