"""Names of files in installations on Windows."""

from pathlib import Path

_FOLDER = Path(__file__).with_name("listings")


def listing(name: str) -> tuple[str, ...]:
    return tuple((_FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines())
