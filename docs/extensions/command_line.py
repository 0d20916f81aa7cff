"""``{command-line}``: the help of every command, from the parser itself."""

from __future__ import annotations

import argparse

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from nmf_zoo.interfaces.cli.parser import make_parser


def setup(app):
    """Called by Sphinx."""
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class CommandLine(SphinxDirective):
    """A section for each command: what it does, its usage, its arguments by group."""

    def run(self) -> list[nodes.Node]:
        return [section(name, parser) for name, parser in commands(make_parser()).items()]


def commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parser of each command."""
    (subparsers,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(subparsers.choices)


def section(name: str, parser: argparse.ArgumentParser) -> nodes.section:
    """One command."""
    title = f"nmf-zoo {name}"
    found = nodes.section(ids=[nodes.make_id(title)], names=[title])
    found += nodes.title(title, title)
    found += nodes.paragraph(text=parser.description)
    found += nodes.literal_block(text=usage(parser), language="text")
    for group in parser._action_groups:
        shown = [action for action in group._group_actions if not isinstance(action, argparse._HelpAction)]
        if shown:
            heading = "Arguments" if group is parser._positionals else (group.title or "").capitalize()
            found += nodes.rubric(heading, heading)
            if group.description:
                found += nodes.paragraph(text=group.description)
            found += arguments(parser, shown)
    return found


def usage(parser: argparse.ArgumentParser) -> str:
    """What can't be left out. The parser's own usage names all options, which are listed below it."""
    formatter = parser._get_formatter()
    needed = [action for action in parser._actions if action.required]
    written = [formatter._format_action_invocation(action).split(", ")[0] for action in needed]
    return " ".join([parser.prog, *written, "[options]"])


def arguments(parser: argparse.ArgumentParser, actions: list[argparse.Action]) -> nodes.definition_list:
    """What each option is written like, and what it says."""
    formatter = parser._get_formatter()
    listed = nodes.definition_list(classes=["options"])
    for action in actions:
        written = formatter._format_action_invocation(action)
        term = nodes.term("", "", nodes.literal(text=written))
        said = formatter._expand_help(action) if action.help else ""
        listed += nodes.definition_list_item("", term, nodes.definition("", nodes.paragraph(text=said)))
    return listed
