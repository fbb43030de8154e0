"""Draw promises of the documentation, or check that each still stands and that its tests exist.

`python -m tests.promises --draw 100 --seed COMMIT` prints the drawn ones, to be broken one by one;
`python -m tests.promises --check` is what a unit test runs, too.
"""

import argparse
import sys
from collections.abc import Sequence

from core import console
from tests.promises.data import drawn_promises, find_problems, load_promises


def main(words: Sequence[str]) -> int:
    """Print drawn promises, or problems; fail where there are problems."""
    parser = argparse.ArgumentParser(prog="python -m tests.promises", description=__doc__)
    parser.add_argument("--draw", type=int, default=0, metavar="COUNT", help="print so many promises")
    parser.add_argument("--seed", default="", help="what the draw follows from: the hash of a commit")
    parser.add_argument("--check", action="store_true", help="compare the data with pages and tests")
    arguments = parser.parse_args(words)

    promises = load_promises()
    for promise in drawn_promises(promises, seed=arguments.seed, count=arguments.draw):
        console.result(f"{promise.page}: {promise.sentence}")
        for test in promise.tests:
            console.result(f"    {test}")

    problems = list(find_problems(promises)) if arguments.check else []
    for problem in problems:
        console.say(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
