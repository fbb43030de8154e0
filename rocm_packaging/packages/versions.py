"""ROCm versions: the forms that the project publishes, and nothing else.

=================  ===================================
release            ``10.1.0``
prerelease         ``10.1.0rc2``
nightly            ``10.1.0a20260822``
nightly-bkc        ``10.1.0a20260811+bkc.20260814``
all others         ``10.1.0.dev0+<git commit>``, ``10.1.0.dev0``
=================  ===================================
"""

import re
from datetime import date
from typing import Literal

from core.cli.options import RELEASE_TYPES
from core.errors import UsageError, nearest

Kind = Literal["release", "prerelease", "nightly", "nightly-bkc", "dev"]
_COMMIT = re.compile(r"[0-9a-f]{7,40}")

_BASE = r"(?P<base>(?:0|[1-9][0-9]*)(?:\.(?:0|[1-9][0-9]*)){2})"
_RELEASE = re.compile(_BASE)
_FORMS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("release", _RELEASE),
    ("prerelease", re.compile(_BASE + r"rc(?:0|[1-9][0-9]*)")),
    ("nightly", re.compile(_BASE + r"a(?P<date>[0-9]{8})")),
    (
        "nightly-bkc",
        re.compile(_BASE + r"a(?P<date>[0-9]{8})\+bkc\.(?P<bkc>[0-9]{8})"),
    ),
    ("dev", re.compile(_BASE + r"\.dev0(?:\+[0-9a-z]+(?:\.[0-9a-z]+)*)?")),
)


def parse(text: str) -> tuple[Kind, str]:
    """Read a ROCm version, of one of the forms above; return its kind, and the release that it leads to."""
    for kind, form in _FORMS:
        if match := form.fullmatch(text):
            groups = match.groupdict()
            for name in ("date", "bkc"):
                if name in groups:
                    _require_date(groups[name], text)
            return kind, groups["base"]
    raise UsageError(
        f"Invalid ROCm version {text!r}.",
        hint="Forms: 10.1.0, 10.1.0rc2, 10.1.0a20260822, 10.1.0a20260811+bkc.20260814, "
        "10.1.0.dev0, 10.1.0.dev0+<git commit in lower case>.",
    )


def require_valid(text: str) -> None:
    """Refuse a text that is no ROCm version, as `parse` does."""
    parse(text)


def release_of(text: str) -> str | None:
    """Return the release that a text begins with; None where it begins with none."""
    match = re.match(_BASE, text)
    return match["base"] if match else None


def _require_date(digits: str, version: str) -> None:
    try:
        date.fromisoformat(digits)
    except ValueError:
        message = f"Invalid ROCm version {version!r}: {digits} is not a date."
        raise UsageError(message, hint="Dates are YYYYMMDD.") from None


def compute_version(
    base: str,
    release_type: str,
    *,
    commit: str = "",
    day: date,
    candidate: int | None = None,
) -> str:
    """Compute the version of a build by its release type.

    ``ci`` and ``dev`` have the git commit that ROCm was built from, where it is known, a nightly build its
    day in UTC, and a prerelease the number of the candidate.
    """
    if not _RELEASE.fullmatch(base):
        raise UsageError(
            f"Invalid base version {base!r}.",
            hint="It has three numbers, such as 10.1.0.",
        )
    if candidate is not None and release_type != "prerelease":
        raise UsageError(
            f"A {release_type} version has no candidate number.",
            hint="Leave --rc out.",
        )
    match release_type:
        case "ci" | "dev" | "dev-bkc" | "rehearsal":
            if commit and not _COMMIT.fullmatch(commit):
                raise UsageError(
                    f"Invalid git commit {commit!r}.",
                    hint="It has 7 to 40 hexadecimal digits in lower case.",
                )
            text = f"{base}.dev0+{commit}" if commit else f"{base}.dev0"
        case "nightly":
            text = f"{base}a{day:%Y%m%d}"
        case "prerelease":
            if candidate is None or candidate < 0:
                raise UsageError("A prerelease needs a number.", hint="Set it with --rc N.")
            text = f"{base}rc{candidate}"
        case "release":
            text = base
        case "nightly-bkc":
            raise UsageError(
                "A nightly-bkc version has two dates: of the nightly that it is based on, and its own.",
                hint=f"Set the whole version: {base}a20260811+bkc.20260814.",
            )
        case _:
            raise UsageError(f"Unknown release type {release_type!r}. {nearest(release_type, RELEASE_TYPES)}")
    require_valid(text)
    return text


def choose_version(
    artifact_version: str,
    release_type: str,
    *,
    commit: str = "",
    day: date,
    candidate: int | None = None,
) -> str:
    """Choose the version of packages where none is given."""
    if not artifact_version:
        raise UsageError("The artifacts name no ROCm version.", hint="Set it with --version V.")
    if _RELEASE.fullmatch(artifact_version):
        return compute_version(
            artifact_version,
            release_type,
            commit=commit,
            day=day,
            candidate=candidate,
        )
    require_valid(artifact_version)
    return artifact_version
