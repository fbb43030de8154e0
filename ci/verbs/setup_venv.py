"""`setup-venv`: a virtual environment with our packages, from a run, an index or a flat page."""

import argparse
from dataclasses import replace
from pathlib import Path

from ci import install
from core import console
from core.cli import options
from core.errors import UsageError
from core.packages import find_group
from core.packages.sources import PackageSource, add_package_source, source_options
from core.run.job_files import job_files
from rocm_packaging.origin import named_source

WAIT = 600.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add = parser.add_argument
    add("venv", type=Path, metavar="VENV", help="the environment's folder")
    what = "requirements, separated by spaces; of a run's distributions a name alone means its version"
    add("--packages", action="append", required=True, metavar="NAMES", help=what)
    options.add_from_run(parser, "a run, or 'local' for what was built")
    group = add_package_source(parser, "where our packages come from, unless from a run", "")
    group.add_argument("--find-links-url", dest="find_links", action="append", help=argparse.SUPPRESS)
    options.add_group(parser)
    options.add_platform(parser)
    what = "index of what our packages require (default: the store's python-deps, else your own indexes)"
    add("--deps-index-url", default="", metavar="URL", help=what)
    what = f"how long to wait for an index that lags behind (default: {WAIT:.0f})"
    add("--wait", type=float, default=WAIT, metavar="SECONDS", help=what)
    add("--pre", action="store_true", help="allow pre-releases that nothing names")
    add("--clean", action="store_true", help="make the environment anew")
    what = "let the job's later steps run in the environment"
    add("--activate-in-future-github-actions-steps", dest="activate", action="store_true", help=what)
    add("--backend", "--installer", choices=("uv", "pip"), default="uv", help="what installs (default: uv)")
    add("--pip-cache-dir", type=Path, metavar="DIR", help="the installer's cache")
    parser.epilog = "--python takes a version, such as 3.12, or an interpreter's path, here."


def run(arguments: argparse.Namespace) -> None:
    """Make the environment, and install into it."""
    requirements = install.parse_requirements(arguments.packages)
    common = options.common_from(arguments)
    how = {"python": str(common.python or ""), "clean": arguments.clean}
    # what cannot be found is reported before anything is made
    base = install.planned(arguments.venv, **how)
    source, family = _source(common, arguments)
    wanted, newest = install.wanted_of(common, source, requirements, family, base), source.group is None
    wanted = replace(
        wanted,
        requirements=tuple(install.pinned(one, wanted.offers, newest=newest) for one in requirements),
        pre=arguments.pre,
        backend=arguments.backend,
        cache_dir=arguments.pip_cache_dir,
    )
    with install.others_index(wanted.source.group, arguments.deps_index_url) as theirs:
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


def _show(chosen: install.Chosen) -> None:
    rows = [(one.distribution, one.version, "ours", one.sha256[:12]) for one in chosen.ours]
    rows += [(one.name, one.version, "", one.files[0].sha256[:12]) for one in chosen.theirs]
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
    group = find_group(common, arguments.artifact_group or common.artifact_group)
    return PackageSource(group=group), common.gpu_family or group.family
