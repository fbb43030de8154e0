"""Names of files in installations on Windows."""

from pathlib import Path


def listing(name: str) -> tuple[str, ...]:
    """Return the lines of a listing."""
    return tuple(
        (Path(__file__).parent / "listings" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    )
