"""`build-image`: a container image of `images.toml`, by docker, podman or buildah."""

from __future__ import annotations

import shlex
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ci.images import BASE, DATE, image, images, local_name, repository, tags
from core import console, process
from core.cli.options import common_from, environment
from core.env import engines
from core.env.engines import ENGINES, Build, Engine
from core.errors import FatalError, MissingInputError, ProcessError, UsageError
from core.families import gpu_targets
from core.run.job_files import job_files
from core.run.job_files import table as markdown_table
from core.run.job_files import text as markdown
from core.run.outputs import group_name

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from ci.images import BuildArgument
    from core.cli.options import Common

_INDEX, _ARCH = "THEROCK_NIGHTLY_INDEX_URL", "PYTORCH_ROCM_ARCH"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options, one for each build argument among them."""
    known = images()
    parser.add_argument("--image", default="", metavar="NAME", help=f"which one: {', '.join(known)}")
    parser.add_argument(
        "--name", default="", metavar="NAME", help="its name here (default: its own, with the GPU family)"
    )
    parser.add_argument("--engine", choices=ENGINES, help="what builds (default: the first that works)")
    parser.add_argument(
        "--date", default="", metavar="YYYYMMDD", help="the nightly's day (default: today, UTC)"
    )
    parser.add_argument(
        "--tag", action="append", default=[], metavar="TAG", help="instead of nightly-YYYYMMDD and latest"
    )
    parser.add_argument(
        "--push",
        default="",
        metavar="REGISTRY/REPO",
        help="push it (to REGISTRY/REPO-FAMILY with --gpu-family), as the engine is logged in",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="save it to an archive for docker load")
    parser.add_argument("--no-cache", action="store_true", help="do every step again")
    group = parser.add_argument_group(
        "build arguments (with --gpu-family, its index and its gfx targets are the defaults)"
    )
    group.add_argument("--base", dest=BASE, metavar="IMAGE", help="the base image, for --base-image")
    declared: dict[str, BuildArgument] = {}
    for one in sorted(known.values(), key=lambda one: not one.default):
        declared = {**one.arguments, **declared}
    for name, argument in declared.items():
        option = f"--{name.lower().replace('_', '-')}"
        default = f" (default: {argument.default})" if argument.default else ""
        group.add_argument(option, dest=name, metavar="VALUE", help=f"{argument.about}{default}")


def run(arguments: argparse.Namespace) -> None:
    """Build the image; push and save it where that is asked for."""
    common = common_from(arguments)
    build = plan(common, arguments, today=f"{datetime.now(UTC):%Y%m%d}")
    engine = _engine(arguments.engine, dry_run=common.dry_run)
    if common.dry_run:
        for command in commands(engine, build, build.archive):
            console.result(shlex.join(command))
        return
    with console.group(f"{engine} build {build.names[0]}"):
        _run(engine, build, [engines.build_command(engine, build)], common)
    _run(engine, build, engines.push_commands(engine, build), common)
    if build.archive is not None:
        _save(engine, build, build.archive, common)
    _tell(engine, build)


def plan(common: Common, arguments: argparse.Namespace, *, today: str) -> Build:
    """Decide what is built, from options."""
    chosen = image(arguments.image)
    names = {name for each in images().values() for name in each.arguments}
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    suffix = ""
    if common.gpu_family:
        given = {**_of_family(common.gpu_family), **given}
        # images of several families may share a machine and a registry
        suffix = f"-{group_name(common.gpu_family).lower()}"
    name = local_name(arguments.name) if arguments.name else f"{chosen.name}{suffix}"
    pushed = repository(f"{arguments.push}{suffix}") if arguments.push else ""
    date = arguments.date or today
    found = tags(date, tuple(arguments.tag))
    values = chosen.values({key: given[key] for key in sorted(given)})
    if _INDEX in values:
        values[DATE] = date
    return Build(
        dockerfile=common.root / chosen.dockerfile,
        context=common.root,
        arguments=values,
        names=tuple(f"{name}:{tag}" for tag in found),
        pushed=tuple(f"{pushed}:{tag}" for tag in found) if pushed else (),
        archive=arguments.output.absolute() if arguments.output else None,
        no_cache=arguments.no_cache,
    )


def _of_family(family: str) -> dict[str, str]:
    from rocm_packaging.rocm_sources import release_index_url

    targets = gpu_targets(family)
    if not targets:
        raise UsageError(f"There is no ROCm for {family}.", hint="Name a family of GPUs, or leave it out.")
    return {_INDEX: release_index_url("", family), _ARCH: ";".join(targets)}


def commands(engine: Engine, build: Build, archive: Path | None) -> tuple[tuple[str, ...], ...]:
    """List every command of a build, in order."""
    saved = (engines.save_command(engine, build, archive),) if archive else ()
    return (engines.build_command(engine, build), *engines.push_commands(engine, build), *saved)


def _engine(named: Engine | None, *, dry_run: bool) -> Engine:
    if dry_run and named:
        return named
    try:
        return engines.find_engine(*([named] if named else ENGINES))
    except MissingInputError as problem:
        if not dry_run:
            raise
        console.warn(f"{problem.message} These are docker's commands.")
        return "docker"


def _run(engine: Engine, build: Build, words: Sequence[Sequence[str]], common: Common) -> None:
    log = common.cache / "logs" / "build_image.log"
    for command in words:
        log.unlink(missing_ok=True)
        try:
            process.run(command, cwd=common.root, log=log)
        except ProcessError as problem:
            raise engines.explained(engine, problem, base=build.arguments[BASE]) from problem


def _save(engine: Engine, build: Build, archive: Path, common: Common) -> None:
    """Save the image beside its final name first, so that a later job never sees half of it."""
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".image.") as folder:
            part = Path(folder, "image.tar")
            _run(engine, build, [engines.save_command(engine, build, part)], common)
            part.replace(archive)
    except OSError as problem:
        raise FatalError(
            f"{archive} could not be written: {problem.strerror}.", hint="Free space or change the folder."
        ) from problem


def _tell(engine: Engine, build: Build) -> None:
    rows = [(name, "here") for name in build.names] + [(name, "pushed") for name in build.pushed]
    if build.archive is not None:
        rows.append((str(build.archive), console.size(build.archive.stat().st_size)))
    console.table(("image", ""), rows)
    step = job_files(environment())
    step.set_output("image", (build.pushed or build.names)[0])
    values = [(markdown(name), markdown(value)) for name, value in build.arguments.items()]
    console.summary(
        f"### Image {markdown(build.names[0])}\n\n{markdown_table(('build argument', 'value'), values)}"
    )
    console.done(f"build_image: {build.names[0]} by {engine}")
