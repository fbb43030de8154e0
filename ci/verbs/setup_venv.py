"""`setup-venv`: a virtual environment with our packages, from a run, an index or a flat page.

With ``--download``: the files of a run in a folder, for machines without any index.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from ci import install
from core import console
from core.cli import options
from core.env import Interpreter
from core.errors import UsageError
from core.modes import declared_options, refuse_options
from core.packages.groups import find_group
from core.packages.options import add_package_source, source_options
from core.packages.package_source import PackageSource
from core.run.job_files import job_files
from rocm_packaging.origin import named_source

DEFAULT_WAIT = 600.0
"""How many seconds an index may lag behind a run's records."""

COMMON_OPTIONS = (*options.GROUP_OPTIONS, *options.RUN_OPTIONS, "python", "dry-run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    venv = parser.add_argument("venv", nargs="?", type=Path, metavar="VENV", help="the environment's folder")
    parser.add_argument(
        "--packages",
        action="append",
        default=[],
        metavar="NAMES",
        help="requirements, separated by spaces; of a run's distributions a name alone means its version",
    )
    options.add_from_run(parser, "a run, or 'local' for what was built")
    options.add_group(parser)
    options.add_platform(parser)
    source_group = add_package_source(parser, "where our packages come from, unless from a run", "")
    source_group.add_argument("--find-links-url", dest="find_links", action="append", help=argparse.SUPPRESS)
    _add_environment_options(parser)
    _add_download_options(parser)

    environment_options = declared_options(
        parser,
        "--find-links",
        "--index-url",
        "--index-name",
        "--index-subdir",
        "--deps-index-url",
        "--wait",
        "--pre",
        "--clean",
        "--pip-cache-dir",
        "--activate-in-future-github-actions-steps",
    )
    parser.set_defaults(
        venv_options=(venv, *environment_options),
        download_options=declared_options(parser, "--with-dependencies", "--jobs"),
    )
    parser.epilog = "--python takes a version, such as 3.12, or an interpreter's path, here."


def _add_environment_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("an environment")
    group.add_argument(
        "--deps-index-url",
        default="",
        metavar="URL",
        help="index of what our packages require (default: the store's python-deps, else your own indexes)",
    )
    group.add_argument(
        "--wait",
        type=float,
        default=DEFAULT_WAIT,
        metavar="SECONDS",
        help=f"how long to wait for an index that lags behind (default: {DEFAULT_WAIT:.0f})",
    )
    group.add_argument("--pre", action="store_true", help="allow pre-releases that nothing names")
    group.add_argument("--clean", action="store_true", help="make the environment anew")
    group.add_argument(
        "--activate-in-future-github-actions-steps",
        dest="activate",
        action="store_true",
        help="let the job's later steps run in the environment",
    )
    group.add_argument("--pip-cache-dir", type=Path, metavar="DIR", help="the installer's cache")


def _add_download_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("files instead of an environment")
    group.add_argument(
        "--download",
        type=Path,
        metavar="DIR",
        help="fetch a run's wheels and sdists into this folder, all of them where no packages are named",
    )
    group.add_argument(
        "--with-dependencies",
        action="store_true",
        help="also what they require of others, from the store's index of dependencies (mirror_deps)",
    )
    group.add_argument("--jobs", type=int, default=8, metavar="N", help="files at once (default: 8)")


def run(arguments: argparse.Namespace) -> None:
    """Make the environment, and install into it; or fetch files of a run."""
    if arguments.download is not None:
        refuse_options(arguments, arguments.venv_options, mode="with --download")
        from ci.install.download import download

        download(
            options.common_from(arguments),
            arguments.download,
            arguments.artifact_group or None,
            arguments.packages,
            with_dependencies=arguments.with_dependencies,
            jobs=arguments.jobs,
        )
        return

    refuse_options(arguments, arguments.download_options, mode="without --download")
    if arguments.venv is None or not arguments.packages:
        raise UsageError(
            "An environment has a folder and packages.",
            hint="Give both: VENV --packages NAMES. Or fetch a run's files: --download DIR.",
        )
    common = options.common_from(arguments)
    python = None if common.python is None else str(common.python)
    # What cannot be found is reported before anything is made.
    base_python = install.planned(arguments.venv, python=python, clean=arguments.clean)
    request = _request(common, arguments, base_python)
    with install.opened_dependency_index(
        request.source.stored, url=arguments.deps_index_url
    ) as dependency_index:
        with console.group("Resolving"):
            chosen = install.choose(request, dependency_index, base_python)
        if common.dry_run:
            console.say(f"Would make {arguments.venv.absolute()} with Python {base_python.version}.")
            _show(chosen)
            return
        with (
            request.source.opened(chosen.our_files, wait=arguments.wait) as our_sources,
            install.environment(arguments.venv, python=python, clean=arguments.clean) as target,
        ):
            install.install_chosen(target, request, chosen, our_sources, dependency_index)
            _show(chosen)

    console.done(f"setup_venv: {target.prefix} (Python {target.version})")
    if arguments.activate:
        step_files = job_files(options.environment())
        step_files.add_path(target.scripts)
        step_files.set_variable("VIRTUAL_ENV", str(target.prefix))
    else:
        console.say(f"Use it: . {target.scripts / 'activate'}")


def _request(
    common: options.Common,
    arguments: argparse.Namespace,
    python: Interpreter,
) -> install.InstallRequest:
    """Return what is to be installed, with ours in the versions of the source."""
    requirements = install.parse_requirements(arguments.packages)
    source, family = _source(common, arguments)
    request = install.request_packages(common, source, requirements, family, python)
    # A run has one version of each, where an index has many.
    is_index = source.stored is None
    pins = [
        install.pin_requirement(requirement, request.candidates, takes_newest=is_index)
        for requirement in requirements
    ]
    return replace(
        request,
        requirements=tuple(pins),
        pre=arguments.pre,
        cache_dir=arguments.pip_cache_dir,
    )


def _source(common: options.Common, arguments: argparse.Namespace) -> tuple[PackageSource, str]:
    """Return the source, and the GPU family that it is queried for."""
    named_options = source_options(arguments)
    names_run = options.is_given(arguments, "run_id")
    if names_run == named_options.named:
        count = "two are named" if names_run else "none is named"
        raise UsageError(
            f"Packages come from one source, and {count}.",
            hint="Give --from-run-id ID, or --find-links URL|DIR, --index-url URL or --index-name NAME.",
        )
    family = common.gpu_family or named_options.index_subdir
    source = named_source(named_options, common, family)
    if source is not None:
        return source, family
    group = find_group(common, arguments.artifact_group or common.artifact_group or None)
    return group, common.gpu_family or group.family


def _show(chosen: install.ChosenPackages) -> None:
    rows = [
        (file.distribution, file.version, "ours", file.require_digest()[:12]) for file in chosen.our_files
    ]
    rows += [
        (package.name, package.version, "", package.files[0].require_digest()[:12])
        for package in chosen.other_packages
    ]
    console.table(("distribution", "version", "whose", "sha256"), rows)
