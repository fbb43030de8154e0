"""The front door: `python -m ci VERB`."""

from __future__ import annotations

import sys

from core.cli import Verb, main

VERBS = (
    Verb(
        "configure",
        "ci.verbs.configure",
        "an event -> the plan of the run: what is built and tested, and why",
    ),
    Verb(
        "find-rocm", "ci.verbs.find_rocm", "a plan -> where its ROCm comes from: an artifact run, or an index"
    ),
    Verb("cells", "ci.verbs.cells", "print the cells of a matrix as JSON, for the noxfile and for CI"),
    Verb(
        "fetch-artifacts",
        "ci.verbs.fetch_artifacts",
        "a run's artifacts of a GPU family -> artifact directory",
    ),
    Verb("upload", "ci.verbs.upload", "publish a run: wheels, sidecars, records and pages into a store"),
    Verb("index", "ci.verbs.index", "write a run's pages: flat for --find-links, simple/ for --index-url"),
    Verb("provenance", "ci.verbs.provenance", "how each wheel was made, and the run's bill of materials"),
    Verb(
        "verify", "ci.verbs.verify", "is a wheel what its record and statement say; which commits is it from"
    ),
    Verb(
        "setup-venv",
        "ci.verbs.setup_venv",
        "make a virtual environment with our packages: of a run, an index, a page",
    ),
    Verb("fetch-wheels", "ci.verbs.fetch_wheels", "a run's wheels and sdists -> a folder for --find-links"),
    Verb(
        "mirror-deps",
        "ci.verbs.mirror_deps",
        "what our wheels require of others -> the dependencies-only index",
    ),
    Verb(
        "stage", "ci.verbs.stage", "put a run's wheels up for testing in the distribution bucket: v2-staging/"
    ),
    Verb("promote", "ci.verbs.promote", "a set of staged wheels, by its tests, into the release index: v2/"),
    Verb(
        "check-indexes", "ci.verbs.check_indexes", "do pages that stay list what is there; nothing is written"
    ),
    Verb("maintenance", "ci.verbs.maintenance", "the stores that are kept in order, and by which roles"),
    Verb(
        "retention", "ci.verbs.retention", "delete the runs and staged versions that the policy says may go"
    ),
    Verb(
        "lambda-zip",
        "ci.verbs.lambda_zip",
        "the zip of the function that writes pages behind a bucket's events",
    ),
    Verb(
        "build-image",
        "ci.verbs.build_image",
        "a container image by docker, podman or buildah; push it, save it",
    ),
    Verb("in-image", "ci.verbs.in_image", "sessions inside a container image, with this checkout mounted"),
    Verb(
        "notify",
        "ci.verbs.notify",
        "how a run ended, by its summary, and by Slack and e-mail where configured",
    ),
    Verb(
        "drift", "ci.verbs.drift", "what our data says otherwise than a checkout of TheRock, by file and key"
    ),
    Verb(
        "report",
        "ci.verbs.report",
        "a run's records -> one HTML page: matrix, times, wheels, builds, tests, sources",
    ),
)

if __name__ == "__main__":
    sys.exit(main("ci", "Plans, uploads, indexes and reports.", VERBS))
