"""What checks of wheels found, by one of its parts."""

from collections.abc import Iterable

from pytorch_build.check import Finding


def severities(findings: Iterable[Finding]) -> list[str]:
    """Return the severity of each finding."""
    return [finding.severity for finding in findings]


def messages(findings: Iterable[Finding]) -> list[str]:
    """Return what each finding says."""
    return [finding.message for finding in findings]


def members(findings: Iterable[Finding]) -> list[str]:
    """Return the member that each finding is about."""
    return [finding.where for finding in findings]


def errors_among(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that are errors."""
    return [finding for finding in findings if finding.severity == "error"]
