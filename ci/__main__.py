"""The front door: `python -m ci VERB`."""

import sys

from core.cli import run_program, verbs_of

VERBS = verbs_of(
    "ci",
    "configure cells plan-job fetch-artifacts upload index provenance verify setup-venv "
    "mirror-deps stage promote retention lambda-zip "
    "build-image in-image notify clean bisect report",
)

if __name__ == "__main__":
    sys.exit(run_program("ci", "Plans, uploads, indexes and reports.", VERBS))
