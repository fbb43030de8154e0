"""Stores as ``--store`` names them."""

from pathlib import Path

from core.errors import UsageError
from core.stores import Store
from core.stores.directory import DirectoryStore
from core.stores.dry_run import DryRunStore


def open_store(location: str, *, root: Path, dry_run: bool = False) -> Store:
    """Open a store by what ``--store`` says: a folder (from `root`), ``s3://bucket`` or ``s3://bucket/prefix``.

    The usual AWS settings give endpoint, profile, region and credentials. In a dry run the store is read, and
    what would be written is printed.
    """
    if location.startswith("s3://"):
        from core.stores import s3  # with it comes botocore

        bucket = s3.open_bucket(location)
        return DryRunStore(bucket) if dry_run else bucket

    if "://" in location:
        raise UsageError(
            f"--store {location!r} is not a store that this version can open.",
            hint="Give a folder, or s3://bucket.",
        )

    directory = DirectoryStore((root / location).resolve())
    return DryRunStore(directory) if dry_run else directory
