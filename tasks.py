"""Flows of the pipeline, for people and for CI: `invoke --list`."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from invoke.exceptions import Exit
from invoke.tasks import Task, task

from core import console
from core.cli.options import Common, use_config_file
from core.errors import FatalError, UsageError, fatal, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

    from invoke.context import Context

_HELP = {
    "torch-ref": "a name in the refs data (default: nightly); 'sample' tries everything on a small sample",
    "gpu-family": "GPU family, or 'cpu' (default: the ref's own, or this machine's)",
    "config-file": "data of your own (default: that of CI_CONFIG, or pytorch-build.toml)",
    "run-id": "run whose outputs are used (default: local)",
    "release-type": "whose policy and version form apply: ci, dev, nightly, prerelease, rehearsal, release",
    "store": "where run outputs live (default: out)",
    "python": "Python of the target environments, such as 3.12",
    "rocm-layout": "layout that build_rocm packages: split (the sample's default) or unsplit",
    "policy": "a file with your own limits, which go over those of the checks",
    "force": "do the work even if nothing has changed",
    "dry-run": "print the calls of nox, and make none",
    "verbose": "print everything that tools say, not only to logs",
}
# a changed tree's option is that of its build, and leads to a run of its own
_TREES = {
    "triton_dir": "triton",
    "pytorch_dir": "torch",
    "pytorch_audio_dir": "audio",
    "pytorch_vision_dir": "vision",
    "apex_dir": "apex",
}
_ROCM = ("rocm_run_id", "rocm_index_name", "rocm_find_links", "rocm_version")
_TREE_HELP = {
    **{
        name.replace("_", "-"): f"a changed tree of {project}: build and test it, in a run of its own"
        for name, project in _TREES.items()
    },
    "from-run-id": "with a changed tree: the run that lends triton, torch and ROCm (default: local)",
    **{
        name.replace("_", "-"): "with a changed tree: where ROCm comes from, as for a build" for name in _ROCM
    },
}
_EVENT_HELP = {
    "event": "plan as for this event and run every job of the plan: pull_request, push, schedule",
    "label": "a label of the pull request; repeatable",
    "changed": "a file that the pull request changes; repeatable",
    "fork": "a pull request from a fork",
}
_GRAPH_HELP = {
    "jobs": "jobs at a time",
    "keep-going": "after a failure, continue with what does not depend on it",
}
_INPUT = "an input of the dispatched workflow, NAME=VALUE, such as artifact_run_id=17; repeatable"
_RELEASE_HELP = {
    "type": "nightly, prerelease, dev, or rehearsal: of the sample, into out/rehearsal",
    "gpu-family": "GPU families (default: all of the release matrix)",
    "torch-ref": "torch refs, with commas between (default: those of the release matrix)",
    "python": "Pythons, with commas between (default: those of the release matrix)",
    "run-id": _HELP["run-id"],
    "store": _HELP["store"],
    "distribution-store": "where promoted wheels go (default: the release type's bucket)",
    "rocm-layout": _HELP["rocm-layout"],
    "input": _INPUT,
    "dry-run": "print the plan and the calls of nox, and make none",
    "verbose": _HELP["verbose"],
    **_GRAPH_HELP,
}


@contextmanager
def _flow(*, verbose: bool = False) -> Iterator[ModuleType]:
    """Load the flows; print an error as the front doors do, and end with its code."""
    from ci import flow

    console.SCREEN.verbose = verbose
    try:
        yield flow
    except (FatalError, KeyboardInterrupt) as problem:
        ended = fatal(problem)
        console.error(str(ended))
        raise Exit(code=ended.exit_code) from None


def _at_once(jobs: str) -> int:
    """Read --jobs, of which invoke itself would only show a traceback."""
    if not jobs.isdecimal() or not int(jobs):
        raise UsageError(f"--jobs {jobs!r} is no number of jobs.", hint="Give 1 or more.")
    return int(jobs)


@task(
    help={**_HELP, **_EVENT_HELP, **_GRAPH_HELP, **_TREE_HELP},
    iterable=["label", "changed"],
    auto_shortflags=False,  # which invoke deals out as the letters come: -h for --changed
)
def ci(
    _context: Context,
    torch_ref: str = "",
    gpu_family: str = "",
    config_file: str = "",
    run_id: str = "local",
    store: str = "out",
    release_type: str = "ci",
    python: str = "",
    rocm_layout: str = "",
    policy: str = "",
    force: bool = False,
    dry_run: bool = False,
    verbose: bool = False,
    event: str = "",
    label: list[str] | None = None,
    changed: list[str] | None = None,
    fork: bool = False,
    jobs: str = "1",
    keep_going: bool = False,
    triton_dir: str = "",
    pytorch_dir: str = "",
    pytorch_audio_dir: str = "",
    pytorch_vision_dir: str = "",
    apex_dir: str = "",
    from_run_id: str = "local",
    rocm_run_id: str = "",
    rocm_index_name: str = "",
    rocm_find_links: str = "",
    rocm_version: str = "",
) -> None:
    """Build, check, index and test the wheels of a torch ref or of changed trees; with --event, a plan's."""
    given = dict(locals())
    trees = {name: Path(given[one]).expanduser().resolve() for one, name in _TREES.items() if given[one]}
    rocm = tuple(f"--{one.replace('_', '-')}={given[one]}" for one in _ROCM if given[one])
    limits = str(Path(policy).expanduser().resolve()) if policy else ""
    with _flow(verbose=verbose) as flow:
        own = use_config_file(Path(config_file) if config_file else None)
        same = ("torch_ref", "gpu_family", "run_id", "store", "release_type", "force", "dry_run")
        common = Common(config_file=own, **{name: given[name] for name in same})
        if trees or rocm or from_run_id != "local":
            other = "--event" if event else "--rocm-layout" if rocm_layout else ""
            lent = flow.Changed(trees=trees, lender=from_run_id, rocm=rocm, policy=limits)
            flow.run_trees(common, lent, python=python, other=other)
        elif not event:
            flow.run_ref(common, python=python, rocm_layout=rocm_layout, policy=limits)
        elif policy:
            raise UsageError("--event runs a plan's jobs, which know no --policy.", hint="Leave one out.")
        else:
            words = [f"--event={event}", *(["--fork"] if fork else [])]
            words += [f"--label={one}" for one in label or []] + [f"--changed={one}" for one in changed or []]
            words += [f"--input=pytorch_python_versions={python}"] if python else []
            names = {"torch-ref": torch_ref, "gpu-family": gpu_family, "config-file": own}
            words += [f"--{name}={value}" for name, value in names.items() if value]
            target = flow.jobs.Target(
                run_id=run_id, store=store, config_file=str(own or ""), force=force, rocm_layout=rocm_layout
            )
            flow.run_plan(words, target, at_once=_at_once(jobs), keep_going=keep_going, dry_run=dry_run)


@task(help=_RELEASE_HELP, iterable=["input"], auto_shortflags=False)
def release(
    _context: Context,
    type: str = "dev",  # noqa: A002 - the option's name
    gpu_family: str = "",
    torch_ref: str = "",
    python: str = "",
    run_id: str = "local",
    store: str = "out",
    distribution_store: str = "",
    rocm_layout: str = "",
    input: list[str] | None = None,  # noqa: A002 - the option's name
    jobs: str = "1",
    keep_going: bool = False,
    dry_run: bool = False,
    verbose: bool = False,
) -> None:
    """Build, test and promote the release matrix of this platform, as the release workflows do."""
    with _flow(verbose=verbose) as flow:
        target = flow.jobs.Target(
            run_id=run_id, store=store, distribution_store=distribution_store, rocm_layout=rocm_layout
        )
        words = [*flow.release_words(type, gpu_family, torch_ref, python)]
        words += [f"--input={one}" for one in input or []]
        flow.run_plan(words, target, at_once=_at_once(jobs), keep_going=keep_going, dry_run=dry_run)


@task(
    auto_shortflags=False,
    help={
        "torch-ref": "torch ref",
        "gpu-family": "GPU family, for the index and the gfx targets of the image",
        "python": "Python of the image and the wheels",
        "push": "REGISTRY/REPO that the image is pushed to, too",
        "dry-run": _HELP["dry-run"],
    },
)
def nightly(
    _context: Context,
    torch_ref: str = "nightly",
    gpu_family: str = "gfx94X-dcgpu",
    python: str = "3.11",
    push: str = "",
    dry_run: bool = False,
) -> None:
    """Build the image with nightly ROCm, PyTorch inside it, and test it, as therock-nightly.yml does."""
    with _flow() as flow:
        flow.run_jobs(flow.jobs.nightly_jobs(torch_ref, gpu_family, python, push), dry_run=dry_run)


@task(
    auto_shortflags=False,
    help={
        "run-id": "run whose wheels are staged and promoted",
        "type": "release type whose buckets they go to",
        "gpu-family": "GPU families (a;b): all that the set must have",
        "torch-version": "torch's whole version (default: the only one that is staged)",
        "pythons": "Pythons that each family must have",
        "store": _HELP["store"],
        "distribution-store": "where promoted wheels go (default: the release type's bucket)",
        "dry-run": _HELP["dry-run"],
    },
)
def promote(
    _context: Context,
    run_id: str = "",  # with a default, or it would take the next word: --help, too
    type: str = "nightly",  # noqa: A002 - the option's name
    gpu_family: str = "",
    torch_version: str = "",
    pythons: str = "",
    store: str = "out",
    distribution_store: str = "",
    dry_run: bool = False,
) -> None:
    """Stage a run's wheels and promote them by their tests, as the last jobs of a release do."""
    with _flow() as flow:
        if not run_id:
            raise UsageError("No run is named, so there is nothing to promote.", hint="Name it: --run-id ID.")
        target = flow.jobs.Target(run_id=run_id, store=store, distribution_store=distribution_store)
        job = flow.jobs.promotion_job(target, type, gpu_family, torch_version, pythons)
        flow.run_jobs([job], dry_run=dry_run)


def unknown(argv: Sequence[str]) -> str:
    """Say what was meant where invoke is called with a flow or option that does not exist; else ""."""
    flows = {name: one for name, one in globals().items() if isinstance(one, Task)}
    program, first = Path(argv[0]), next(iter(argv[1:]), "-")
    if not {program.stem, program.parent.name} & {"inv", "invoke"} or first.startswith("-"):
        return ""
    if first not in flows:
        return f"error: There is no flow {first!r}. {nearest(first, flows)}"
    known = {f"--{name}" for name in flows[first].help}
    given = [word.partition("=")[0] for word in argv[2:] if word.startswith("--")]
    meant = {word: nearest(word, known) for word in given if word not in {*known, "--help"}}
    found = [
        f"error: invoke {first} has no {word}. {guess}" for word, guess in meant.items() if "Did" in guess
    ]
    return "\n".join(found)


if said := unknown(sys.argv):
    sys.exit(said)
