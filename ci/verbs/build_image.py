"""`build-image`: a container image of `images.toml`, by docker, podman or buildah."""

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from string import Template
from typing import Self

from pydantic import model_validator

from core import console, files, process
from core.cli.options import Common, common_from, environment
from core.data import Model, load_toml
from core.env import engines
from core.env.engines import ENGINES, Engine, ImageBuild
from core.errors import ProcessError, UsageError, nearest
from core.families import gpu_targets
from core.http import has_secret
from core.run import group_name, job_files
from rocm_packaging.origin import release_index_url

BASE = "BASE_IMAGE"
DATE = "NIGHTLY_DATE"
_INDEX, _ARCH = "THEROCK_NIGHTLY_INDEX_URL", "PYTORCH_ROCM_ARCH"
_REPOSITORY = re.compile(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+")
_NAME = re.compile(r"[a-z0-9]+([._/-]+[a-z0-9]+)*")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_LOGIN_SECONDS = 60.0
_DATE = re.compile(r"\d{8}", re.ASCII)


class BuildArgument(Model):
    """One build argument of a Dockerfile."""

    default: str
    pattern: str
    about: str


class Image(Model):
    """One image."""

    dockerfile: str
    name: str
    default: bool = False
    arguments: dict[str, BuildArgument]

    def values(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the value of every build argument; a default may be made of other arguments."""
        for name in given:
            if name not in self.arguments:
                known = nearest(name, self.arguments)
                raise UsageError(f"{self.dockerfile} has no build argument {name}.", hint=known)
        found = {name: given.get(name, one.default) for name, one in self.arguments.items()}
        for name, one in self.arguments.items():
            if name not in given:
                found[name] = Template(one.default).substitute(found)
        for name, value in found.items():
            argument = self.arguments[name]
            if not re.fullmatch(argument.pattern, value):
                raise UsageError(
                    f"{name}={value!r} cannot be right: {argument.about}.",
                    hint=f"The default is {argument.default!r}.",
                )
            if "://" in value and has_secret(value):
                raise UsageError(
                    f"{name} holds a user name or password, which would stay in the image.",
                    hint="Give an address without one; a base image of yours can hold a netrc file.",
                )
        return found


class _ImagesFile(Model):
    images: dict[str, Image]

    @model_validator(mode="after")
    def _one_default(self) -> Self:
        if sum(one.default for one in self.images.values()) != 1:
            raise ValueError("one image has default = true.")
        return self


def images() -> Mapping[str, Image]:
    """Return every image by name."""
    return load_toml(Path(__file__).parents[1] / "images.toml", _ImagesFile).images


def image(name: str = "") -> Image:
    """Find an image."""
    known = images()
    if name and name not in known:
        raise UsageError(f"Unknown image {name!r}.", hint=nearest(name, known))
    return known[name] if name else next(one for one in known.values() if one.default)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options, one for each build argument among them."""
    add = parser.add_argument
    known = images()
    add("--image", default="", metavar="NAME", help=f"which one: {', '.join(known)}")
    add("--name", default="", metavar="NAME", help="its name here (default: its own, with the GPU family)")
    add("--engine", choices=ENGINES, help="what builds (default: the first that works)")
    add("--date", default="", metavar="YYYYMMDD", help="the nightly's day (default: today, UTC)")
    add("--tag", action="append", default=[], metavar="TAG", help="instead of nightly-YYYYMMDD and latest")
    what = (
        "push it (to REGISTRY/REPO-FAMILY with --gpu-family), as REGISTRY_USER or as the engine is logged in"
    )
    add("--push", default="", metavar="REGISTRY/REPO", help=what)
    add("--output", type=Path, metavar="FILE", help="save it to an archive for docker load")
    what = "push one that was saved there, as a job does that may push and runs nothing of the image"
    add("--archive", type=Path, metavar="FILE", help=what)
    add("--no-cache", action="store_true", help="do every step again")
    group = parser.add_argument_group("build arguments (--gpu-family gives its index and gfx targets)")
    group.add_argument("--base", dest=BASE, metavar="IMAGE", help="the base image, for --base-image")
    declared: dict[str, BuildArgument] = {}
    for one in sorted(known.values(), key=lambda one: one.default):
        declared |= one.arguments
    for name, argument in declared.items():
        option = f"--{name.lower().replace('_', '-')}"
        default = f" (default: {argument.default})" if argument.default else ""
        group.add_argument(option, dest=name, metavar="VALUE", help=f"{argument.about}{default}")


def run(arguments: argparse.Namespace) -> None:
    """Build the image; push and save it where the options say so."""
    common = common_from(arguments)
    build = plan(common, arguments, today=f"{datetime.now(UTC):%Y%m%d}")
    named: Sequence[Engine] = [arguments.engine] if arguments.engine else [*ENGINES]
    engine = named[0] if common.dry_run else engines.find_engine(*named)
    makes: tuple[tuple[str, ...], ...] = (engines.build_command(engine, build),)
    if arguments.archive:
        makes = (
            (engine, "load", "--input", str(arguments.archive)),
            *((engine, "tag", build.names[-1], reference) for reference in build.pushed),
        )
    env = environment()
    user = env.get("REGISTRY_USER", "")
    password = env.get("REGISTRY_PASSWORD", "")
    logins: tuple[tuple[str, ...], ...] = ()
    if build.pushed and user and password:
        logins = (engines.login_command(engine, build.pushed[0], user),)
    pushes = tuple((engine, "push", reference) for reference in build.pushed)
    if common.dry_run:
        saves = (engines.save_command(engine, build, build.archive),) if build.archive else ()
        console.result("\n".join(map(shlex.join, (*makes, *logins, *pushes, *saves))))
        return
    with console.group(f"{engine} {makes[0][1]} {build.names[0]}"):
        _run(engine, build, makes, common)
    # after the build, which runs what others wrote
    for login in logins:
        console.add_mask(password)
        process.capture(login, env=process.inherited(), stdin=password, timeout=_LOGIN_SECONDS)
    _run(engine, build, pushes, common)
    if build.archive is not None:
        # beside its final name first, so that a later job never sees half of it
        with files.partial_file(build.archive) as part:
            _run(engine, build, [engines.save_command(engine, build, part)], common)
    _show(engine, build)


def plan(common: Common, arguments: argparse.Namespace, *, today: str) -> ImageBuild:
    """Decide what is built, from options."""
    chosen = image(arguments.image)
    names = {name for each in images().values() for name in each.arguments}
    given = {name: value for name in sorted(names) if (value := getattr(arguments, name)) is not None}
    # images of several families may share a machine and a registry
    suffix = f"-{group_name(common.gpu_family).lower()}" if common.gpu_family else ""
    if common.gpu_family:
        if not (targets := gpu_targets(common.gpu_family)):
            hint = "Name a family of GPUs, or leave it out."
            raise UsageError(f"There is no ROCm for {common.gpu_family}.", hint=hint)
        index = release_index_url("", common.gpu_family)
        given = {_INDEX: index, _ARCH: ";".join(targets), **given}
    name = arguments.name or f"{chosen.name}{suffix}"
    if not _NAME.fullmatch(name):
        raise UsageError(f"Invalid image name {name!r}.", hint="Use small letters and digits, and no tag.")
    pushed = repository(f"{arguments.push}{suffix}") if arguments.push else ""
    date = arguments.date or today
    found = tags(date, tuple(arguments.tag))
    values = chosen.values(given)
    return ImageBuild(
        dockerfile=common.root / chosen.dockerfile,
        context=common.root,
        arguments={**values, DATE: date} if _INDEX in values else values,
        names=tuple(f"{name}:{tag}" for tag in found),
        pushed=tuple(f"{pushed}:{tag}" for tag in found) if pushed else (),
        archive=arguments.output.absolute() if arguments.output else None,
        no_cache=arguments.no_cache,
    )


def tags(date: str, named: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return an image's tags."""
    if not _DATE.fullmatch(date):
        raise UsageError(f"Invalid day {date!r}.", hint="Write it as YYYYMMDD, such as 20251121.")
    found = named or (f"nightly-{date}", "latest")
    for tag in found:
        if not _TAG.fullmatch(tag):
            raise UsageError(f"Invalid image tag {tag!r}.", hint="Use letters, digits, '_', '.' and '-'.")
    return found


def repository(named: str) -> str:
    """Check where an image is pushed to: REGISTRY/REPO, in small letters as registries want it."""
    if not _REPOSITORY.fullmatch(named.lower()):
        raise UsageError(
            f"{named!r} is not a REGISTRY/REPO to push to.",
            hint="Write it without https:// and without a tag, as in registry.example.com/team/rocm-ci.",
        )
    return named.lower()


def _run(engine: Engine, build: ImageBuild, commands: Sequence[Sequence[str]], common: Common) -> None:
    log = common.cache / "logs" / "build_image.log"
    for command in commands:
        log.unlink(missing_ok=True)
        try:
            process.run(command, cwd=common.root, env=process.inherited(), log=log)
        except ProcessError as problem:
            raise engines.explain_failure(engine, problem, base=build.arguments[BASE]) from problem


def _show(engine: Engine, build: ImageBuild) -> None:
    rows = [(name, "here") for name in build.names] + [(name, "pushed") for name in build.pushed]
    if build.archive is not None:
        rows.append((str(build.archive), console.size(build.archive.stat().st_size)))
    console.table(("image", ""), rows)
    job_files.job_files(environment()).set_output("image", (build.pushed or build.names)[0])
    values = [(job_files.text(name), job_files.text(value)) for name, value in build.arguments.items()]
    table = job_files.table(("build argument", "value"), values)
    console.summary(f"### Image {job_files.text(build.names[0])}\n\n{table}")
    console.done(f"build_image: {build.names[0]} by {engine}")
