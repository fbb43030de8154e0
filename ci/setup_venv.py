"""`setup-venv`: a virtual environment with our packages, from a run, an index or a flat page."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urljoin

from packaging.utils import canonicalize_name

from ci.clients.device_packages import devices_for, index_requirements
from ci.clients.page_waiting import fetch, links
from ci.clients.run_install import Wanted, beside_page, choose, install, run_place
from ci.clients.run_wheels import Offer, find_group, fits, offered, parse_requirements, pinned
from ci.clients.venvs import environment, planned
from ci.mirror_data import mirror
from core import console, distributions, installer, wheels
from core.errors import MissingInputError
from core.installer import Install, Sources, configured
from core.job_files import job_files
from core.options import add_group, add_platform, common_from
from core.options import environment as variables
from core.outputs import group_name
from core.target_locks import locked_call
from rocm_packaging.layouts import LIBRARIES, sdk_target
from rocm_packaging.sources import release_index_url

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from packaging.requirements import Requirement

    from ci.clients.device_packages import Devices
    from ci.clients.run_install import Chosen, Place
    from core.interpreters import Interpreter
    from core.options import Common

WAIT = 600.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument("venv", type=Path, metavar="VENV", help="the environment's folder")
    parser.add_argument(
        "--packages",
        action="append",
        required=True,
        metavar="NAMES",
        help="requirements, separated by spaces; of a run's distributions a name alone means its version",
    )
    _add_sources(parser)
    parser.add_argument("--pre", action="store_true", help="allow pre-releases that nothing names")
    parser.add_argument("--clean", action="store_true", help="make the environment anew")
    parser.add_argument(
        "--activate-in-future-github-actions-steps",
        dest="activate",
        action="store_true",
        help="let the job's later steps run in the environment",
    )
    parser.add_argument(
        "--backend", "--installer", choices=("uv", "pip"), default="uv", help="what installs (default: uv)"
    )
    parser.add_argument("--pip-cache-dir", type=Path, metavar="DIR", help="the installer's cache")
    parser.epilog = "--python takes a version, such as 3.12, or an interpreter's path, here."


def _add_sources(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where our packages come from (one of the first four)")
    which = group.add_mutually_exclusive_group(required=True)
    which.add_argument("--from-run-id", default="", metavar="ID", help="a run, or 'local' for what was built")
    which.add_argument("--index-name", default="", metavar="NAME", help="a release index: nightly, dev, …")
    which.add_argument("--index-url", default="", metavar="URL", help="an index, and no other one")
    which.add_argument("--find-links-url", default="", metavar="URL", help="a flat page of wheels")
    group.add_argument(
        "--index-subdir", default="", metavar="DIR", help="folder of the index: the GPU family"
    )
    add_group(group)
    add_platform(group)
    group.add_argument(
        "--deps-index-url",
        default="",
        metavar="URL",
        help="index of what our packages require (default: the store's python-deps, else your own indexes)",
    )
    group.add_argument(
        "--wait",
        type=float,
        default=WAIT,
        metavar="SECONDS",
        help=f"how long to wait for an index that lags behind (default: {WAIT:.0f})",
    )


def run(arguments: argparse.Namespace) -> None:
    """Make the environment, and install into it."""
    requirements = parse_requirements(arguments.packages)
    arguments.run_id = arguments.from_run_id or arguments.run_id
    common = common_from(arguments)
    # what cannot be found is said before anything is made
    if arguments.index_name or arguments.index_url:
        url = _index_url(common, arguments)
        if common.dry_run:
            console.say(f"Would install {', '.join(map(str, requirements))} from {url}.")
            return
        with _environment(common, arguments) as target:
            _install_from_index(common, arguments, url, requirements, target)
        return
    base = planned(arguments.venv, python=str(common.python or ""), clean=arguments.clean)
    with _found(common, arguments, requirements, base) as (wanted, place):
        if common.dry_run:
            console.say(f"Would make {arguments.venv.absolute()} with Python {base.version}.")
            _show(choose(wanted, place, base.executable, isolated=True))
            return
        with _environment(common, arguments) as target:
            _show(install(target, wanted, place))


@contextmanager
def _environment(common: Common, arguments: argparse.Namespace) -> Iterator[Interpreter]:
    """Give the environment, made where it has to be; say at the end how it is used."""
    python = str(common.python or "")
    with environment(arguments.venv, python=python, clean=arguments.clean) as target:
        yield target
    console.done(f"setup_venv: {target.prefix} (Python {target.version})")
    _tell(arguments, target)


def _tell(arguments: argparse.Namespace, target: Interpreter) -> None:
    if arguments.activate:
        step = job_files(variables())
        step.add_path(target.scripts)
        step.set_variable("VIRTUAL_ENV", str(target.prefix))
    else:
        console.say(f"Use it: . {target.scripts / 'activate'}")


def _show(chosen: Chosen) -> None:
    rows = [(one.name, one.version, "ours", one.files[0].sha256[:12]) for one in chosen.ours]
    rows += [(one.name, one.version, "", one.files[0].sha256[:12]) for one in chosen.theirs]
    console.table(("distribution", "version", "whose", "sha256"), rows)


@contextmanager
def _found(
    common: Common, arguments: argparse.Namespace, requirements: Sequence[Requirement], target: Interpreter
) -> Iterator[tuple[Wanted, Place]]:
    """Find what a run or a page offers for the Python; addresses live as long as the context."""
    if arguments.find_links_url:
        cert = configured().cert
        offers = _fitting(page_offers(arguments.find_links_url, cert=cert), target)
        devices = devices_for(requirements, common.gpu_family or arguments.index_subdir)
        wanted = _wanted(common, arguments, pinned(requirements, offers, newest=True), offers, devices)
        yield wanted, beside_page(arguments.find_links_url, cert, arguments.deps_index_url)
        return
    group = find_group(common, arguments.artifact_group or group_name(common.gpu_family))
    offers = _fitting(offered(group), target)
    console.say(f"{group.where}: {len(offers)} files for Python {target.series}")
    pins = pinned(requirements, offers)
    with run_place(group, offers, wait=arguments.wait, deps_index_url=arguments.deps_index_url) as place:
        devices = devices_for(requirements, common.gpu_family or group.family)
        yield _wanted(common, arguments, pins, offers, devices), place


def _fitting(offers: Sequence[Offer], target: Interpreter) -> tuple[Offer, ...]:
    found = tuple(one for one in offers if fits(one, target.tag))
    if not found:
        raise MissingInputError(
            f"Of the {len(offers)} files none is for Python {target.series}.",
            hint="Choose another Python: --python 3.12.",
        )
    return found


def _wanted(
    common: Common,
    arguments: argparse.Namespace,
    pins: tuple[str, ...],
    offers: tuple[Offer, ...],
    devices: Devices,
) -> Wanted:
    return Wanted(
        requirements=pins,
        offers=offers,
        devices=devices,
        pre=arguments.pre,
        backend=arguments.backend,
        cache_dir=arguments.pip_cache_dir,
        locks=common.cache / "locks",
    )


def page_offers(url: str, *, cert: str) -> tuple[Offer, ...]:
    """Read what a flat page lists of ours.

    Raises:
        MissingInputError: There is no page, or it lists nothing of ours.
        WheelError: A file's name is none of a wheel or sdist.
    """
    answer = fetch(url, cert=cert)
    if answer.text is None:
        raise MissingInputError(f"{url}: {answer.problem}.", hint="Name a page with --find-links-url.")
    found = []
    for href, (name, sha256) in links(answer.text).items():
        if distributions.is_distribution(name):
            parsed = wheels.parse_wheel_name(name) if name.endswith(".whl") else wheels.parse_sdist_name(name)
            if mirror().is_ours(parsed.distribution):
                found.append(
                    Offer(
                        name=name,
                        distribution=canonicalize_name(parsed.distribution),
                        version=str(parsed.version),
                        sha256=sha256,
                        url=urljoin(url, href),
                    )
                )
    if not found:
        raise MissingInputError(
            f"{url} lists no wheel or sdist of ours.", hint="Name the page that does, with --find-links-url."
        )
    return tuple(found)


def _index_url(common: Common, arguments: argparse.Namespace) -> str:
    family = arguments.index_subdir or common.gpu_family
    if arguments.index_name:
        return release_index_url(arguments.index_name, family)
    base = str(arguments.index_url).rstrip("/")
    return f"{base}/{quote(arguments.index_subdir)}/" if arguments.index_subdir else f"{base}/"


def _install_from_index(
    common: Common,
    arguments: argparse.Namespace,
    url: str,
    requirements: Sequence[Requirement],
    target: Interpreter,
) -> None:
    """Install from one index, which has the dependencies, too, and from no other."""
    extra = (arguments.deps_index_url,) if arguments.deps_index_url else ()
    sources = Sources(index_url=url, extra_index_urls=extra, cert=configured().cert)
    devices = devices_for(requirements, common.gpu_family or arguments.index_subdir)
    split = bool(installer.versions(LIBRARIES, sources))
    call = Install(
        requirements=index_requirements(requirements, devices.targets if split else ()),
        sources=sources,
        # setuptools, which the rocm sdist is built with, need not be on that index
        build_isolation=False,
        pre=arguments.pre,
        gpu_family=sdk_target("split" if split else "unsplit", devices.family, devices.targets),
    )
    for one in (locked_call(common, target, only=("setuptools",)), call):
        installer.install(target, one, backend=arguments.backend, cache_dir=arguments.pip_cache_dir)
    devices.require(target)
