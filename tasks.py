"""Flows: chains of nox sessions for people and for CI. `invoke --list` names them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from invoke.exceptions import Exit
from invoke.tasks import task

from core import console, process, temporary
from core.cli.options import DEFAULT_STORE, RELEASE_TYPES, ROOT, Common, named_store, use_config_file
from core.errors import FatalError, MissingInputError, UsageError, as_fatal_error, nearest

if TYPE_CHECKING:
    from invoke.context import Context

TORCH_REF = "torch ref to build (default: nightly); sample tries everything in a minute"
GPU_FAMILY = "GPU family, or cpu (default: the ref's own, else this machine's)"
PYTHON = "Python to build for, such as 3.12 (default: this one)"
RUN_ID = "run that the outputs belong to (default: local)"
STORE = "folder or s3://BUCKET where run outputs live (default: out)"
DISTRIBUTION_STORE = "store that promoted wheels go to (default: the release type's bucket)"
INPUT = "NAME=VALUE: a further input of the workflow; repeatable"
POLICY = "file with your own limits for the checks of wheels (sizes, libraries, device code)"
CONFIG_FILE = "data of your own (default: CI_CONFIG, else pytorch-build.toml)"
FORCE = "do the work even if nothing has changed"
ROCM_LAYOUT = "layout of the ROCm packages: split or unsplit"
JOBS = "jobs that run at a time; those of one session and Python wait for each other"
KEEP_GOING = "after a failure, continue with the jobs that do not depend on it"
DRY_RUN = "print the calls of nox instead of making them"
VERBOSE = "print everything that tools say"

# A rehearsal stages its whole run, so the run is none that a developer has put other wheels into.
REHEARSAL_RUN = "local-rehearsal"

ROCM_LAYOUTS = ("split", "unsplit")
READER_GONE = 141  # as a shell tells a program that SIGPIPE ended

# The tasks import flows where they run them, so that `invoke --list` is fast.

# invoke would give each option the first free letter, and -h would be --changed instead of --help.
AUTO_SHORTFLAGS = False


@task(
    auto_shortflags=AUTO_SHORTFLAGS,
    help={
        "torch-ref": TORCH_REF,
        "gpu-family": GPU_FAMILY,
        "python": PYTHON,
        "rocm-layout": ROCM_LAYOUT,
        "policy": POLICY,
        "config-file": CONFIG_FILE,
        "run-id": RUN_ID,
        "store": STORE,
        "release-type": "release type whose version form applies (default: ci)",
        "force": FORCE,
        "dry-run": DRY_RUN,
        "verbose": VERBOSE,
    },
)
def ci(
    context: Context,
    torch_ref: str = "",
    gpu_family: str = "",
    python: str = "",
    rocm_layout: str = "",
    policy: str = "",
    config_file: str = "",
    run_id: str = "local",
    store: str = "out",
    release_type: str = "ci",
    force: bool = False,
    dry_run: bool = False,
    verbose: bool = False,
) -> None:
    """Build, check and test one torch ref. Changed trees: invoke change. A CI event: invoke event."""
    with reporting_errors(context, verbose=verbose):
        from ci import flow

        common = Common(
            torch_ref=torch_ref,
            gpu_family=gpu_family,
            config_file=use_config_file(optional_path(config_file)),
            run_id=run_id,
            store=store_location(store),
            release_type=release_type,
            force=force,
            dry_run=dry_run,
        )
        flow.run_ref(
            common, python=python or None, rocm_layout=layout_of(rocm_layout), policy=policy_file(policy)
        )


@task(
    auto_shortflags=AUTO_SHORTFLAGS,
    help={
        "triton-dir": "your tree of triton",
        "pytorch-dir": "your tree of PyTorch",
        "pytorch-audio-dir": "your tree of torchaudio",
        "pytorch-vision-dir": "your tree of torchvision",
        "apex-dir": "your tree of apex",
        "torch-ref": "torch ref that the trees belong to (default: nightly)",
        "gpu-family": GPU_FAMILY,
        "python": PYTHON,
        "from-run-id": "run that lends the wheels and the ROCm that you did not change (default: local)",
        "rocm-run-id": "run that ROCm's packages come from",
        "rocm-index-name": "release index of ROCm that its packages come from: stable, nightly",
        "rocm-find-links": "folder or page that ROCm's packages come from",
        "rocm-version": "version of ROCm's packages",
        "policy": POLICY,
        "config-file": CONFIG_FILE,
        "run-id": "run that the outputs belong to (default: local-TREE-HASH)",
        "store": STORE,
        "force": FORCE,
        "dry-run": DRY_RUN,
        "verbose": VERBOSE,
    },
)
def change(
    context: Context,
    triton_dir: str = "",
    pytorch_dir: str = "",
    pytorch_audio_dir: str = "",
    pytorch_vision_dir: str = "",
    apex_dir: str = "",
    torch_ref: str = "",
    gpu_family: str = "",
    python: str = "",
    from_run_id: str = "local",
    rocm_run_id: str = "",
    rocm_index_name: str = "",
    rocm_find_links: str = "",
    rocm_version: str = "",
    policy: str = "",
    config_file: str = "",
    run_id: str = "",
    store: str = "out",
    force: bool = False,
    dry_run: bool = False,
    verbose: bool = False,
) -> None:
    """Build and test source trees that you changed, in a run of their own."""
    folders = {
        "triton": triton_dir,
        "torch": pytorch_dir,
        "audio": pytorch_audio_dir,
        "vision": pytorch_vision_dir,
        "apex": apex_dir,
    }

    with reporting_errors(context, verbose=verbose):
        from ci.changed_trees import ChangedTrees, run_trees
        from ci.jobs import as_options

        trees = {component: Path(tree).expanduser().resolve() for component, tree in folders.items() if tree}
        if not trees:
            raise UsageError("No tree is named, so nothing has changed.", hint="Name one: --pytorch-dir DIR.")

        common = Common(
            torch_ref=torch_ref,
            gpu_family=gpu_family,
            config_file=use_config_file(optional_path(config_file)),
            store=store_location(store),
            force=force,
            dry_run=dry_run,
        )
        rocm_options = as_options(
            {
                "rocm-run-id": rocm_run_id,
                "rocm-index-name": rocm_index_name,
                "rocm-find-links": rocm_find_links,
                "rocm-version": rocm_version,
            }
        )
        changes = ChangedTrees(
            trees=trees, lending_run_id=from_run_id, rocm_options=rocm_options, policy=policy_file(policy)
        )
        run_trees(common, changes, run_id=run_id or None, python=python or None)


@task(
    auto_shortflags=AUTO_SHORTFLAGS,
    iterable=["label", "changed", "input"],
    help={
        "name": "event to plan for: pull_request, push, schedule or workflow_dispatch",
        "label": "LABEL: a label of the pull request; repeatable",
        "changed": "FILE: a file that the pull request changes; repeatable",
        "fork": "the pull request is from a fork",
        "input": INPUT,
        "torch-ref": "torch ref to build (default: what the event builds)",
        "gpu-family": "GPU family to build for (default: what the event builds for)",
        "python": "Python to build for (default: what the event builds for)",
        "rocm-layout": ROCM_LAYOUT,
        "config-file": CONFIG_FILE,
        "run-id": RUN_ID,
        "store": STORE,
        "jobs": JOBS,
        "keep-going": KEEP_GOING,
        "force": FORCE,
        "dry-run": DRY_RUN,
        "verbose": VERBOSE,
    },
)
def event(
    context: Context,
    name: str = "",
    label: list[str] | None = None,
    changed: list[str] | None = None,
    fork: bool = False,
    input: list[str] | None = None,  # noqa: A002 - the option's name
    torch_ref: str = "",
    gpu_family: str = "",
    python: str = "",
    rocm_layout: str = "",
    config_file: str = "",
    run_id: str = "local",
    store: str = "out",
    jobs: str = "1",
    keep_going: bool = False,
    force: bool = False,
    dry_run: bool = False,
    verbose: bool = False,
) -> None:
    """Run the jobs of a CI event that are for this platform. One step again: its line of --dry-run."""
    with reporting_errors(context, verbose=verbose):
        from ci import flow
        from ci.jobs import FlowSettings, as_options

        if not name:
            raise UsageError("No event is named.", hint="Name one: --name pull_request.")

        # The plan is made as the first job of CI makes it: nox -s configure.
        user_file = absolute_config_file(config_file)
        configure_options = [
            *as_options(
                {
                    "event": name,
                    "fork": fork,
                    "torch-ref": torch_ref,
                    "gpu-family": gpu_family,
                    "config-file": user_file,
                }
            )
        ]
        if python:
            configure_options.append(f"--input=pytorch_python_versions={python}")
        configure_options += repeated("--label", label)
        configure_options += repeated("--changed", changed)
        configure_options += repeated("--input", input)

        settings = FlowSettings(
            run_id=run_id,
            store=store_location(store),
            config_file=user_file,
            force=force,
            rocm_layout=layout_of(rocm_layout),
        )
        flow.run_plan(
            configure_options, settings, at_once=number_of_jobs(jobs), keep_going=keep_going, dry_run=dry_run
        )


@task(
    auto_shortflags=AUTO_SHORTFLAGS,
    iterable=["input"],
    help={
        "type": "release type: nightly, prerelease, dev, or rehearsal with the sample (default: dev)",
        "gpu-family": "GPU families, separated by commas or semicolons (default: the release matrix)",
        "torch-ref": "torch refs, separated by commas (default: the release matrix)",
        "python": "Pythons, separated by commas (default: the release matrix)",
        "rocm-layout": ROCM_LAYOUT,
        "config-file": CONFIG_FILE,
        "input": INPUT,
        "run-id": f"run that the outputs belong to (default: local, of a rehearsal {REHEARSAL_RUN})",
        "store": STORE,
        "distribution-store": DISTRIBUTION_STORE,
        "jobs": JOBS,
        "keep-going": KEEP_GOING,
        "force": FORCE,
        "dry-run": DRY_RUN,
        "verbose": VERBOSE,
    },
)
def release(
    context: Context,
    type: str = "dev",  # noqa: A002 - the option's name
    gpu_family: str = "",
    torch_ref: str = "",
    python: str = "",
    rocm_layout: str = "",
    config_file: str = "",
    input: list[str] | None = None,  # noqa: A002 - the option's name
    run_id: str = "",
    store: str = "out",
    distribution_store: str = "",
    jobs: str = "1",
    keep_going: bool = False,
    force: bool = False,
    dry_run: bool = False,
    verbose: bool = False,
) -> None:
    """Build, test and promote the release matrix of this platform."""
    with reporting_errors(context, verbose=verbose):
        from ci import flow
        from ci.jobs import FlowSettings

        user_file = absolute_config_file(config_file)
        configure_options = list(
            flow.configure_options_of_release(
                type, families=gpu_family, torch_refs=torch_ref, pythons=python, inputs=input or []
            )
        )
        if user_file is not None:
            configure_options.append(f"--config-file={user_file}")
        if not run_id:
            run_id = REHEARSAL_RUN if type == "rehearsal" else "local"
        settings = FlowSettings(
            run_id=run_id,
            store=store_location(store),
            config_file=user_file,
            force=force,
            distribution_store=named_store(distribution_store) or None,
            rocm_layout=layout_of(rocm_layout),
        )
        flow.run_plan(
            configure_options, settings, at_once=number_of_jobs(jobs), keep_going=keep_going, dry_run=dry_run
        )


@task(
    auto_shortflags=AUTO_SHORTFLAGS,
    help={
        "run-id": "run whose wheels are promoted",
        "type": "release type whose bucket they go to: nightly, prerelease, dev, release, rehearsal",
        "gpu-family": "GPU families whose wheels are promoted together, separated by semicolons",
        "torch-version": "torch's full version (default: the only one staged, or staged of --run-id)",
        "pythons": "Pythons that each family must have, separated by commas",
        "platform": "platform of the wheels (default: this one's are staged, all are promoted)",
        "config-file": CONFIG_FILE,
        "store": STORE,
        "distribution-store": DISTRIBUTION_STORE,
        "dry-run": DRY_RUN,
        "verbose": VERBOSE,
    },
)
def promote(
    context: Context,
    run_id: str = "",  # not positional, as invoke would take a following --help for its value
    type: str = "",  # noqa: A002 - the option's name
    platform: str = "",
    gpu_family: str = "",
    torch_version: str = "",
    pythons: str = "",
    config_file: str = "",
    store: str = "out",
    distribution_store: str = "",
    dry_run: bool = False,
    verbose: bool = False,
) -> None:
    """Stage a run that was tested, and promote the wheels that passed."""
    with reporting_errors(context, verbose=verbose):
        from ci import flow
        from ci.jobs import FlowSettings, promotion_job

        if not run_id:
            raise UsageError("No run is named, so there is nothing to promote.", hint="Name it: --run-id ID.")
        if type not in RELEASE_TYPES:
            raise UsageError(
                f"--type {type!r} is not a release type. {nearest(type, RELEASE_TYPES)}",
                hint="Name the type whose bucket the wheels go to.",
            )

        settings = FlowSettings(
            run_id=run_id,
            store=store_location(store),
            distribution_store=named_store(distribution_store) or None,
            config_file=absolute_config_file(config_file),
        )
        job = promotion_job(
            settings,
            release_type=type,
            platform=platform or None,
            gpu_family=gpu_family or None,
            torch_version=torch_version or None,
            pythons=pythons or None,
        )
        flow.run_jobs([job], dry_run=dry_run)


@task(
    auto_shortflags=AUTO_SHORTFLAGS,
    help={
        "torch-ref": "torch ref to build (default: nightly)",
        "gpu-family": "GPU family of the image and the wheels",
        "python": "Python of the image and the wheels",
        "push": "REGISTRY/REPOSITORY that the image is pushed to",
        "dry-run": DRY_RUN,
        "verbose": VERBOSE,
    },
)
def nightly(
    context: Context,
    torch_ref: str = "nightly",
    gpu_family: str = "gfx94X-dcgpu",
    python: str = "3.11",
    push: str = "",
    dry_run: bool = False,
    verbose: bool = False,
) -> None:
    """Build the nightly image, and PyTorch inside it."""
    with reporting_errors(context, verbose=verbose):
        from ci import flow
        from ci.jobs import nightly_jobs
        from core.families import family
        from pytorch_build.refs import torch_refs

        # Names are refused before an image is built for them.
        torch_refs.torch_ref(torch_ref)
        family(gpu_family)

        jobs = nightly_jobs(
            torch_ref=torch_ref, gpu_family=gpu_family, python=python, repository=push or None
        )
        flow.run_jobs(jobs, dry_run=dry_run)


@contextmanager
def reporting_errors(context: Context, *, verbose: bool = False) -> Iterator[None]:
    """Print an error of the flow inside as front doors do, and end with its exit code."""
    console.SCREEN.verbose = verbose
    console.accept_every_letter()
    process.prepare_variables()
    process.take_charge(grace_after_death=process.SESSION_GRACE_SECONDS, ends_with_parent=False)
    temporary.keep_journal(ROOT / ".cache")

    # invoke shows a traceback for every exception that is not its own.
    try:
        # nox's options follow two dashes. invoke would drop them, and begin a run of its defaults.
        if context.remainder:
            raise UsageError(
                f"A flow takes its options directly, and nothing after --: {context.remainder}",
                hint="Leave the two dashes out, as in invoke ci --torch-ref sample.",
            )
        with process.stopped_by_signals():
            yield
    except BrokenPipeError:
        # Whoever read the output has gone, as `head` does. Python would complain once more at its own end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise Exit(code=READER_GONE) from None
    except (FatalError, ModuleNotFoundError, KeyboardInterrupt) as problem:
        error = as_fatal_error(problem)
        console.error(str(error))
        raise Exit(code=error.exit_code) from None


def repeated(option: str, values: list[str] | None) -> list[str]:
    """Return an option once for each of its values. invoke gives None where there is none."""
    return [f"{option}={value}" for value in values or []]


def number_of_jobs(text: str) -> int:
    """Return the number of an option --jobs. invoke would answer another text with a traceback."""
    if not text.isdecimal() or int(text) == 0:
        raise UsageError(f"--jobs {text!r} is not a number of jobs.", hint="Give 1 or more.")
    return int(text)


def policy_file(path: str) -> str | None:
    """Return a user's policy from this folder, as nox runs in another one; None where no option gave one."""
    if not path:
        return None
    policy = Path(path).expanduser().resolve()
    if not policy.is_file():
        raise MissingInputError(f"{policy} does not exist.", hint="Correct --policy.")
    return str(policy)


def layout_of(text: str) -> str | None:
    """Return the layout of an option --rocm-layout; None where no option gave one."""
    if text and text not in ROCM_LAYOUTS:
        raise UsageError(f"--rocm-layout {text!r} is not a layout. {nearest(text, ROCM_LAYOUTS)}")
    return text or None


def absolute_config_file(path: str) -> str | None:
    """Use a file of the user's from now on; return its whole path, None where none is named."""
    config_file = use_config_file(optional_path(path))
    return None if config_file is None else str(config_file)


def store_location(store: str) -> str:
    """Return the store of run outputs; a relative one, but for the default, begins where the user stands."""
    return store if store == DEFAULT_STORE else named_store(store)


def optional_path(path: str) -> Path | None:
    """Return the path of an option; None where the option was not given."""
    return Path(path) if path else None
