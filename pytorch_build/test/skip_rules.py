"""Skip rules: the TOML files beside this module, and those of users.

``docs/testing.md`` tells how to write one.
"""

from __future__ import annotations

import datetime as dt  # noqa: TC003 - pydantic reads it
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version
from pydantic import AfterValidator, Field, model_validator

from core.data import Model, load_toml
from core.errors import DataError, MissingInputError, UsageError
from core.families import CPU, family, gpu_targets
from pytorch_build.test.ids import Pattern, exact
from pytorch_build.test.plugin import (
    Action,
    PlannedRule,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


FOLDER = Path(__file__).with_name("skips")
ANY_GPU = "any"  # every GPU family, but not cpu

_NAME = r"^[a-z0-9]+(?:[-_.][a-z0-9]+)*$"
_ISSUE = re.compile(r"https://[^\s/]+/\S+|[\w.-]+/[\w.-]+#\d+")


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError(f"{text!r} is no version specifier such as '>=2.9,<2.11'.") from None
    return text


def _gpu(name: str) -> str:
    if name != ANY_GPU:
        try:
            family(name)
        except UsageError as problem:
            raise ValueError(f"{problem.message} ('{ANY_GPU}' is every GPU.)") from None
    return name


def _pattern(text: str) -> str:
    return Pattern.parse(text).text


def _said(text: str) -> str:
    if len(text.split()) < 2:  # noqa: PLR2004 - "broken" is what every skipped test is
        raise ValueError("the reason must say what goes wrong, in a sentence.")
    return text


def _issue(text: str) -> str:
    if not _ISSUE.fullmatch(text):
        raise ValueError(f"{text!r} is no link (https://…) and no OWNER/REPOSITORY#NUMBER.")
    return text


Specifier = Annotated[str, AfterValidator(_specifier)]
NonEmpty = Field(default=(), min_length=1)


class RuleTable(Model):
    """One ``[rules.NAME]`` table: tests, conditions that must all hold, and why.

    A condition that is absent always holds; a list holds where one of its entries does.
    """

    tests: tuple[Annotated[str, AfterValidator(exact)], ...] = ()
    patterns: tuple[Annotated[str, AfterValidator(_pattern)], ...] = ()
    action: Action = "skip"
    retries: Annotated[int, Field(ge=1, le=5)] | None = None
    reason: Annotated[str, AfterValidator(_said)]
    issue: Annotated[str, AfterValidator(_issue)] | None = None
    expires: dt.date | None = None
    gpu: tuple[Annotated[str, AfterValidator(_gpu)], ...] = NonEmpty
    os: tuple[Literal["linux", "windows"], ...] = NonEmpty
    python: Specifier | None = None
    torch: Specifier | None = None
    torch_ref: tuple[str, ...] = NonEmpty
    config: tuple[Literal["default", "distributed", "inductor"], ...] = NonEmpty

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if not self.tests and not self.patterns:
            raise ValueError("the rule names no test: give 'tests' or 'patterns'.")
        listed = [*self.tests, *self.patterns]
        twice = sorted({one for one in listed if listed.count(one) > 1})
        if twice:
            raise ValueError(f"{twice[0]!r} is there twice.")
        if self.retries is not None and self.action != "retry":
            raise ValueError("'retries' is for action = \"retry\".")
        if self.action == "retry" and not (self.issue or self.expires):
            raise ValueError("a test that is tried again must not be forgotten: give 'issue' or 'expires'.")
        return self


class RulesFile(Model):
    """A file of skip rules."""

    rules: dict[Annotated[str, Field(pattern=_NAME)], RuleTable] = Field(min_length=1)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule with its place.

    Attributes:
        file: The file it stands in.
        key: Its table's name in that file.
        table: What it says.
    """

    file: Path
    key: str
    table: RuleTable

    @property
    def name(self) -> str:
        """File and table, as people refer to it: ``cuda.mempool``."""
        return f"{self.file.stem}.{self.key}"

    def takes(self, test: str) -> bool:
        """Whether it names this test, whatever its conditions say."""
        return test in self.table.tests or any(
            Pattern.parse(one).matches(test) for one in self.table.patterns
        )


def load(more: Sequence[Path] = (), folder: Path = FOLDER) -> Sequence[Rule]:
    """Read the rules: the project's own, then files or folders of the user's.

    Args:
        more: TOML files, or folders of them.
        folder: Where the project's own are.

    Raises:
        MissingInputError: A file or folder is not there, or a folder holds no TOML file.
        DataError: A file breaks the schema; the message holds every problem with its key path.
        UsageError: Two files give rules of the same name.
    """
    found: dict[str, Rule] = {}
    for path in (folder, *more):
        for file in _files(path):
            for key, table in load_toml(file, RulesFile).rules.items():
                rule = Rule(file=file, key=key, table=table)
                if rule.name in found:
                    raise UsageError(
                        f"Skip rule {rule.name} is in {found[rule.name].file} and in {file}.",
                        hint="Give one of the files another name.",
                    )
                found[rule.name] = rule
    return tuple(found.values())


def _files(path: Path) -> Sequence[Path]:
    files = sorted(path.glob("*.toml")) if path.is_dir() else [path]
    if not files:
        raise MissingInputError(f"{path} holds no skip rules (*.toml).")
    return files


RETRIES = 2


@dataclass(frozen=True, kw_only=True)
class UnderTest:
    """What is tested, as far as rules ask."""

    gpu_targets: tuple[str, ...]
    platform: str
    python: str
    torch: str
    torch_ref: str = ""
    config: str = "default"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether a rule applies."""

    rule: Rule
    unmet: tuple[str, ...]
    expired: bool

    @property
    def applies(self) -> bool:
        """Whether every condition holds."""
        return not self.unmet


def decide(rules: Sequence[Rule], tested: UnderTest, today: dt.date) -> Sequence[Decision]:
    """Decide about every rule."""
    return [Decision(rule=rule, unmet=unmet(rule, tested), expired=expired(rule, today)) for rule in rules]


def expired(rule: Rule, today: dt.date) -> bool:
    """Whether a rule's last day has passed."""
    return rule.table.expires is not None and rule.table.expires < today


def unmet(rule: Rule, tested: UnderTest) -> tuple[str, ...]:
    """Say which of a rule's conditions do not hold, a sentence each."""
    table = rule.table
    found = []
    if table.gpu and not _gpu_holds(table.gpu, tested.gpu_targets):
        gpus = ["any GPU" if name == ANY_GPU else name for name in table.gpu]
        found.append(f"it is for {_listed(gpus)}, and this is {_listed(tested.gpu_targets) or CPU}")
    if table.os and tested.platform not in table.os:
        found.append(f"it is for {_listed(table.os)}, and this is {tested.platform}")
    if table.python and not _contains(table.python, tested.python):
        found.append(f"it is for Python {table.python}, and this is {tested.python}")
    if table.torch and not _contains(table.torch, tested.torch):
        found.append(f"it is for torch {table.torch}, and this is {tested.torch}")
    if table.torch_ref and not any(fnmatchcase(tested.torch_ref, one) for one in table.torch_ref):
        found.append(f"it is for the torch ref {_listed(table.torch_ref)}, and this is {_ref(tested)}")
    if table.config and tested.config not in table.config:
        found.append(f"it is for the configuration {_listed(table.config)}, and this is {tested.config}")
    return tuple(found)


def _ref(tested: UnderTest) -> str:
    return tested.torch_ref or "none of ours"


def _gpu_holds(names: Sequence[str], targets: Sequence[str]) -> bool:
    """One target in common is enough: a rule for gfx942 holds for a family that has it."""
    for name in names:
        if name == ANY_GPU and targets:
            return True
        if name == CPU and not targets:
            return True
        if name != ANY_GPU and set(gpu_targets(name)) & set(targets):
            return True
    return False


def _contains(specifier: str, version: str) -> bool:
    """Compare releases: a nightly or a candidate of 2.10 has what 2.10 will have."""
    return SpecifierSet(specifier).contains(Version(Version(version).base_version))


def _listed(words: Sequence[str]) -> str:
    return " or ".join(words)


def planned(rules: Sequence[Rule], tested: UnderTest, today: dt.date) -> tuple[PlannedRule, ...]:
    """Give the rules that apply, as the plugin takes them."""
    applying = [one for one in decide(rules, tested, today) if one.applies]
    refuse_expired([one.rule for one in applying if one.expired])
    return tuple(planned_rule(one.rule) for one in applying)


def planned_rule(rule: Rule) -> PlannedRule:
    """Give a rule as the plugin takes it, whatever its conditions say."""
    table = rule.table
    issue = f" ({table.issue})" if table.issue else ""
    return PlannedRule(
        name=rule.name,
        action=table.action,
        reason=f"{table.reason}{issue}",
        retries=(table.retries or RETRIES) if table.action == "retry" else 0,
        tests=table.tests,
        patterns=tuple(Pattern.parse(one).regex for one in table.patterns),
    )


def refuse_expired(rules: Sequence[Rule]) -> None:
    """Refuse rules whose last day has passed."""
    if rules:
        lines = [
            f"{one.file}: {one.name} expired on {one.table.expires}: {one.table.reason}" for one in rules
        ]
        raise DataError(
            "\n".join(lines),
            hint="See whether its tests pass now (nox -s skips -- check --try), then remove it "
            "(nox -s skips -- prune) or give it a reason to stay and a later day.",
        )
