"""The ROCm that wheels are built against: where it comes from, and what it says of itself."""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING

from core import process
from core.data import read_toml
from core.env import Interpreter, interpreter, require
from core.errors import MissingInputError, ProcessError, RocmError
from core.packages.groups import RunGroup
from core.packages.options import (
    SourceOptions,
    add_package_source,
    add_staged_source,
    source_options,
)
from core.packages.sources import InstalledPackages, PackageIndex
from rocm_packaging import origin
from rocm_packaging.packages.layouts import sdk_target

if TYPE_CHECKING:
    from core.packages.package_source import PackageSource
    from pytorch_build.context import Context

_PREFIX = "rocm-"
_OURS = re.compile(r"_?rocm")
QUERIES = Path(__file__).with_name("queries.toml")


@dataclass(frozen=True, kw_only=True)
class RocmOptions:
    """Where ROCm comes from and how it is installed, as the command line says it."""

    source: SourceOptions = field(default_factory=lambda: SourceOptions(prefix=f"--{_PREFIX}"))
    extras: tuple[str, ...] = ()
    pip_cache_dir: Path | None = None

    @property
    def version(self) -> str:
        """The version that is chosen; "" for that of the source lock, or the newest there is."""
        return self.source.version


def add_rocm_options(parser: argparse.ArgumentParser, *, alone: bool = True) -> None:
    """Declare the options."""
    title = "where ROCm comes from (default: this run, else the family's release index)"
    if not alone:
        title = "where a ROCm comes from that is not part of the run (default: the family's release index)"
    add_package_source(parser, title, _PREFIX, *([""] if alone else []))
    group = parser.add_argument_group("how ROCm is installed")
    what = "more extras of rocm, such as device-gfx942"
    group.add_argument("--rocm-extras", default="", metavar="A,B", help=what)
    group.add_argument("--pip-cache-dir", type=Path, metavar="DIR", help="the installer's cache")


def add_tested_sources(parser: argparse.ArgumentParser) -> None:
    """Declare where tests take torch from, and a ROCm that is not part of the run."""
    sources = add_package_source(parser, "where torch comes from (default: the run's outputs)", "")
    add_staged_source(sources)
    what = "exact version (default: the newest)"
    parser.add_argument("--torch-version", dest="version", default="", metavar="V", help=what)
    parser.add_argument("--no-install", action="store_true", help="test what is already installed")
    add_rocm_options(parser, alone=False)


def rocm_options_from(
    arguments: argparse.Namespace, env: Mapping[str, str] = MappingProxyType({})
) -> RocmOptions:
    """Turn parsed arguments into the value that stages get."""
    return RocmOptions(
        source=source_options(arguments, _PREFIX, env),
        extras=tuple(extra for extra in arguments.rocm_extras.split(",") if extra),
        pip_cache_dir=arguments.pip_cache_dir,
    )


def find_version(context: Context, options: RocmOptions) -> str:
    """Find the ROCm version: the one given, the ref's own, or the newest there is; "" for family ``cpu``."""
    if not context.gpu:
        return ""
    if options.source.no_install:
        return _installed(context).version
    return options.version or context.ref.rocm_version or origin.newest(packages_of(context, options))


def _installed(context: Context) -> origin.RocmSource:
    return installed(interpreter(require(context.common.python).base_executable))


def packages_of(context: Context, options: RocmOptions) -> PackageSource:
    """Find where ROCm comes from: the sources that are named, the run's outputs, the release index."""
    named = origin.named_source(options.source, context.common, context.gpu_family)
    if named is not None:
        return named
    own = origin.own_run(context.common, context.artifact_group)
    if origin.has_rocm(own):
        return own
    url = origin.release_index_url("", context.gpu_family)
    return PackageIndex(url=url, option_prefix=f"--{_PREFIX}")


def find_source(context: Context, options: RocmOptions, version: str) -> origin.RocmSource:
    """Find where ROCm of this version comes from, and the files of it that builds need."""
    if options.source.no_install:
        here = _installed(context)
        if here.version != version:
            raise MissingInputError(
                f"The source lock says ROCm {version}; {here.origin} is {here.version}.",
                hint="Build the image with that version (--therock-nightly-version), or resolve again.",
            )
        return here
    packages = packages_of(context, options)
    own = isinstance(packages, RunGroup) and not options.source.named
    if own and version not in packages.versions("rocm"):
        raise MissingInputError(
            f"ROCm {version} is asked for; {packages.description} holds {packages.versions('rocm')[0]}.",
            hint="Correct --rocm-version or resolve again (nox -s resolve), or build it: nox -s build_rocm.",
        )
    if not own and not options.source.named and context.ref.rocm_version == version:
        # the sample's ROCm is on no index
        raise MissingInputError(
            f"ROCm {version} for {context.gpu_family} is not among the run's outputs.",
            hint=f"Build it first: nox -s build_rocm -- {context.words}",
        )
    return origin.choose_for_build(
        packages, version, context.gpu_family, options.extras, context.common.outputs.platform
    )


@dataclass(frozen=True, kw_only=True)
class RocmSdk:
    """What an installed ``rocm_sdk`` says of itself, and what lies below its root."""

    version: str
    root: PurePath
    bin: PurePath
    cmake: PurePath
    targets: tuple[str, ...]
    libraries: frozenset[str] = frozenset()
    device_libs: bool = True
    host_math: bool = True
    sysdeps: bool = True


def installed(python: Interpreter) -> origin.RocmSource:
    """Return the ROCm that an interpreter has installed, by its own word."""
    env = process.handed_on(ROCM_SDK_TARGET_FAMILY=None)
    facts = json.loads(_python(python, env, "-c", read_toml(QUERIES)["rocm_sdk"]))
    return origin.RocmSource(
        version=facts["version"],
        layout=facts["layout"],
        packages=InstalledPackages(python=python.executable, option_prefix="--rocm-"),
    )


def link(target: Interpreter) -> None:
    """Link the ROCm of the Python that an environment is made from into it, as if it were installed.

    Search paths of wheels lead from torch's folder to ROCm's beside it, so seeing it elsewhere is not enough.
    """
    for path in sorted(interpreter(target.base_executable).purelib.iterdir()):
        there = target.purelib / path.name
        if not _OURS.match(path.name) or there.exists():
            continue
        if path.suffix == ".dist-info":  # uv overlooks a link
            shutil.copytree(path, there)
        else:
            there.symlink_to(path)


def ask(
    target: Interpreter,
    source: origin.RocmSource,
    *,
    family: str,
    targets: Sequence[str] = (),
    libraries: Sequence[str] = (),
) -> RocmSdk:
    """Query an installed ``rocm_sdk`` for its facts, `libraries` among them; refuse empty or other ones."""
    version, layout = source.version, source.layout
    env = process.handed_on(ROCM_SDK_TARGET_FAMILY=sdk_target(layout, family) or None)
    said = _python(target, env, "-c", read_toml(QUERIES)["rocm_sdk"], *libraries)
    try:
        facts = json.loads(said)
    except ValueError as problem:
        raise RocmError(f"rocm_sdk in {target.prefix} answered {said.strip()!r}.") from problem
    where = f"rocm_sdk in {target.prefix}"
    if facts["version"] != version:
        raise RocmError(f"{where} is {facts['version']}, not {version}.", hint="Use --force.")
    if facts["layout"] != layout:
        raise RocmError(f"{where} has {facts['layout']} packages, not {layout} ones.", hint="Use --force.")
    if layout == "unsplit" and facts["family"] != family:
        raise RocmError(
            f"{where} is for {facts['family']!r}, not {family!r}.",
            hint="A cached build of another family was installed: run the stage again with --force.",
        )
    if absent := [one for one in targets if layout == "split" and one not in facts["available"]]:
        raise RocmError(
            f"ROCm {version} has no device code for {', '.join(absent)}, "
            f"only for {', '.join(facts['available'])}.",
            hint="Choose others with --gpu-family or --pytorch-rocm-arch, or ROCm packages that have them.",
        )
    known = tuple(_python(target, env, "-m", "rocm_sdk", "targets").replace(";", " ").split())
    if not known:
        raise RocmError(f"{where} names no GPU targets.")
    root = _path(target, env, "--root")
    return RocmSdk(
        version=version,
        root=root,
        bin=_path(target, env, "--bin"),
        cmake=_path(target, env, "--cmake"),
        targets=known,
        libraries=frozenset(facts["libraries"]),
        device_libs=(root / "lib" / "llvm" / "amdgcn" / "bitcode").is_dir(),
        host_math=(root / "lib" / "host-math").is_dir(),
        sysdeps=(root / "lib" / "rocm_sysdeps").is_dir(),
    )


def _path(target: Interpreter, env: Mapping[str, str], which: str) -> Path:
    answer = _python(target, env, "-m", "rocm_sdk", "path", which).strip()
    path = Path(answer)
    if not answer or not path.is_absolute() or not path.is_dir():
        raise RocmError(
            f"rocm_sdk path {which} in {target.prefix} answered {answer!r}, which is not a folder."
        )
    return path


def _python(target: Interpreter, env: Mapping[str, str], *words: str) -> str:
    try:
        said = process.capture([target.executable, *words], env=env).stdout
    except ProcessError as problem:
        raise RocmError(
            f"rocm_sdk in {target.prefix} does not answer: {problem.message}",
            hint="Install rocm[libraries,devel] for this family: nox -s install_rocm.",
        ) from problem
    if not said.strip():
        raise RocmError(f"rocm_sdk in {target.prefix} gave an empty answer to {' '.join(words[-2:])}.")
    return said
