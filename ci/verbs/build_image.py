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
_INDEX = "THEROCK_NIGHTLY_INDEX_URL"
_TARGETS = "PYTORCH_ROCM_ARCH"

_REPOSITORY = re.compile(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+")
_NAME = re.compile(r"[a-z0-9]+([._/-]+[a-z0-9]+)*")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DAY = re.compile(r"\d{8}", re.ASCII)

_LOGIN_SECONDS = 60.0


class BuildArgument(Model):
    """One build argument of a Dockerfile."""

    default: str
    pattern: str
    about: str

    def require(self, name: str, value: str) -> None:
        """Refuse a value that cannot be right, or that would leave a secret in the image."""
        if not re.fullmatch(self.pattern, value):
            raise UsageError(
                f"{name}={value!r} cannot be right: {self.about}.",
                hint=f"The default is {self.default!r}.",
            )
        if "://" in value and has_secret(value):
            raise UsageError(
                f"{name} holds a user name or password, which would stay in the image.",
                hint="Give an address without one; a base image of yours can hold a netrc file.",
            )


class Image(Model):
    """One image."""

    dockerfile: str
    name: str
    default: bool = False
    arguments: dict[str, BuildArgument]

    def values(self, requested_values: Mapping[str, str]) -> dict[str, str]:
        """Return the value of every build argument; a default may be made of other arguments."""
        for name in requested_values:
            if name not in self.arguments:
                suggestion = nearest(name, self.arguments)
                raise UsageError(f"{self.dockerfile} has no build argument {name}.", hint=suggestion)

        defaults = {name: argument.default for name, argument in self.arguments.items()}
        values = {**defaults, **requested_values}
        for name, default in defaults.items():
            if name not in requested_values:
                values[name] = Template(default).substitute(values)
        for name, value in values.items():
            self.arguments[name].require(name, value)
        return values


class _ImagesFile(Model):
    images: dict[str, Image]

    @model_validator(mode="after")
    def _has_one_default(self) -> Self:
        if sum(image.default for image in self.images.values()) != 1:
            raise ValueError("one image has default = true.")
        return self


def images() -> Mapping[str, Image]:
    """Return every image by name."""
    return load_toml(Path(__file__).parents[1] / "images.toml", _ImagesFile).images


def find_image(name: str = "") -> Image:
    """Return the image with a name, or the default one."""
    images_by_name = images()
    if name and name not in images_by_name:
        raise UsageError(f"Unknown image {name!r}.", hint=nearest(name, images_by_name))
    if name:
        return images_by_name[name]
    (default_image,) = [image for image in images_by_name.values() if image.default]
    return default_image


COMMON_OPTIONS = ("gpu-family", "dry-run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options, one for each build argument among them."""
    add = parser.add_argument
    names = ", ".join(images())
    add(
        "--image",
        default="",
        metavar="NAME",
        help=f"which one: {names}",
    )
    add(
        "--name",
        default="",
        metavar="NAME",
        help="its name here (default: its own, with the GPU family)",
    )
    add("--engine", choices=ENGINES, help="what builds (default: the first that works)")
    add(
        "--date",
        default="",
        metavar="YYYYMMDD",
        help="the nightly's day (default: today, UTC)",
    )
    add(
        "--tag",
        action="append",
        default=[],
        metavar="TAG",
        help="instead of nightly-YYYYMMDD and latest",
    )
    add(
        "--push",
        default="",
        metavar="REGISTRY/REPO",
        help="push it (to REGISTRY/REPO-FAMILY with --gpu-family), as REGISTRY_USER or as the engine is "
        "logged in",
    )
    add(
        "--output",
        type=Path,
        metavar="FILE",
        help="save it to an archive for docker load",
    )
    add(
        "--archive",
        type=Path,
        metavar="FILE",
        help="push one that was saved there, as a job does that may push and runs nothing of the image",
    )
    add("--no-cache", action="store_true", help="do every step again")
    _add_build_arguments(parser)


def _add_build_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare an option for each build argument, with the default of the default image."""
    group = parser.add_argument_group("build arguments (--gpu-family gives its index and gfx targets)")
    group.add_argument(
        "--base",
        dest=BASE,
        metavar="IMAGE",
        help="the base image, for --base-image",
    )
    arguments: dict[str, BuildArgument] = {}
    for image in sorted(images().values(), key=lambda image: image.default):
        arguments |= image.arguments
    for name, argument in arguments.items():
        option = name.lower().replace("_", "-")
        description = argument.about
        if argument.default:
            description = f"{description} (default: {argument.default})"
        group.add_argument(
            f"--{option}",
            dest=name,
            metavar="VALUE",
            help=description,
        )


def run(arguments: argparse.Namespace) -> None:
    """Build the image; push and save it where the options say so."""
    common = common_from(arguments)
    build = plan_build(common, arguments, today=f"{datetime.now(UTC):%Y%m%d}")
    engine = _engine(arguments, is_dry_run=common.dry_run)
    env = environment()
    user = env.get("REGISTRY_USER", "")
    password = env.get("REGISTRY_PASSWORD", "")

    make_commands = _commands_to_make(engine, build, arguments.archive)
    # The login comes after the build, which runs what others wrote.
    login_commands: Sequence[Sequence[str]] = ()
    if build.pushed and user and password:
        login_commands = [engines.login_command(engine, build.pushed[0], user)]
    push_commands = [(engine, "push", reference) for reference in build.pushed]
    if common.dry_run:
        commands = [*make_commands, *login_commands, *push_commands]
        if build.archive is not None:
            commands.append(engines.save_command(engine, build, build.archive))
        console.result("\n".join(map(shlex.join, commands)))
        return

    with console.group(f"{engine} {make_commands[0][1]} {build.names[0]}"):
        _run(engine, build, make_commands, common)
    for command in login_commands:
        console.add_mask(password)
        process.capture(
            command,
            env=process.inherited(),
            stdin=password,
            timeout=_LOGIN_SECONDS,
        )
    _run(engine, build, push_commands, common)
    if build.archive is not None:
        # It is written beside its final name first, so that a later job never sees half of it.
        with files.partial_file(build.archive) as partial_archive:
            save = engines.save_command(engine, build, partial_archive)
            _run(engine, build, [save], common)
    _show(engine, build)


def _engine(arguments: argparse.Namespace, *, is_dry_run: bool) -> Engine:
    """Return the engine that builds; a dry run does not look whether it works."""
    candidates: Sequence[Engine] = list(ENGINES)
    if arguments.engine is not None:
        candidates = [arguments.engine]
    if is_dry_run:
        return candidates[0]
    return engines.find_engine(*candidates)


def _commands_to_make(engine: Engine, build: ImageBuild, archive: Path | None) -> Sequence[Sequence[str]]:
    """Return the commands that build an image, or load one that was saved."""
    if archive is None:
        return [engines.build_command(engine, build)]
    commands: list[Sequence[str]] = [(engine, "load", "--input", str(archive))]
    commands += [(engine, "tag", build.names[-1], reference) for reference in build.pushed]
    return commands


def plan_build(common: Common, arguments: argparse.Namespace, *, today: str) -> ImageBuild:
    """Return what is built, by the options."""
    image = find_image(arguments.image)
    # Images of several families may share a machine and a registry.
    suffix = ""
    if common.gpu_family:
        family = group_name(common.gpu_family)
        suffix = f"-{family.lower()}"
    name = arguments.name or f"{image.name}{suffix}"
    if not _NAME.fullmatch(name):
        raise UsageError(f"Invalid image name {name!r}.", hint="Use small letters and digits, and no tag.")

    day = arguments.date or today
    tags = make_tags(day, arguments.tag)
    build_arguments = image.values(_requested_build_arguments(common, arguments))
    if _INDEX in build_arguments:
        build_arguments[DATE] = day
    references: Sequence[str] = ()
    if arguments.push:
        repository = registry_repository(f"{arguments.push}{suffix}")
        references = [f"{repository}:{tag}" for tag in tags]
    return ImageBuild(
        dockerfile=common.root / image.dockerfile,
        context=common.root,
        arguments=build_arguments,
        names=tuple(f"{name}:{tag}" for tag in tags),
        pushed=tuple(references),
        archive=arguments.output.absolute() if arguments.output else None,
        no_cache=arguments.no_cache,
    )


def _requested_build_arguments(common: Common, arguments: argparse.Namespace) -> Mapping[str, str]:
    """Return the build arguments that options name, with the index and the targets of the GPU family."""
    build_arguments: dict[str, str] = {}
    if common.gpu_family:
        targets = gpu_targets(common.gpu_family)
        if not targets:
            raise UsageError(
                f"There is no ROCm for {common.gpu_family}.",
                hint="Name a family of GPUs, or leave it out.",
            )
        build_arguments[_INDEX] = release_index_url("", common.gpu_family)
        build_arguments[_TARGETS] = ";".join(targets)

    names: set[str] = set()
    for image in images().values():
        names.update(image.arguments)
    for name in sorted(names):
        value = getattr(arguments, name)
        if value is not None:
            build_arguments[name] = value
    return build_arguments


def make_tags(day: str, requested_tags: Sequence[str] = ()) -> Sequence[str]:
    """Return an image's tags."""
    if not _DAY.fullmatch(day):
        raise UsageError(f"Invalid day {day!r}.", hint="Write it as YYYYMMDD, such as 20251121.")
    tags = requested_tags or (f"nightly-{day}", "latest")
    for tag in tags:
        if not _TAG.fullmatch(tag):
            raise UsageError(f"Invalid image tag {tag!r}.", hint="Use letters, digits, '_', '.' and '-'.")
    return tags


def registry_repository(text: str) -> str:
    """Return where an image is pushed to: REGISTRY/REPO, in small letters as registries want it."""
    repository = text.lower()
    if not _REPOSITORY.fullmatch(repository):
        raise UsageError(
            f"{text!r} is not a REGISTRY/REPO to push to.",
            hint="Write it without https:// and without a tag, as in registry.example.com/team/rocm-ci.",
        )
    return repository


def _run(
    engine: Engine,
    build: ImageBuild,
    commands: Sequence[Sequence[str]],
    common: Common,
) -> None:
    """Run an engine's commands; say what a failure means."""
    log = common.cache / "logs" / "build_image.log"
    for command in commands:
        log.unlink(missing_ok=True)
        try:
            process.run(
                command,
                cwd=common.root,
                env=process.inherited(),
                log=log,
            )
        except ProcessError as problem:
            base = build.arguments[BASE]
            raise engines.explain_failure(engine, problem, base=base) from problem


def _show(engine: Engine, build: ImageBuild) -> None:
    """Print the image's names and where it is, and hand it on to later steps of a job."""
    rows = [(name, "here") for name in build.names]
    rows += [(reference, "pushed") for reference in build.pushed]
    if build.archive is not None:
        size = console.size(build.archive.stat().st_size)
        rows.append((str(build.archive), size))
    console.table(("image", ""), rows)

    references = build.pushed or build.names
    job_files.job_files(environment()).set_output("image", references[0])
    argument_rows: list[tuple[str, str]] = []
    for name, value in build.arguments.items():
        argument_rows.append((job_files.text(name), job_files.text(value)))
    table = job_files.table(("build argument", "value"), argument_rows)
    title = job_files.text(build.names[0])
    console.summary(f"### Image {title}\n\n{table}")
    console.done(f"build_image: {build.names[0]} by {engine}")
