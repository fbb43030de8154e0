"""ROCm's distributions in this environment: their versions, and their RECORD files."""

import csv
import hashlib
import io
import re

from . import _dist_info


def rocm_distributions():
    """Return ROCm's installed distributions by normalized name, sorted."""
    from importlib import (
        metadata,
    )  # compilers are started through here, which seldom need it

    distributions = {}
    for distribution in metadata.distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        if name == "rocm" or name.startswith(("rocm-sdk-", "rocm-profiler")):
            # The first on the path is the one that is imported.
            distributions.setdefault(name, distribution)
    return dict(sorted(distributions.items()))


def without_post(version):
    """Return a version without what only a repackaging changes."""
    return re.sub(r"\.post\d+", "", version)


def require_one_version():
    """Refuse packages of several ROCm versions: their libraries have different names and contents.

    An installation with `--no-deps`, or an upgrade of some packages, leaves such an environment.

    Raises:
        RuntimeError: It names each package of another version than `rocm`.
    """
    version = _dist_info.__version__
    other_versions = {}
    for name, distribution in rocm_distributions().items():
        if without_post(distribution.version) != without_post(version):
            other_versions[name] = distribution.version
    if not other_versions:
        return

    packages = ", ".join(" ".join(package) for package in other_versions.items())
    requirements = " ".join(f"{name}=={version}" for name in other_versions)
    raise RuntimeError(
        f"{packages} cannot be used with rocm {version}: all packages of ROCm must have one version. "
        f"Please install the matching ones: pip install {requirements}"
    )


def find_record(site, package):
    """Return the RECORD of a distribution in a folder of packages.

    Raises:
        RuntimeError: There is none, or an interrupted upgrade has left several.
    """
    name = package.replace("-", "_")
    records = sorted(site.glob(f"{name}-*.dist-info/RECORD"))
    if len(records) != 1:
        raise RuntimeError(
            f"{site} holds {len(records)} RECORD files of {name}, not one"
        )
    return records[0]


def record_digest(site, package):
    """Return the SHA-256 of a distribution's RECORD, which has a digest of each of its files.

    It tells one installation from the next, and, unlike inodes and times, it survives copying: layers of an
    image, another disk. None where the distribution has no RECORD.
    """
    try:
        record = find_record(site, package)
    except RuntimeError:
        return None
    return hashlib.sha256(record.read_bytes()).hexdigest()


def recorded_paths(record):
    """Return the paths that a distribution was installed with; what was added later has no digest."""
    rows = csv.reader(io.StringIO(record.read_text(encoding="utf-8")))
    return [row[0] for row in rows if row and row[1]]


def add_to_record(record, paths):
    """Add paths to a RECORD, so that an uninstall removes them."""
    text = record.read_text(encoding="utf-8")
    recorded = {row[0] for row in csv.reader(io.StringIO(text)) if row}
    new_paths = [path for path in paths if path not in recorded]
    if not new_paths:
        return

    rows = io.StringIO()
    if text and not text.endswith("\n"):
        rows.write("\n")
    csv.writer(rows, lineterminator="\n").writerows(
        (path, "", "") for path in new_paths
    )
    # In place, and in one write: the lock is held on this very file.
    with open(record, "a", encoding="utf-8", newline="") as stream:
        stream.write(rows.getvalue())
