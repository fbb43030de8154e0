"""The front door: `python -m ci VERB`."""

from __future__ import annotations

import sys

from core.cli import main, verbs_of

VERBS = verbs_of(
    "ci",
    {
        "configure": "an event -> the plan of the run: what is built and tested, and why",
        "find-rocm": "a plan -> where its ROCm comes from: an artifact run, or an index",
        "cells": "print the cells of a matrix as JSON, for the noxfile and for CI",
        "fetch-artifacts": "a run's artifacts of a GPU family -> artifact directory",
        "upload": "publish a run: wheels, sidecars, records and pages into a store",
        "index": "write a run's pages: flat for --find-links, simple/ for --index-url",
        "provenance": "how each wheel was made, and the run's bill of materials",
        "verify": "is a wheel what its record and statement say; which commits is it from",
        "setup-venv": "make a virtual environment with our packages: of a run, an index, a page",
        "fetch-wheels": "a run's wheels and sdists -> a folder for --find-links",
        "mirror-deps": "what our wheels require of others -> the dependencies-only index",
        "stage": "put a run's wheels up for testing in the distribution bucket: v2-staging/",
        "promote": "a set of staged wheels, by its tests, into the release index: v2/",
        "check-indexes": "do pages that stay list what is there; nothing is written",
        "maintenance": "the stores that are kept in order, and by which roles",
        "retention": "delete the runs and staged versions that the policy says may go",
        "lambda-zip": "the zip of the function that writes pages behind a bucket's events",
        "build-image": "a container image by docker, podman or buildah; push it, save it",
        "in-image": "sessions inside a container image, with this checkout mounted",
        "notify": "how a run ended, by its summary, and by Slack and e-mail where configured",
        "drift": "what our data says otherwise than a checkout of TheRock, by file and key",
        "history": "the last runs of a store -> one HTML page: states, since when, times, sizes, tests",
        "clean": "what stages made in this checkout, its size and cost; --yes frees it",
        "bisect": "which run broke a command: the first bad one, and what differs in it",
        "report": "a run's records -> one HTML page: matrix, times, wheels, builds, tests, sources",
    },
)

if __name__ == "__main__":
    sys.exit(main("ci", "Plans, uploads, indexes and reports.", VERBS))
