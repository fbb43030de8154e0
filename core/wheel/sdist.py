"""The metadata of an sdist, read from its archive without unpacking it."""

from email.parser import BytesParser
from pathlib import Path

from core import files
from core.archive.tar import GZIP, HashedSource, TarLimits, TarStream
from core.errors import ArtifactError, MachineError, StoreError, WheelError
from core.wheel import parse_name

_LARGEST_METADATA = 16 << 20
# Sources of PyTorch, with their tests and third parties, have some GB.
_LIMITS = TarLimits(max_bytes=16 << 30, max_members=1_000_000)


def read_requires_python(path: Path) -> str:
    """Return which versions of Python an sdist asks for; "" for any.

    Raises:
        WheelError: It is no sdist of the name and version in its file name.
    """
    fields = BytesParser().parsebytes(_read_metadata(path), headersonly=True)
    _require_name(path, str(fields.get("Name", "")), str(fields.get("Version", "")))
    return str(fields.get("Requires-Python", ""))


def _read_metadata(path: Path) -> bytes:
    """Return PKG-INFO, the first of an sdist's files in most: nothing behind it is read."""
    try:
        with files.open_regular(path, largest=files.LARGEST_ARCHIVE) as stream:
            source = HashedSource(stream, name=path.name)
            archive = TarStream(source, GZIP, name=path.name, limits=_LIMITS)
            for member in archive.members():
                is_metadata = member.name.count("/") == 1 and member.name.endswith("/PKG-INFO")
                if not is_metadata or member.kind != "file":
                    continue
                if member.size > _LARGEST_METADATA:
                    raise WheelError(f"{path.name}: PKG-INFO declares {member.size} bytes.")
                return archive.data()
    except MachineError as problem:
        raise WheelError(problem.message, hint=problem.hint) from problem
    except (ArtifactError, StoreError) as problem:
        raise WheelError(f"{problem.message} It is no sdist.", hint=problem.hint) from problem
    raise WheelError(f"{path.name} is not an sdist: it holds no PKG-INFO.")


def _require_name(path: Path, name: str, version: str) -> None:
    """Refuse an sdist whose metadata contradicts its name."""
    if not parse_name(path.name).is_of_release(name, version):
        raise WheelError(
            f"{path.name}: PKG-INFO says {name} {version}.",
            hint="A file is renamed by rewriting its metadata, not by its name alone.",
        )
