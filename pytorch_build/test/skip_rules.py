"""Skip rules: the TOML files in ``skips/`` and those of users, and which of them apply to what is tested.

A rule names tests by pytest's node ids, their paths relative to the checkout:
``test/test_nn.py::TestNN::test_conv[a-1]``. ``*`` and ``?`` are those of `fnmatch`, and cross every border;
brackets are an id's own. ``docs/testing.md`` describes how to write a rule.
"""

import datetime as dt
import re
from collections import Counter
from collections.abc import Collection, Sequence
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
from pytorch_build.test.plugin import Action, AppliedRule, matches

RULES_FOLDER = Path(__file__).with_name("skips")
ANY_GPU = "any"  # every GPU family, but not cpu
RETRIES = 2
# What takes this test takes any.
_ANY_TEST = "test/any/folder/test_of_nothing.py::TestOfNothing::test_nothing"
_NAME = r"^[a-z0-9]+(?:[-_.][a-z0-9]+)*$"


def _require_specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError(f"{text!r} is not a version specifier such as '>=2.9,<2.11'.") from None
    return text


def _require_gpu_family(name: str) -> str:
    try:
        _ = name == ANY_GPU or family(name)
    except UsageError as problem:
        raise ValueError(f"{problem.message} ('{ANY_GPU}' is every GPU.)") from None
    return name


def _require_reason(text: str) -> str:
    if len(text.split()) < 2:  # noqa: PLR2004 - "broken" is what every skipped test is
        raise ValueError("the reason must say what goes wrong, in a sentence.")
    return text


def _require_issue(text: str) -> str:
    if not re.fullmatch(r"https://[^\s/]+/\S+|[\w.-]+/[\w.-]+#\d+", text):
        raise ValueError(f"{text!r} is not a link (https://…) or OWNER/REPOSITORY#NUMBER.")
    return text


def _require_test_pattern(pattern: str) -> str:
    path, separator, names = pattern.partition("::")
    if not separator or not names or not path.endswith((".py", "*")):
        raise ValueError(
            f"{pattern!r} is not a test id such as test/test_nn.py::TestNN::test_conv. "
            f"For tests of that name in any file, write *::{pattern.removeprefix('::')}."
        )
    if "\\" in path or path.startswith(("/", ".")):
        raise ValueError(f"{pattern!r}: the path is written from the checkout on, with '/'.")
    if matches(pattern, _ANY_TEST):
        raise ValueError(f"{pattern!r} takes every test: name a file, a class or a test.")
    return pattern


Specifier = Annotated[str, AfterValidator(_require_specifier)]
Retries = Annotated[
    int,
    Field(
        ge=1,
        le=5,
    ),
]
NonEmpty = Field(
    default=(),
    min_length=1,
)


class RuleTable(Model):
    """One ``[rules.NAME]`` table: tests, conditions that must all hold, and why.

    A condition that is absent always holds; a list holds where one of its entries does.
    """

    tests: tuple[Annotated[str, AfterValidator(_require_test_pattern)], ...] = Field(min_length=1)
    action: Action = "skip"
    retries: Retries | None = None
    reason: Annotated[str, AfterValidator(_require_reason)]
    issue: Annotated[str, AfterValidator(_require_issue)] | None = None
    expires: dt.date | None = None
    gpu: tuple[Annotated[str, AfterValidator(_require_gpu_family)], ...] = NonEmpty
    os: tuple[Literal["linux", "windows"], ...] = NonEmpty
    python: Specifier | None = None
    torch: Specifier | None = None
    torch_ref: tuple[str, ...] = NonEmpty
    config: tuple[Literal["default", "distributed", "inductor"], ...] = NonEmpty

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        for test, count in Counter(self.tests).items():
            if count > 1:
                raise ValueError(f"{test!r} is there twice.")
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

    def names_test(self, test: str) -> bool:
        """Return whether it names a test."""
        return any(matches(pattern, test) for pattern in self.table.tests)

    def names_file(self, file: str) -> bool:
        """Return whether it names a test file, and not tests in any file."""
        for pattern in self.table.tests:
            path = pattern.partition("::")[0]
            if path.endswith(".py") and matches(path, file):
                return True
        return False

    @property
    def expiry(self) -> str:
        """When it expired, and what it is for, in words."""
        return f"{self.name} expired on {self.table.expires}: {self.table.reason}"

    def is_expired(self, today: dt.date) -> bool:
        """Return whether its last day has passed."""
        return self.table.expires is not None and self.table.expires < today

    def to_applied_rule(self) -> AppliedRule:
        """Return the rule as the plugin takes it, whatever its conditions say."""
        table = self.table
        reason = table.reason
        if table.issue:
            reason += f" ({table.issue})"
        retries = 0
        if table.action == "retry":
            retries = table.retries or RETRIES
        return AppliedRule(
            name=self.name,
            action=table.action,
            reason=reason,
            retries=retries,
            tests=table.tests,
        )


def current_date() -> dt.date:
    """Return the day by which rules expire."""
    return dt.datetime.now(tz=dt.UTC).date()


def load_rules(user_paths: Sequence[Path] = (), folder: Path = RULES_FOLDER) -> Sequence[Rule]:
    """Read the rules: the project's own, then TOML files of the user's, or folders of them."""
    rules: dict[str, Rule] = {}
    for path in (folder, *user_paths):
        files = sorted(path.glob("*.toml")) if path.is_dir() else [path]
        if not files:
            raise MissingInputError(f"{path} holds no skip rules (*.toml).")
        for file in files:
            for key, table in load_toml(file, RulesFile).rules.items():
                rule = Rule(
                    file=file,
                    key=key,
                    table=table,
                )
                if rule.name in rules:
                    raise UsageError(
                        f"Skip rule {rule.name} is in {rules[rule.name].file} and in {file}.",
                        hint="Give one of the files another name.",
                    )
                rules[rule.name] = rule
    return tuple(rules.values())


def find_silent_rules(
    rules: Sequence[Rule],
    files: Collection[str],
    matched: Collection[str],
) -> Sequence[Rule]:
    """Return the rules that took no test in a run, although it had files that they name."""
    silent: list[Rule] = []
    for rule in rules:
        names_files = any(rule.names_file(file) for file in files)
        if names_files and rule.name not in matched:
            silent.append(rule)
    return silent


@dataclass(frozen=True, kw_only=True)
class TestedTorch:
    """The torch that is tested, and what on, as far as rules have conditions for it."""

    __test__ = False

    gpu_targets: tuple[str, ...]
    platform: str
    python: str
    torch: str
    torch_ref: str = ""
    config: str = "default"


def unmet_conditions(rule: Rule, tested: TestedTorch) -> tuple[str, ...]:
    """Return the conditions of a rule that do not hold, a sentence each."""
    table = rule.table
    sentences: list[str] = []

    def require(
        condition: str,
        value: str,
        *,
        holds: bool,
    ) -> None:
        if condition and not holds:
            sentences.append(f"it is for {condition}, and this is {value}")

    # One target in common is enough: a rule for gfx942 holds for a family that has it.
    names = table.gpu if tested.gpu_targets else ()
    holds_for_gpu = any(
        name == ANY_GPU or not set(gpu_targets(name)).isdisjoint(tested.gpu_targets) for name in names
    )
    gpus = " or ".join("any GPU" if name == ANY_GPU else name for name in table.gpu)
    require(
        gpus,
        " or ".join(tested.gpu_targets) or CPU,
        holds=holds_for_gpu if tested.gpu_targets else CPU in table.gpu,
    )
    require(
        " or ".join(table.os),
        tested.platform,
        holds=tested.platform in table.os,
    )
    require(
        _describe_condition("Python", table.python),
        tested.python,
        holds=_contains_release(table.python, tested.python),
    )
    require(
        _describe_condition("torch", table.torch),
        tested.torch,
        holds=_contains_release(table.torch, tested.torch),
    )
    torch_refs = _describe_condition("the torch ref", " or ".join(table.torch_ref))
    is_of_ref = any(fnmatchcase(tested.torch_ref, pattern) for pattern in table.torch_ref)
    require(
        torch_refs,
        tested.torch_ref or "none of ours",
        holds=is_of_ref,
    )
    require(
        _describe_condition("the configuration", " or ".join(table.config)),
        tested.config,
        holds=tested.config in table.config,
    )
    return tuple(sentences)


def _describe_condition(kind: str, condition: str | None) -> str:
    """Return a condition in words; "" where there is none."""
    return f"{kind} {condition}" if condition else ""


def _contains_release(specifier: str | None, version: str) -> bool:
    """Return whether a version's release meets a specifier; one of 2.10 takes its nightlies, too."""
    if not specifier:
        return True
    release = Version(version).base_version
    return SpecifierSet(specifier).contains(Version(release))


def apply_rules(
    rules: Sequence[Rule],
    tested: TestedTorch,
    today: dt.date,
) -> tuple[AppliedRule, ...]:
    """Return the rules that apply, as the plugin takes them; refuse expired ones."""
    applied_rules: list[AppliedRule] = []
    sentences: list[str] = []
    for rule in rules:
        if unmet_conditions(rule, tested):
            continue
        applied_rules.append(rule.to_applied_rule())
        if rule.is_expired(today):
            sentences.append(f"{rule.file}: {rule.expiry}")
    if sentences:
        raise DataError(
            "\n".join(sentences),
            hint="Remove it and see whether its tests pass now, or give it a reason to stay and a later day.",
        )
    return tuple(applied_rules)
