"""Names of files in installations on Windows, as those installations have them."""

from pathlib import Path

LISTINGS = Path(__file__).with_name("listings")


def read_listing(name: str) -> tuple[str, ...]:
    """Return the paths of an installation's files: ``rocm-10.0.0-windows``, ``torch-2.14-windows``, …"""
    return tuple((LISTINGS / f"{name}.txt").read_text(encoding="utf-8").splitlines())
