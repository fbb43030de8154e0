"""What a revision was built from and what was installed of it, and what differs between two of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pydantic import Field

from ci.report.names import comparison_url
from core import files
from core.data import Model, compact
from core.shell import command_line

if TYPE_CHECKING:
    from core.run.plan import RocmOrigin
    from core.run.records import Record
    from pytorch_build.lock.source_lock import SourceLock

_GIT_VERSION = re.compile(r"(?m)^git_version\b.*['\"]([0-9a-f]{40})['\"]")
_ROCM_MANIFEST = "_rocm_sdk_core/share/therock/therock_manifest.json"
_THEROCK = "https://github.com/ROCm/TheRock"

OriginAndCommit: TypeAlias = tuple[str, str]
_NO_SOURCE: OriginAndCommit = ("", "none")

_DIGITS = 12  # of a commit or digest that are shown
_LONGEST_RULE = 60

# What inputs of a build are called for people.
_NAMES_OF_INPUTS: Mapping[str, str] = {
    "code": "build rules",
    "lock": "build requirements",
    "packaging": "artifacts and packaging rules",
}
# These are told by other differences.
_INPUTS_TOLD_ELSEWHERE = frozenset({"source", "version", "dependencies"})


class RevisionFacts(Model):
    """What a revision was built from, by origin and commit and by rules, and what was installed of it."""

    commits: dict[str, OriginAndCommit] = Field(default_factory=dict)
    packages: dict[str, str] = Field(default_factory=dict)
    rules: dict[str, str] = Field(default_factory=dict)


class FactChange(NamedTuple):
    """What differs between two revisions; of a repository with what lists its commits: a command, a page."""

    what: str
    good: str
    bad: str
    more: tuple[str, ...] = ()


def list_changes(good: RevisionFacts, bad: RevisionFacts) -> Sequence[FactChange]:
    """Return what differs between a good revision and a bad one: commits, rules, packages."""
    changes: list[FactChange] = []
    for name, bad_source in bad.commits.items():
        good_source = good.commits.get(name, _NO_SOURCE)
        if good_source != bad_source:
            changes.append(_changed_commit(name, good_source, bad_source))

    # Only builds that both have are compared.
    for name, good_rule in good.rules.items():
        bad_rule = bad.rules.get(name, good_rule)
        if bad_rule != good_rule:
            changes.append(FactChange(name, good_rule, bad_rule))
    changes += _changed_packages(good.packages, bad.packages)
    return changes


def _changed_packages(good: Mapping[str, str], bad: Mapping[str, str]) -> Iterator[FactChange]:
    """Yield the packages whose versions differ, unless one of the ends was not tested."""
    if not good or not bad:
        return
    for name in sorted({*good, *bad}):
        good_version = good.get(name, "none")
        bad_version = bad.get(name, "none")
        if good_version != bad_version:
            yield FactChange(f"installed {name}", good_version, bad_version)


def _changed_commit(name: str, good_source: OriginAndCommit, bad_source: OriginAndCommit) -> FactChange:
    """Return a change of commits, with what shows those between: a command, and a page if there is one."""
    good_origin, good_commit = good_source
    bad_origin, bad_commit = bad_source
    good_digits = good_commit[:_DIGITS]
    bad_digits = bad_commit[:_DIGITS]
    if good_origin != bad_origin:
        return FactChange(name, good_digits, bad_digits, (bad_origin,))
    if Path(bad_origin).is_absolute():
        folder = command_line([bad_origin])
        command = f"git -C {folder} log --oneline {good_digits}..{bad_digits}"
        return FactChange(name, good_digits, bad_digits, (command,))

    command = f"git log --oneline {good_digits}..{bad_digits}"
    page = comparison_url(bad_origin, good_commit, bad_commit) or bad_origin
    return FactChange(name, good_digits, bad_digits, (command, page))


# --- What is known of a revision


def commits_in(folder: Path) -> dict[str, OriginAndCommit]:
    """Return the commits that installed packages name: of torch and its siblings, and of ROCm's build."""
    commits: dict[str, OriginAndCommit] = {}
    for path in sorted(folder.glob("torch*/version.py")):
        text = path.read_text(encoding="utf-8")
        match = _GIT_VERSION.search(text)
        if match is not None:
            # The folders of torch's siblings are called torchaudio and torchvision.
            name = path.parent.name.removeprefix("torch") or "torch"
            commits[name] = ("", match[1])

    manifest_file = folder / _ROCM_MANIFEST
    if manifest_file.is_file():
        text = manifest_file.read_text(encoding="utf-8")
        commits |= _commits_of_rocm(json.loads(text))
    return commits


def _commits_of_rocm(manifest: Mapping[str, Any]) -> Mapping[str, OriginAndCommit]:
    """Return the commits that the manifest of a ROCm build names."""
    commits: dict[str, OriginAndCommit] = {}
    for submodule in manifest.get("submodules", ()):
        match submodule:
            case {
                "submodule_name": str(name),
                "submodule_url": str(url),
                "pin_sha": str(commit),
            }:
                commits[name] = (url, commit)
    match manifest.get("the_rock_commit"):
        case str(commit) if commit:
            commits["TheRock"] = (_THEROCK, commit)
    return commits


def facts_of_run(
    lock: SourceLock | None, origins: Iterable[RocmOrigin], build_records: Iterable[Record]
) -> RevisionFacts:
    """Return what a run's lock, the origin of its ROCm and its builds' records say."""
    commits: dict[str, OriginAndCommit] = {}
    rules: dict[str, str] = {}
    if lock is not None:
        rules["ROCm"] = lock.rocm_version
        for project in lock.projects.values():
            if project.prebuilt:
                rules[project.project] = project.prebuilt
            if project.commit:
                commits[project.project] = (project.origin, project.commit)
    for origin in origins:
        parts = (origin.repository, origin.run_id, origin.index_url)
        rules["origin of ROCm"] = " ".join(part for part in parts if part is not None)
    for build_record in build_records:
        rules |= _rules_of_build(build_record)
    return RevisionFacts(commits=commits, rules=rules)


def _rules_of_build(build_record: Record) -> Mapping[str, str]:
    """Return the inputs of a build by names for people; what is long is shown by its digest."""
    rules: dict[str, str] = {}
    inputs = {**build_record.inputs, "targets": build_record.details.get("families", "")}
    for key, value in inputs.items():
        if key in _INPUTS_TOLD_ELSEWHERE:
            continue
        default_name = key.replace("_", " ")
        name = _NAMES_OF_INPUTS.get(key, default_name)
        text = compact(value)
        if isinstance(value, str):
            text = value
        if len(text) >= _LONGEST_RULE:
            digest = files.digest_of(text)
            text = digest[:_DIGITS]
        rules[f"{build_record.stage}: {name}"] = text
    return rules
