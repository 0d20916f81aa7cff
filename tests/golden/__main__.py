"""Compare golden results of two commits, or of the working tree with a commit or with the kept digests.

``python -m tests.golden --base REV`` makes the results of REV and of the working tree, and says of each whether they
have the same bits; ``--head REV`` takes another commit in the working tree's place. Without ``--base`` the working tree
is held against ``digests.json``, which ``--keep`` rewrites for this line of Python. The exit status is 1 where results
differ, are gone, refused or failed that weren't before.

A comparison makes some 3,000 calls, about two minutes on each side with compiled kernels; the results of a commit are
kept in ``build/golden``. Models of a commit are those of its own contract tests, under the names that it has for them.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Mapping

from tests.golden import kept, recipes, trees
from tests.golden.compare import Row, compare
from tests.golden.make import Outcome


def main() -> int:
    arguments = _parser().parse_args()
    warnings.simplefilter("ignore")
    if arguments.keep and (arguments.base or arguments.head or arguments.only):
        print("--keep keeps everything of the working tree: leave out --base, --head and --only", file=sys.stderr)
        return 2
    head = trees.results_of(arguments.head, arguments.only)
    if arguments.keep:
        kept.keep(_kept_cases(head))
        return 0
    if arguments.base:
        base = _renamed(trees.results_of(arguments.base, arguments.only), arguments.renamed)
        return report(compare(base, head), arguments.all)
    return against_digests(head)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__.splitlines()[0])
    parser.add_argument("--base", metavar="REV", help="the commit to compare with; else the kept digests")
    parser.add_argument("--head", metavar="REV", help="a commit in the place of the working tree")
    parser.add_argument("--only", metavar="NAME", nargs="+", default=[], help="cases whose name contains one of these")
    parser.add_argument(
        "--renamed", metavar="OLD=NEW", nargs="+", default=[], help="words in the names of the base's cases"
    )
    parser.add_argument("--all", action="store_true", help="show every case, not only those that differ")
    parser.add_argument("--keep", action="store_true", help="rewrite digests.json from the working tree")
    return parser


def _renamed(base: Mapping[str, Outcome], words: list[str]) -> dict[str, Outcome]:
    renamed = dict(base)
    for old, _, new in (word.partition("=") for word in words):
        renamed = {name.replace(old, new): found for name, found in renamed.items()}
    return renamed


def _kept_cases(made: Mapping[str, Outcome]) -> dict[str, Outcome]:
    names = {name for name, _ in recipes.cases(recipes.KEPT)}
    return {name: found for name, found in made.items() if name in names}


def report(rows: list[Row], everything: bool) -> int:
    """A table of what differs, and how many are the same; the exit status."""
    for row in rows:
        if everything or not row.is_dull:
            print(f"{row.name:60}  {row.verdict}{f': {row.details}' if row.details else ''}")
    counts = Counter(row.verdict for row in rows)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()) or "no case has such a name")
    return int(any(row.is_bad for row in rows))


def against_digests(head: Mapping[str, Outcome]) -> int:
    known, made = kept.load(), _kept_cases(head)
    if not kept.holds_here(known):
        print("the kept digests are of another processor or other versions; python -m tests.golden --base REV compares")
        return 2
    found = kept.compare_digests(known, made)
    for name, verdict in found.items():
        print(f"{name:60}  {verdict}")
    print(f"{len(kept.digests_of(made)) - len(found)} same bits, {len(found)} not as kept")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
