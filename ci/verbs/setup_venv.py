"""`setup-venv`: a virtual environment with our packages, from a run, an index or a flat page.

With ``--download``: the files of a run in a folder, for machines without any index.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from ci import install
from core import console
from core.cli import options
from core.errors import UsageError
from core.modes import declared_options, refuse_options
from core.packages.groups import find_group
from core.packages.options import add_package_source, source_options
from core.packages.package_source import PackageSource
from core.run.job_files import job_files
from rocm_packaging.origin import named_source

WAIT = 600.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add = parser.add_argument
    venv = add("venv", nargs="?", type=Path, metavar="VENV", help="the environment's folder")
    what = "requirements, separated by spaces; of a run's distributions a name alone means its version"
    add("--packages", action="append", default=[], metavar="NAMES", help=what)
    options.add_from_run(parser, "a run, or 'local' for what was built")
    options.add_group(parser)
    options.add_platform(parser)

    group = add_package_source(parser, "where our packages come from, unless from a run", "")
    group.add_argument("--find-links-url", dest="find_links", action="append", help=argparse.SUPPRESS)

    add = parser.add_argument_group("an environment").add_argument
    what = "index of what our packages require (default: the store's python-deps, else your own indexes)"
    add("--deps-index-url", default="", metavar="URL", help=what)
    what = f"how long to wait for an index that lags behind (default: {WAIT:.0f})"
    add("--wait", type=float, default=WAIT, metavar="SECONDS", help=what)
    add("--pre", action="store_true", help="allow pre-releases that nothing names")
    add("--clean", action="store_true", help="make the environment anew")
    what = "let the job's later steps run in the environment"
    add("--activate-in-future-github-actions-steps", dest="activate", action="store_true", help=what)
    add("--pip-cache-dir", type=Path, metavar="DIR", help="the installer's cache")

    add = parser.add_argument_group("files instead of an environment").add_argument
    what = "fetch a run's wheels and sdists into this folder, all of them where no packages are named"
    add("--download", type=Path, metavar="DIR", help=what)
    what = "also what they require of others, from the store's index of dependencies (mirror_deps)"
    add("--with-dependencies", action="store_true", help=what)
    add("--jobs", type=int, default=8, metavar="N", help="files at once (default: 8)")

    source = ("--find-links", "--index-url", "--index-name", "--index-subdir")
    installation = ("--deps-index-url", "--wait", "--pre", "--clean", "--pip-cache-dir")
    activation = "--activate-in-future-github-actions-steps"
    parser.set_defaults(
        venv_options=(venv, *declared_options(parser, *source, *installation, activation)),
        download_options=declared_options(parser, "--with-dependencies", "--jobs"),
    )
    parser.epilog = "--python takes a version, such as 3.12, or an interpreter's path, here."


def run(arguments: argparse.Namespace) -> None:
    """Make the environment, and install into it; or fetch files of a run."""
    if arguments.download is not None:
        refuse_options(arguments, arguments.venv_options, mode="with --download")
        _download(arguments)
        return

    refuse_options(arguments, arguments.download_options, mode="without --download")
    if arguments.venv is None or not arguments.packages:
        raise UsageError(
            "An environment has a folder and packages.",
            hint="Give both: VENV --packages NAMES. Or fetch a run's files: --download DIR.",
        )
    requirements = install.parse_requirements(arguments.packages)
    common = options.common_from(arguments)
    how = {"python": str(common.python or ""), "clean": arguments.clean}
    # what cannot be found is reported before anything is made
    base = install.planned(arguments.venv, **how)
    source, family = _source(common, arguments)
    wanted = install.wanted_of(common, source, requirements, family, base)
    # A run has one version of each, where an index has many.
    newest = source.stored is None
    wanted = replace(
        wanted,
        requirements=tuple(install.pinned(one, wanted.offers, newest=newest) for one in requirements),
        pre=arguments.pre,
        cache_dir=arguments.pip_cache_dir,
    )
    with install.others_index(source.stored, arguments.deps_index_url) as theirs:
        with console.group("Resolving"):
            chosen = install.choose(wanted, theirs, base)
        if common.dry_run:
            console.say(f"Would make {arguments.venv.absolute()} with Python {base.version}.")
            _show(chosen)
            return
        with (
            wanted.source.opened(chosen.ours, wait=arguments.wait) as ours,
            install.environment(arguments.venv, **how) as target,
        ):
            install.install_chosen(target, wanted, chosen, ours, theirs)
            _show(chosen)
    console.done(f"setup_venv: {target.prefix} (Python {target.version})")
    if arguments.activate:
        step = job_files(options.environment())
        step.add_path(target.scripts)
        step.set_variable("VIRTUAL_ENV", str(target.prefix))
    else:
        console.say(f"Use it: . {target.scripts / 'activate'}")


def _download(arguments: argparse.Namespace) -> None:
    """Fetch files of a run into a folder."""
    from ci.install.download import DownloadOptions, download

    download_options = DownloadOptions(
        folder=arguments.download,
        artifact_group=arguments.artifact_group or None,
        packages=arguments.packages,
        with_dependencies=arguments.with_dependencies,
        jobs=arguments.jobs,
    )
    download(options.common_from(arguments), download_options)


def _show(chosen: install.Chosen) -> None:
    rows = [(one.distribution, one.version, "ours", one.require_digest()[:12]) for one in chosen.ours]
    rows += [(one.name, one.version, "", one.files[0].require_digest()[:12]) for one in chosen.theirs]
    console.table(("distribution", "version", "whose", "sha256"), rows)


def _source(common: options.Common, arguments: argparse.Namespace) -> tuple[PackageSource, str]:
    """Return the source, and the GPU family that it is queried for."""
    given = source_options(arguments)
    if options.is_given(arguments, "run_id") == given.named:
        raise UsageError(
            "Packages come from one source, and " + ("two are named." if given.named else "none is named."),
            hint="Give --from-run-id ID, or --find-links URL|DIR, --index-url URL or --index-name NAME.",
        )
    family = common.gpu_family or given.index_subdir
    named = named_source(given, common, family)
    if named is not None:
        return named, family
    group = find_group(common, arguments.artifact_group or common.artifact_group or None)
    return group, common.gpu_family or group.family
