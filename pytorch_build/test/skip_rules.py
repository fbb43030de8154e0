"""Skip rules: the TOML files beside this module, and those of users.

``docs/testing.md`` tells how to write one.
"""

from __future__ import annotations

import datetime as dt  # noqa: TC003 - pydantic reads it
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, Field, model_validator

from core.data import Model, load_toml
from core.errors import MissingInputError, UsageError
from core.families import family
from pytorch_build.test.ids import Pattern, exact
from pytorch_build.test.plugin import Action  # noqa: TC001 - pydantic reads it

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
