# One word for one thing: the table of docs/reference/vocabulary.md holds for every public name.

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import diskq
from tests.vocabulary import PACKAGES, not_installed, public_names

PAGE = Path(__file__).parent.parent / "docs/reference/vocabulary.md"
_CODE = re.compile(r"`([^`]+)`")


class Row(NamedTuple):
    thing: str
    word: str
    places: list[str]
    never: list[str]
    but: list[str]


def rows() -> list[Row]:
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and (word := _CODE.fullmatch(cells[1])):
            found.append(Row(cells[0], word[1], *(_CODE.findall(cell) for cell in cells[2:5])))
    return found


ROWS = rows()
NAMES = [*public_names()]


def test_the_table_is_read():
    assert len(ROWS) > 20
    assert len({row.word for row in ROWS}) == len(ROWS)
    assert len(NAMES) > 1000


def test_all_that_users_meet_is_walked():
    if missing := not_installed():
        pytest.skip(f"not installed: {', '.join(missing)}")
    found = {name.where for name in NAMES}
    assert {*PACKAGES} <= found
    assert {"HubStatistics.accepted", "TableUpdate.written_bytes", "spark.pipelines.reshard(into)"} <= found
    assert {"Spark read(starting_offsets)", "Spark write(partition_count)", "diskq hub push --batch"} <= found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.word)
def test_each_kind_has_the_word(row):
    where = {name.where for name in NAMES}
    option = f"--{row.word.replace('_', '-')}"
    missing = [
        place
        for place in row.places
        if not where & {f"{place}({row.word})", f"{place}.{row.word}", f"{place} {option}"}
    ]
    if missing and not_installed():
        pytest.skip(f"not installed: {', '.join(not_installed())}")
    assert missing == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.word)
def test_no_public_name_is_another_word_for_it(row):
    found = [name.where for name in NAMES if name.word in row.never and name.where not in row.but]
    assert found == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.word)
def test_what_stays_is_there(row):
    assert {*row.but} <= {name.where for name in NAMES} | {row.word, "into"}


def test_what_opens_is_called_so():
    openers = [
        name
        for name in diskq.__all__
        if name[0].islower() and inspect.isclass(of := getattr(diskq, name)) and hasattr(of, "__aenter__")
    ]
    assert openers
    assert [name for name in openers if not name.startswith("open_")] == []


def test_partitions_are_which_and_partition_count_is_how_many():
    assert [where for where, function in functions() if _is_a_number(function, "partitions")] == []
    names = [name.where for name in NAMES if name.word == "partitions" and name.kind == "option"]
    # Which are read is --partition, and `assign` of Spark's reader, as of Kafka's.
    assert names == []


def _is_a_number(function: Any, parameter: str) -> bool:
    given = inspect.signature(function).parameters.get(parameter)
    return given is not None and str(given.annotation).startswith("int")


KEYWORDS_ONLY = ("options", "durability", "create", "wait", "fs", "max_bytes", "linger")
# It takes nothing else.
ALONE = ("JournalReader.columns(max_bytes)",)


def test_what_is_said_of_a_call_is_a_keyword():
    found = []
    for where, function in functions():
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name in KEYWORDS_ONLY and parameter.kind is not parameter.KEYWORD_ONLY:
                found.append(f"{where}({parameter.name})")
    assert [where for where in found if where not in ALONE] == []


def functions() -> list[tuple[str, Any]]:
    """Each public function and method, and what constructs a public opener or engine."""
    found: list[tuple[str, Any]] = []
    for name in diskq.__all__:
        public = getattr(diskq, name)
        if inspect.isfunction(public):
            found.append((name, public))
        is_opened = "Made by" not in (public.__doc__ or "")
        if inspect.isclass(public) and is_opened and not name.endswith(("Options", "Statistics", "Error")):
            members = {**vars(public)}
            constructor = members.get("__init__")
            takes_options = (
                inspect.isfunction(constructor) and "fs" in inspect.signature(constructor).parameters
            )
            found += [
                (f"{name}.{member}", value)
                for member, value in members.items()
                if inspect.isfunction(value)
                and (not member.startswith("_") or (member == "__init__" and takes_options))
            ]
    return found


@pytest.mark.spark
def test_columns_of_a_priority_store_in_spark_have_its_words():
    schema = pytest.importorskip("diskq.spark.schema")
    names = schema.schema_of(("taskflux",)).fieldNames()
    assert {"priority", "body"} <= {*names}
    assert {*names}.isdisjoint(word for row in ROWS for word in row.never)
