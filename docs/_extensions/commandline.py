# The directive `command-line`: a section for each command of diskq's, from the parser that runs it.

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from diskq.cli import command_parser

__all__ = ["CommandLine", "setup"]

_WIDTH = 100


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True}


class CommandLine(SphinxDirective):
    """All nouns and verbs, in the order in which `diskq --help` has them."""

    def run(self) -> list[nodes.Node]:
        parser = command_parser()
        top = section_of(parser)
        shown: list[nodes.Node] = list(top.children[1:])  # under the page's own heading
        for noun in children_of(parser):
            shown.append(tree(noun))
        return shown


def tree(parser: argparse.ArgumentParser) -> nodes.section:
    """A command with those below it."""
    section = section_of(parser)
    section += [tree(child) for child in children_of(parser)]
    return section


def children_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from dict.fromkeys(action.choices.values())


def section_of(parser: argparse.ArgumentParser) -> nodes.section:
    """What it is for, its usage, its arguments, and the examples that its help shows."""
    section = nodes.section(ids=[nodes.make_id(parser.prog)], names=[parser.prog])
    section += nodes.title(parser.prog, parser.prog)
    section += text_of(parser.description or "")
    section += literal(usage_of(parser))
    for group in parser._action_groups:
        rows = [
            (spelled(action), help_of(parser, action)) for action in group._group_actions if is_shown(action)
        ]
        if rows:
            section += definitions(rows)
    if parser.epilog:
        examples = parser.epilog.removeprefix("examples:").strip("\n")
        section += literal("\n".join(line.removeprefix("  ") for line in examples.splitlines()))
    return section


def is_shown(action: argparse.Action) -> bool:
    return action.help != argparse.SUPPRESS and not isinstance(
        action, argparse._HelpAction | argparse._SubParsersAction
    )


def usage_of(parser: argparse.ArgumentParser) -> str:
    formatter = argparse.RawDescriptionHelpFormatter(parser.prog, width=_WIDTH)
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups, prefix="")
    return formatter.format_help().strip()


def spelled(action: argparse.Action) -> str:
    """An option with its value, as help spells it: `-n N, --max-messages N`."""
    formatter = argparse.HelpFormatter("", width=_WIDTH)
    return formatter._format_action_invocation(action)


def help_of(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return argparse.HelpFormatter(parser.prog)._expand_help(action) if action.help else ""


# --- as nodes of the page -----------------------------------------------------------------------


def text_of(text: str) -> list[nodes.Node]:
    """Paragraphs; a stretch with indented lines keeps its shape."""
    shown: list[nodes.Node] = []
    for paragraph in text.strip().split("\n\n"):
        if any(line.startswith("  ") for line in paragraph.splitlines()):
            shown.append(literal(paragraph))
        else:
            shown.append(nodes.paragraph("", " ".join(paragraph.split())))
    return shown


def literal(text: str) -> nodes.literal_block:
    return nodes.literal_block(text, text, language="text")


def definitions(rows: list[tuple[str, str]]) -> nodes.definition_list:
    shown = nodes.definition_list(classes=["arguments"])
    for name, text in rows:
        shown += nodes.definition_list_item(
            "",
            nodes.term("", "", nodes.literal(name, name)),
            nodes.definition("", nodes.paragraph("", text)),
        )
    return shown
