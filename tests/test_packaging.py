# What is told of the package, and where: once, and the same everywhere.

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from scripts.release_check import judge_changelog, judge_pythons, judge_tag

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))

RELEASED = "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2030-01-31\n\n- a thing\n"


def test_a_changelog_that_is_ready():
    assert judge_changelog(RELEASED, "1.2.0") == []


@pytest.mark.parametrize(
    "old, new, complaint",
    [
        ("## [Unreleased]\n", "", "does not begin with"),
        ("## [Unreleased]\n", "## [Unreleased]\n\n- more\n", "something under"),
        ("[1.2.0]", "[1.1.0]", "no dated section for 1.2.0"),
        (" - 2030-01-31", "", "no dated section for 1.2.0"),
    ],
)
def test_a_changelog_that_is_not(old, new, complaint):
    (found, *_) = judge_changelog(RELEASED.replace(old, new, 1), "1.2.0")
    assert complaint in found


def test_classifiers_and_wheels_are_of_the_same_pythons():
    assert judge_pythons(PROJECT) == []
    assert judge_pythons({**PROJECT, "tool": {"cibuildwheel": {"build": "cp311-* cp312-*"}}})


def test_a_tag_is_of_one_commit():
    assert judge_tag("1.2.0", "", "abc") == judge_tag("1.2.0", "abc", "abc") == []
    assert judge_tag("1.2.0", "abc", "def")


def test_the_version_is_in_one_place():
    version = PROJECT["project"]["version"]
    sources = [*(ROOT / "diskq").rglob("*.py"), ROOT / "setup.py"]
    assert not [path for path in sources if f'"{version}"' in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_to_a_version(path):
    used = re.findall(r"uses: (\S+)", path.read_text(encoding="utf-8"))
    assert used
    assert all(re.search(r"@v\d+\.\d+\.\d+$", each) for each in used)


def test_the_licence_and_the_types_are_in_the_wheel():
    assert PROJECT["project"]["license-files"] == ["LICENSE"]
    assert "py.typed" in PROJECT["tool"]["setuptools"]["package-data"]["*"]
    assert (ROOT / "diskq/py.typed").exists()
