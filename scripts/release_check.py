"""Is this tree fit to be released? Looks at the version, the changelog, tags and classifiers; builds nothing.

    python -m scripts.release_check

Prints what is wrong, and ends with 1 where something is.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTHON = "Programming Language :: Python :: 3."


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version = project["project"]["version"]
    complaints = [
        *judge_changelog(changelog, version),
        *judge_pythons(project),
        *judge_links(project),
        *judge_tag(
            version, git("rev-parse", "-q", "--verify", f"v{version}^{{commit}}"), git("rev-parse", "HEAD")
        ),
    ]
    if git("status", "--porcelain"):
        complaints.append("there is something that is not committed")
    if complaints:
        sys.exit("\n".join([f"{version} is not fit to be released:", *(f"  {each}" for each in complaints)]))
    print(f"{version} is fit to be released")


def judge_changelog(changelog: str, version: str) -> list[str]:
    """Keep a Changelog: an Unreleased section that is empty, below it the version's own, which is dated."""
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    headings = [section.partition("\n")[0].strip() for section in sections]
    found = []
    if not headings or headings[0] != "[Unreleased]":
        found.append("CHANGELOG.md does not begin with [Unreleased]")
    elif "- " in sections[0]:
        found.append("CHANGELOG.md has something under [Unreleased]")
    if len(headings) < 2 or not re.fullmatch(rf"\[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d", headings[1]):
        found.append(f"CHANGELOG.md has no dated section for {version} below [Unreleased]")
    return found


def judge_pythons(project: dict) -> list[str]:  # type: ignore[type-arg]
    """The classifiers and the wheels are of the same Pythons."""
    told = {
        each.removeprefix(PYTHON) for each in project["project"]["classifiers"] if each.startswith(PYTHON)
    }
    built = {each[2:-2] for each in re.findall(r"cp3\d+-\*", project["tool"]["cibuildwheel"]["build"])}
    built = {each.lstrip("3") for each in built}
    return [] if told == built else [f"classifiers tell of 3.{sorted(told)}, wheels are of 3.{sorted(built)}"]


def judge_links(project: dict) -> list[str]:  # type: ignore[type-arg]
    """The README's links need the repository's address, or they are lost on a package index."""
    has_address = project["project"].get("urls", {}).get("Repository", "").startswith("https://")
    return [] if has_address else ["pyproject.toml has no address under [project.urls] Repository"]


def judge_tag(version: str, tagged: str, head: str) -> list[str]:
    return [f"v{version} is the tag of another commit"] if tagged and tagged != head else []


def git(*arguments: str) -> str:
    """What it prints; empty where it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


if __name__ == "__main__":
    main()
