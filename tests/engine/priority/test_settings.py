# TaskFlux's settings: read, or refused by name.

from __future__ import annotations

import pytest

from diskq.engine.priority.files import SETTINGS, read_settings
from diskq.errors import CorruptionError
from tests.engine.ram import RamFS


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b'{"LogFileSoftLimit": -1}', b'{"a": ' + b"[" * 100_000],
    ids=["torn", "list", "negative", "nested-deeply"],
)
def test_settings_that_are_none_are_refused(content: bytes) -> None:
    with pytest.raises(CorruptionError, match="not TaskFlux's settings"):
        read_settings(RamFS({f"/store/{SETTINGS}": content}), "/store")
