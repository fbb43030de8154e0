"""Skip rules: the TOML files in ``skips/`` and those of users, and which of them apply to what is tested.

``docs/testing.md`` describes how to write one.
"""

import datetime as dt
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal, Self

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version
from pydantic import AfterValidator, Field, model_validator

from core.data import Model, load_toml
from core.errors import DataError, MissingInputError, UsageError
from core.families import CPU, family, gpu_targets
from pytorch_build.test.ids import Pattern, exact
from pytorch_build.test.plugin import Action, PlannedRule

FOLDER = Path(__file__).with_name("skips")
ANY_GPU = "any"  # every GPU family, but not cpu
RETRIES = 2
_NAME = r"^[a-z0-9]+(?:[-_.][a-z0-9]+)*$"


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError(f"{text!r} is not a version specifier such as '>=2.9,<2.11'.") from None
    return text


def _gpu(name: str) -> str:
    try:
        _ = name == ANY_GPU or family(name)
    except UsageError as problem:
        raise ValueError(f"{problem.message} ('{ANY_GPU}' is every GPU.)") from None
    return name


def _reason(text: str) -> str:
    if len(text.split()) < 2:  # noqa: PLR2004 - "broken" is what every skipped test is
        raise ValueError("the reason must say what goes wrong, in a sentence.")
    return text


def _issue(text: str) -> str:
    if not re.fullmatch(r"https://[^\s/]+/\S+|[\w.-]+/[\w.-]+#\d+", text):
        raise ValueError(f"{text!r} is not a link (https://…) or OWNER/REPOSITORY#NUMBER.")
    return text


Specifier = Annotated[str, AfterValidator(_specifier)]
NonEmpty = Field(default=(), min_length=1)


class RuleTable(Model):
    """One ``[rules.NAME]`` table: tests, conditions that must all hold, and why.

    A condition that is absent always holds; a list holds where one of its entries does.
    """

    tests: tuple[Annotated[str, AfterValidator(exact)], ...] = ()
    patterns: tuple[Annotated[str, AfterValidator(lambda text: Pattern.parse(text).text)], ...] = ()
    action: Action = "skip"
    retries: Annotated[int, Field(ge=1, le=5)] | None = None
    reason: Annotated[str, AfterValidator(_reason)]
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
        listed = [*self.tests, *self.patterns]
        if not listed:
            raise ValueError("the rule names no test: give 'tests' or 'patterns'.")
        if twice := sorted(one for one, count in Counter(listed).items() if count > 1):
            raise ValueError(f"{twice[0]!r} is there twice.")
        if self.retries is not None and self.action != "retry":
            raise ValueError("'retries' is for action = \"retry\".")
        if self.action == "retry" and not (self.issue or self.expires):
            raise ValueError("a test that is retried must not be forgotten: give 'issue' or 'expires'.")
        return self


class RulesFile(Model):
    """A file of skip rules."""

    rules: dict[Annotated[str, Field(pattern=_NAME)], RuleTable] = Field(min_length=1)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule: its file, its table's name there, and the table."""

    file: Path
    key: str
    table: RuleTable

    @property
    def name(self) -> str:
        """File and table, as people refer to it: ``cuda.mempool``."""
        return f"{self.file.stem}.{self.key}"

    @property
    def entries(self) -> tuple[str, ...]:
        """Its exact ids and patterns, in their order."""
        return (*self.table.tests, *self.table.patterns)

    def expired(self, today: dt.date) -> bool:
        """Whether its last day has passed."""
        return self.table.expires is not None and self.table.expires < today

    def planned(self) -> PlannedRule:
        """Return it as the plugin takes it, whatever its conditions say."""
        table = self.table
        return PlannedRule(
            name=self.name,
            action=table.action,
            reason=f"{table.reason} ({table.issue})" if table.issue else table.reason,
            retries=(table.retries or RETRIES) if table.action == "retry" else 0,
            tests=table.tests,
            patterns={one: Pattern.parse(one).regex for one in table.patterns},
        )


def load(more: Sequence[Path] = (), folder: Path = FOLDER) -> Sequence[Rule]:
    """Read the rules: the project's own, then TOML files of the user's, or folders of them."""
    found: dict[str, Rule] = {}
    for path in (folder, *more):
        files = sorted(path.glob("*.toml")) if path.is_dir() else [path]
        if not files:
            raise MissingInputError(f"{path} holds no skip rules (*.toml).")
        for file in files:
            for key, table in load_toml(file, RulesFile).rules.items():
                rule = Rule(file=file, key=key, table=table)
                if rule.name in found:
                    raise UsageError(
                        f"Skip rule {rule.name} is in {found[rule.name].file} and in {file}.",
                        hint="Give one of the files another name.",
                    )
                found[rule.name] = rule
    return tuple(found.values())


@dataclass(frozen=True, kw_only=True)
class UnderTest:
    """What is tested, as far as rules have conditions for it."""

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
    return [Decision(rule=one, unmet=unmet(one, tested), expired=one.expired(today)) for one in rules]


def unmet(rule: Rule, tested: UnderTest) -> tuple[str, ...]:
    """List the conditions of a rule that do not hold, a sentence each."""
    table, targets = rule.table, tested.gpu_targets
    gpus = " or ".join("any GPU" if name == ANY_GPU else name for name in table.gpu)
    refs, configs = " or ".join(table.torch_ref), " or ".join(table.config)
    # the condition, whether it holds, and what is tested
    conditions = (
        (gpus, _gpu_holds(table.gpu, targets), " or ".join(targets) or CPU),
        (" or ".join(table.os), tested.platform in table.os, tested.platform),
        (_of("Python", table.python), _contains(table.python, tested.python), tested.python),
        (_of("torch", table.torch), _contains(table.torch, tested.torch), tested.torch),
        (
            _of("the torch ref", refs),
            any(fnmatchcase(tested.torch_ref, one) for one in table.torch_ref),
            tested.torch_ref or "none of ours",
        ),
        (_of("the configuration", configs), tested.config in table.config, tested.config),
    )
    return tuple(
        f"it is for {wanted}, and this is {given}"
        for wanted, holds, given in conditions
        if wanted and not holds
    )


def _of(kind: str, condition: str | None) -> str:
    return f"{kind} {condition}" if condition else ""


def _gpu_holds(names: Sequence[str], targets: Sequence[str]) -> bool:
    """Compare targets; one in common is enough: a rule for gfx942 holds for a family that has it."""
    if not targets:
        return CPU in names
    return any(name == ANY_GPU or set(gpu_targets(name)) & set(targets) for name in names)


def _contains(specifier: str | None, version: str) -> bool:
    """Compare releases: a nightly or a candidate of 2.10 has what 2.10 will have."""
    return not specifier or SpecifierSet(specifier).contains(Version(Version(version).base_version))


def planned(rules: Sequence[Rule], tested: UnderTest, today: dt.date) -> tuple[PlannedRule, ...]:
    """Return the rules that apply, as the plugin takes them; refuse expired ones."""
    applying = [one for one in decide(rules, tested, today) if one.applies]
    if late := [one.rule for one in applying if one.expired]:
        raise DataError(
            "\n".join(
                f"{one.file}: {one.name} expired on {one.table.expires}: {one.table.reason}" for one in late
            ),
            hint="See whether its tests pass now (test_torch -- --skip-rules check --try), then remove it "
            "(--skip-rules prune) or give it a reason to stay and a later day.",
        )
    return tuple(one.rule.planned() for one in applying)
