"""Draw sentences of the documentation, or check that the listed ones stand and are held.

`python -m tests.promises --draw 100 --seed COMMIT` prints sentences of README.md and docs/. Break the product
so that each that promises behaviour is no longer true, and see what notices; promises.toml has the last draw.
`python -m tests.promises --check` is what a gate runs, too.
"""

import argparse
import sys
from collections.abc import Sequence

from core import console
from tests.promises.data import drawn_promises, find_problems, load_promises, read_sentences


def main(command_line: Sequence[str]) -> int:
    """Print drawn promises, or problems; fail where there are problems."""
    parser = argparse.ArgumentParser(prog="python -m tests.promises", description=__doc__)
    parser.add_argument(
        "--draw",
        type=int,
        default=0,
        metavar="COUNT",
        help="print so many sentences",
    )
    parser.add_argument(
        "--seed",
        default="",
        help="what the draw follows from: the hash of a commit",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="compare the data with pages and tests",
    )
    arguments = parser.parse_args(command_line)

    if arguments.draw:
        promises = drawn_promises(read_sentences(), seed=arguments.seed, count=arguments.draw)
        for promise in promises:
            console.result(f"{promise.page}: {promise.sentence}")

    problems = list(find_problems(load_promises())) if arguments.check else []
    for problem in problems:
        console.say(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
