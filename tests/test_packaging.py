# What is told of the package, and where: once, and the same everywhere.

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from diskq.distribution import DISTRIBUTION
from scripts.release_check import judge_changelog, judge_links, judge_pythons, judge_tag

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


# --- the README on a package index --------------------------------------------------------------


def long_description(readme: str, **urls: str) -> str:
    spec = importlib.util.spec_from_file_location("setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    setup = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(setup)
    return str(setup.long_description(readme, {"version": "1.2.0", "urls": urls}))


def relative_links(text: str) -> list[str]:
    found = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
    return [link for link in found if not re.match(r"https://|#", link)]


def test_links_lead_to_this_version_in_the_repository():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = long_description(readme, Repository="https://example.org/diskq/")
    assert relative_links(readme) != []
    assert relative_links(shown) == []
    assert "](https://example.org/diskq/blob/v1.2.0/docs/durability.md)" in shown
    assert "](https://example.org/diskq/raw/v1.2.0/benchmarks/results/overview.png)" in shown


def test_without_a_repository_no_link_is_dead():
    readme = "A ![chart](a.png) of [what](b.md#c) is [there](https://example.org).\n\n```\n[i](j)\n```\n"
    assert long_description(readme) == ("A  of what is [there](https://example.org).\n\n```\n[i](j)\n```\n")


def test_a_release_names_its_repository():
    assert judge_links({"project": {}})
    assert judge_links({"project": {"urls": {"Repository": "https://example.org/diskq"}}}) == []


def test_the_readme_is_the_long_description():
    assert PROJECT["project"]["dynamic"] == ["readme"]
    assert "long_description=long_description(" in (ROOT / "setup.py").read_text(encoding="utf-8")


# --- the name under which it is installed -------------------------------------------------------------------

SPELLED = re.compile(r"\b(diskq(?:ueue)?)\[([a-z,-]+)\]")
"""The distribution with its extras, as pip takes them."""


def told() -> list[Path]:
    """All that may tell somebody what to install."""
    folders = ("diskq", "docs", "examples", "scripts", "tests", "benchmarks")
    files = [path for folder in folders for kind in ("*.py", "*.md") for path in (ROOT / folder).rglob(kind)]
    return [ROOT / "README.md", ROOT / "pyproject.toml", *files]


def test_what_is_installed_is_not_the_project_that_has_the_name_of_the_import():
    assert PROJECT["project"]["name"] == DISTRIBUTION
    found = [
        (path.name, name, extras)
        for path in told()
        for name, extras in SPELLED.findall(path.read_text(encoding="utf-8"))
    ]
    extras = PROJECT["project"]["optional-dependencies"].keys()
    assert len(found) > 20
    assert [each for each in found if each[1] != DISTRIBUTION or not set(each[2].split(",")) <= extras] == []


def test_no_page_installs_the_other_project():
    bare = re.compile(r"pip install (?!-e |\.)[^\n`]*\bdiskq\b(?![\w/.-])")
    assert [path.name for path in told() if bare.search(path.read_text(encoding="utf-8"))] == []


def test_what_make_installs_for_an_extra_is_what_pip_would():
    """The Makefile installs the requirements of an extra alone, those of the extras in it included."""
    project = PROJECT["project"]
    for extra in project["optional-dependencies"]:
        printed = subprocess.run(
            [sys.executable, ROOT / "scripts" / "requirements.py", extra],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        wanted, seen = [extra], set[str]()
        while wanted:
            table = project["optional-dependencies"][wanted.pop()]
            for line in map(Requirement, table):
                if line.name == project["name"]:
                    wanted += line.extras
                else:
                    seen.add(str(line))
        assert {str(Requirement(line)) for line in printed} == seen
        assert len(printed) == len(set(printed))


def test_an_extra_that_does_not_exist_is_named():
    ended = subprocess.run(
        [sys.executable, ROOT / "scripts" / "requirements.py", "nothing"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr == "requirements: pyproject.toml has no extra 'nothing'\n"
