# Options as keywords. Law: type checkers, editors and people are told of an option what options.py says.

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import diskq.keywords
import diskq.options
from scripts.option_keywords import option_classes, wanted

ROOT = Path(__file__).parent.parent


def test_what_is_made_of_the_options_is_up_to_date() -> None:
    stale = [
        str(path.relative_to(ROOT))
        for path, text in wanted().items()
        if path.read_text(encoding="utf-8") != text
    ]
    assert not stale, "run `python -m scripts.option_keywords`"


@pytest.mark.parametrize("kind", option_classes().values(), ids=lambda kind: str(kind.__name__))
def test_a_typed_dictionary_has_the_options_of_its_class_with_their_types(kind: type[Any]) -> None:
    keywords = vars(diskq.keywords)[kind.__name__.replace("Options", "Keywords")]
    types = get_type_hints(kind)
    assert get_type_hints(keywords) == {field.name: types[field.name] for field in dataclasses.fields(kind)}
    assert not keywords.__required_keys__
