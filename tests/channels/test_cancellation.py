# The short question is Trio's question.

from __future__ import annotations

import pytest
import trio
from trio.lowlevel import checkpoint_if_cancelled, current_task

from diskq.channels import cancellation


async def would_raise() -> bool:
    try:
        await checkpoint_if_cancelled()
    except trio.Cancelled:
        return True
    return False


async def test_it_says_what_checkpoint_if_cancelled_does() -> None:
    is_cancelled = cancellation.cancellation_test()
    assert not is_cancelled(current_task())
    with trio.CancelScope() as outer:
        assert is_cancelled(current_task()) == await would_raise() == False  # noqa: E712
        outer.cancel()
        assert is_cancelled(current_task()) == await would_raise() == True  # noqa: E712
        with trio.CancelScope(shield=True) as inner:
            assert is_cancelled(current_task()) == await would_raise() == False  # noqa: E712
            inner.cancel()
            assert is_cancelled(current_task()) == await would_raise() == True  # noqa: E712


async def test_where_trio_has_no_such_attribute_every_call_takes_the_public_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(_: object) -> bool:
        raise AttributeError

    monkeypatch.setattr(cancellation, "_is_cancelled", missing)
    assert cancellation.cancellation_test()(current_task())
