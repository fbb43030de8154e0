"""The options that stages have in common, declared once; and the variables that a front door reads.

`docs/commands.md` lists them for people.
"""

import argparse
import functools
import os
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

from core import console
from core.errors import MissingInputError, UsageError, nearest
from core.run import (
    LOCAL_RUN,
    PLAIN,
    Platform,
    RunOutputs,
    group_name,
    key_name,
    require_key_segment,
    this_platform,
)
from core.status import Status
from core.stores import Store
from core.stores.dry_run import DryRunStore
from core.stores.location import open_store
from core.stores.overlay import OverlayStore

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_STORE = "out"
AUTO_STORE = "auto"
RUN_STORE = "RUN_STORE"
GIT_MIRRORS = "GIT_MIRRORS"
SOURCES_DIR = "SOURCES_DIR"
CONFIG = "CI_CONFIG"
OWN_FILE = "pytorch-build.toml"
FAILURE_FILE = "FAILURE_FILE"  # gets how a stage failed, for what called it, which prints it
# …-bkc: previews of new hardware, in buckets and streams of their own; a rehearsal is of the sample
RELEASE_TYPES = ("ci", "dev", "dev-bkc", "nightly", "nightly-bkc", "prerelease", "rehearsal", "release")
# The common options, as a verb's COMMON_OPTIONS names them: which run, whose part of it, and all.
RUN_OPTIONS = ("run-id", "store", "release-type")
GROUP_OPTIONS = ("gpu-family", "build-variant")
ALL_OPTIONS = ("torch-ref", *GROUP_OPTIONS, *RUN_OPTIONS, "python", "force", "dry-run")
# Which data the project reads, and how much it prints, is of all verbs.
OPTIONS_OF_ALL = ("config-file", "verbose", "debug")
COMMON_TITLE = "what to run on"
_BUCKET = "s3://"
_VALUES_OF_OPTIONS = (
    "values_of_options"  # where a namespace keeps the values of options that can be given once
)
_VARIANT = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True, kw_only=True)
class Common:
    """What one stage runs on, as the command line says it; "" and None stand for defaults.

    A run is read from `read_store` where `store` lacks it. `external_repo` is the folder of the run's
    repository, ``{owner}-{repo}/``, in a bucket that several share. `platform` is the one that is built for:
    this machine's, except where a plan is resolved. A dry run that `takes_store_as_empty` does not read it.
    """

    torch_ref: str = ""
    config_file: Path | None = None  # where one is named
    gpu_family: str = ""
    build_variant: str = ""
    run_id: str = LOCAL_RUN
    store: str = DEFAULT_STORE
    read_store: str = ""
    external_repo: str = ""
    release_type: str = "ci"
    sources_dir: Path | None = None
    platform: Platform = field(default_factory=this_platform)
    python: Path | None = None
    force: bool = False
    dry_run: bool = False
    takes_store_as_empty: bool = False
    root: Path = ROOT

    def __post_init__(self) -> None:
        """Refuse a release type that there is not: of a variable, or of a flow."""
        if self.release_type not in RELEASE_TYPES:
            raise UsageError(
                f"{self.release_type!r} is not a release type. {nearest(self.release_type, RELEASE_TYPES)}",
                hint="Correct --release-type, or RELEASE_TYPE.",
            )

    @property
    def outputs(self) -> RunOutputs:
        """The paths of the run."""
        return RunOutputs(run_id=self.run_id, platform=self.platform, external_repo=self.external_repo)

    @property
    def artifact_group(self) -> str:
        """The folder of the named family in its build variant; "" where no family is named."""
        return group_name(self.gpu_family, self.build_variant)

    def open_store(self) -> Store:
        """Open the store that is written to; of a dry run the same each time, as it keeps its plan there."""
        if self.dry_run:
            return self._planned
        return open_store(self.store, root=self.root)

    @property
    def planned_status(self) -> Status:
        """Whether the dry run that has used this store would have changed it."""
        return self._planned.status

    @functools.cached_property
    def _planned(self) -> DryRunStore:
        if self.takes_store_as_empty:
            return DryRunStore.over_nothing(self.store)
        return DryRunStore(open_store(self.store, root=self.root))

    @property
    def endpoint(self) -> str | None:
        """The endpoint of the store that is written to, ``https://…``; None for none, or an unknown one."""
        return _endpoint(self.store, environment())

    def open_for_reading(self) -> Store:
        """Open the store that is written to, over the one where CI left the run, if there is one."""
        store = self.open_store()
        if not self.read_store:
            return store
        return OverlayStore(
            store,
            open_behind=lambda: open_store(self.read_store, root=self.root),
            location=self.read_store,
            endpoint=_endpoint(self.read_store, environment()),
        )

    @property
    def sources(self) -> Path:
        """Folder of the source trees, ``{ref}/{project}``: ``src/``, or on Windows a short path."""
        if self.sources_dir is not None:
            return self.root / self.sources_dir
        return Path("C:/b") if self.platform == "windows" else self.root / "src"

    @property
    def cache(self) -> Path:
        """Folder of what can be made again: the sample's repositories and artifacts, fetched wheels."""
        return self.root / ".cache"


class Once(argparse.Action):
    """An option that may be repeated but not contradicted, so that posargs cannot change a cell."""

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: object, option_string: str | None = None
    ) -> None:
        """Keep the value; refuse another one for the same option."""
        values_of_options = namespace.__dict__.setdefault(_VALUES_OF_OPTIONS, {})
        first_value = values_of_options.setdefault(self.dest, values)
        if first_value != values:
            parser.error(f"{option_string} is {first_value!r} here and cannot be {values!r} too")
        setattr(namespace, self.dest, values)


def is_given(arguments: Namespace, name: str) -> bool:
    """Return whether an option that can be given once was given, by the name of its value."""
    return name in getattr(arguments, _VALUES_OF_OPTIONS, ())


def add_from_run(parser: ArgumentParser, about: str) -> None:
    """Declare ``--from-run-id``, another name of ``--run-id`` where it need not be given."""
    parser.add_argument(
        "--from-run-id", dest="run_id", action=Once, default=argparse.SUPPRESS, metavar="ID", help=about
    )


def add_store_names(parser: ArgumentParser) -> None:
    """Declare ``--output-dir`` and ``--bucket``: other names of ``--store``, for verbs that write runs."""
    parser.add_argument(
        "--output-dir",
        dest="store",
        action=Once,
        default=argparse.SUPPRESS,
        metavar="DIR",
        help="the same as --store DIR",
    )
    parser.add_argument(
        "--bucket",
        dest="store",
        action=Once,
        default=argparse.SUPPRESS,
        type=_BUCKET.__add__,
        metavar="NAME",
        help="the same as --store s3://NAME",
    )


def add_group(parser: argparse._ActionsContainer, *, default: str = "the GPU family") -> None:
    """Declare ``--artifact-group``: which folder of a run's wheels."""
    parser.add_argument(
        "--artifact-group",
        default="",
        type=_artifact_group,
        metavar="GROUP",
        help=f"the run's group (default: {default})",
    )


def _artifact_group(text: str) -> str:
    """Return the group that an option names, of one family or several."""
    name = group_name(text)
    if text:
        require_key_segment(name, option="--artifact-group")
    return name


def add_platform(parser: argparse._ActionsContainer) -> None:
    """Declare ``--platform``: whose part of a run."""
    parser.add_argument(
        "--platform", choices=get_args(Platform), help="the run's platform (default: this machine's)"
    )


class WithoutEffect(argparse.Action):
    """An option of other verbs, which this one would take and ignore."""

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: object, option_string: str | None = None
    ) -> None:
        """Refuse the option."""
        del namespace, values
        parser.error(f"{option_string} has no effect here.")


def add_common(parser: ArgumentParser, names: Collection[str] = ALL_OPTIONS) -> None:
    """Declare the common options: those of these names, and refuse the others.

    Their values are there for `common_from` all the same.
    """
    group = parser.add_argument_group(COMMON_TITLE)
    for action in _common_parser()._actions:  # noqa: SLF001 - as `parents` of argparse does
        option, *_other_names = action.option_strings
        if option.removeprefix("--") in (*names, *OPTIONS_OF_ALL):
            group._add_action(action)  # noqa: SLF001 - see above
            continue
        parser.add_argument(
            *action.option_strings,
            action=WithoutEffect,
            dest=action.dest,
            nargs=action.nargs,
            default=action.default,
            help=argparse.SUPPRESS,
        )


def take_out_options_without_effect(
    parser: ArgumentParser, words: Sequence[str]
) -> tuple[list[str], frozenset[str]]:
    """Return words without the options that a verb refuses for want of an effect, and the names of these.

    ``--dry-run`` stays, as a session that does not know it would do its work.
    """
    refused_options = ArgumentParser(add_help=False, allow_abbrev=False)
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list of them
        if isinstance(action, WithoutEffect) and action.dest != "dry_run":
            is_flag = action.nargs == 0
            refused_options.add_argument(
                *action.option_strings,
                dest=action.option_strings[0],
                action="store_true" if is_flag else "store",
                default=None,
            )
    values, other_words = refused_options.parse_known_args(words)
    names = frozenset(name for name, value in vars(values).items() if value is not None)
    return other_words, names


def _common_parser() -> ArgumentParser:
    """Return a parser of all common options."""
    parser = ArgumentParser(add_help=False)
    add = parser.add_argument
    add(
        "--torch-ref",
        action=Once,
        default="",
        metavar="REF",
        help="torch ref, such as nightly or release/2.12 (default: nightly; for checks and tests the run's "
        "only one)",
    )
    add(
        "--config-file",
        "--refs-file",
        type=Path,
        metavar="FILE",
        help=f"data of your own (default: {CONFIG}'s, else {OWN_FILE} in the checkout)",
    )
    add(
        "--gpu-family",
        "--amdgpu-family",
        action=Once,
        default="",
        metavar="FAMILY",
        help="GPU family, or 'cpu' (default: the ref's own, else this machine's; for checks and tests the "
        "run's only one)",
    )
    add(
        "--build-variant",
        action=Once,
        default=PLAIN,
        metavar="NAME",
        help=f"build variant of the family, such as asan; each has an artifact group (default: {PLAIN})",
    )
    add(
        "--run-id",
        action=Once,
        default=LOCAL_RUN,
        metavar="ID",
        help="run whose outputs are used (default: local)",
    )
    add(
        "--store",
        action=Once,
        default=DEFAULT_STORE,
        metavar="STORE",
        help="where run outputs live: a folder, s3://BUCKET, or 'auto' for the bucket of the repository "
        "that CI runs for (default: out)",
    )
    add(
        "--release-type",
        default=os.environ.get("RELEASE_TYPE") or "ci",
        choices=RELEASE_TYPES,
        help="release type: which bucket, versions and limits apply (default: RELEASE_TYPE, else ci)",
    )
    add(
        "--python",
        type=Path,
        metavar="PATH",
        help="interpreter of the target environment (nox gives it)",
    )
    add("--force", action="store_true", help="do the work even if nothing has changed")
    add("--dry-run", action="store_true", help="say what would be written instead of writing it")
    add("--verbose", action="store_true", help="print everything that tools say, not only to logs")
    add("--debug", action="store_true", help="show the traceback of an error")
    return parser


def _endpoint(store: str, env: Mapping[str, str]) -> str | None:
    """Return a store's endpoint, without opening it; None where only its settings files say."""
    if not store.startswith(_BUCKET) or env.get("AWS_PROFILE"):
        return None
    endpoint = env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL")
    return endpoint or f"https://{store.removeprefix(_BUCKET)}.s3.amazonaws.com"


def common_from(arguments: Namespace) -> Common:
    """Turn parsed arguments into the value that stages get."""
    build_variant = "" if arguments.build_variant == PLAIN else arguments.build_variant
    if build_variant:
        require_key_segment(build_variant, option="--build-variant")
    if build_variant and not _VARIANT.fullmatch(build_variant):
        raise UsageError(f"--build-variant {build_variant!r}: invalid name.", hint="Write it like host-asan.")

    if arguments.gpu_family:
        require_key_segment(group_name(arguments.gpu_family), option="--gpu-family")
    if arguments.torch_ref:
        for segment in (*arguments.torch_ref.split("/"), key_name(arguments.torch_ref)):
            require_key_segment(segment, option="--torch-ref")

    # Installers and builds read it themselves: late, and with a traceback of theirs.
    source_date_epoch(environment())

    sources_dir = environment().get(SOURCES_DIR)
    common = Common(
        torch_ref=arguments.torch_ref,
        config_file=use_config_file(arguments.config_file),
        gpu_family=arguments.gpu_family,
        build_variant=build_variant,
        run_id=arguments.run_id,
        store=named_store(arguments.store) if is_given(arguments, "store") else arguments.store,
        release_type=arguments.release_type,
        python=arguments.python,
        force=arguments.force,
        dry_run=arguments.dry_run,
        platform=getattr(arguments, "platform", None) or this_platform(),
        sources_dir=Path(sources_dir) if sources_dir else None,
    )
    return with_run_location(common, environment(), is_store_named=is_given(arguments, "store"))


def named_store(location: str) -> str:
    """Return a store that an option names; a relative folder begins where the user stands."""
    is_folder = "://" not in location and location not in {"", AUTO_STORE}
    if is_folder and Path.cwd() != ROOT:
        return str(Path(location).absolute())
    return location


def with_run_location(common: Common, env: Mapping[str, str], *, is_store_named: bool) -> Common:
    """Complete where a run is written and read.

    A store that is named is used as it is, with the repository's folder where it is the bucket that
    the data names for the repository. ``auto`` is that bucket. Otherwise ``out/`` is written, and
    runs of CI, which have numbers, are read from that bucket, or from the store that the variable
    ``RUN_STORE`` names, where ``out/`` lacks them.
    """
    is_auto = common.store == AUTO_STORE
    if is_auto and common.run_id == LOCAL_RUN:
        raise UsageError(
            f"--store {AUTO_STORE} is for runs of CI.",
            hint="Name the run with --run-id, or a store of yours.",
        )

    is_default = common.store == DEFAULT_STORE
    is_run_of_ci = common.run_id.isascii() and common.run_id.isdigit()
    # Outside CI no bucket that is named has a folder for the repository.
    is_bucket_in_github_job = common.store.startswith(_BUCKET) and bool(env.get("GITHUB_REPOSITORY"))
    may_lie_in_ci_bucket = is_run_of_ci if is_default else is_bucket_in_github_job
    if not may_lie_in_ci_bucket and not is_auto:
        return common

    # Most calls are over before this data is needed.
    from core.run.locations import location, origin_from, run_buckets

    data = run_buckets()
    if not is_auto and common.release_type not in data.release_types:
        # Runs of this type have no bucket of their own, but RUN_STORE may say where one lies.
        may_use_run_store = is_default and not is_store_named
        return replace(common, read_store=env.get(RUN_STORE, "") if may_use_run_store else "")
    place = location(data, origin_from(env, data), common.release_type)
    if is_auto or common.store == place.store:
        return replace(common, store=place.store, external_repo=place.external_repo)
    if not is_default:
        return common

    read_store = env.get(RUN_STORE) or place.store
    return replace(
        common,
        read_store="" if is_store_named else read_store,
        external_repo=place.external_repo if read_store == place.store else "",
    )


def use_config_file(named_file: Path | None) -> Path | None:
    """Read data of the user's own from now on: of the file named, or that of CI_CONFIG, or `OWN_FILE`.

    A relative path begins where the user stands; that of the variable, which is set once, in the checkout.

    Returns:
        The file's whole path, where it is named; None where it is found, as it is by whoever comes next.
    """
    if named_file is not None:
        path = named_file.expanduser().absolute()
    else:
        path = ROOT / Path(environment().get(CONFIG) or OWN_FILE).expanduser()
    if not path.is_file() and path != ROOT / OWN_FILE:
        raise MissingInputError(f"{path} does not exist.", hint=f"Correct --config-file, or {CONFIG}.")
    if path != ROOT / OWN_FILE and (ROOT / OWN_FILE).is_file():
        console.detail(f"{path} is read in the place of {OWN_FILE}")

    # That module takes longer to import than many a verb to run.
    user_file = path if path.is_file() else None
    if user_file is not None or "core.data" in sys.modules:
        from core.data import use_user_file

        use_user_file(user_file)
    return None if named_file is None else path


def split_list(text: str) -> tuple[str, ...]:
    """Split a list that commas or semicolons separate."""
    names = map(str.strip, text.replace(";", ",").split(","))
    return tuple(filter(None, names))


def environment() -> Mapping[str, str]:
    """Return this process's environment, for front doors to pass on as a value."""
    return dict(os.environ)


def source_date_epoch(env: Mapping[str, str]) -> int | None:
    """Return SOURCE_DATE_EPOCH in seconds since 1970 UTC, the time that archives' members get; None if unset.

    Source: https://reproducible-builds.org/specs/source-date-epoch/.
    """
    text = env.get("SOURCE_DATE_EPOCH", "")
    if not text:
        return None
    if not text.isdecimal():
        raise UsageError(f"SOURCE_DATE_EPOCH={text} is not a number of seconds.", hint="Correct or unset it.")
    return int(text)
