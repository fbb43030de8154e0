import random
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.archive.zips import chunks, read_archive
from core.errors import WheelError
from tests.kit import zip_files
from tests.kit.zip_files import MODULE, write_form


@pytest.mark.parametrize("form", zip_files.ACCEPTED)
def test_reads_what_installers_accept(tmp_path: Path, form: str) -> None:
    wheel = write_form(tmp_path, zip_files.ACCEPTED[form])

    archive = read_archive(wheel)

    assert archive.read(archive.by_name["demo/__init__.py"]) == MODULE.content
    with wheel.open("rb") as stream:
        for member in archive.members:
            assert sum(len(chunk) for chunk in chunks(stream, member)) == member.size


@pytest.mark.parametrize("form", zip_files.REFUSED)
def test_refuses_what_installers_refuse_by_the_name_of_the_file(tmp_path: Path, form: str) -> None:
    wheel = write_form(tmp_path, zip_files.REFUSED[form])

    with pytest.raises(WheelError) as raised:
        read_archive(wheel)

    assert raised.value.message.startswith(wheel.name)
    assert raised.value.message.isprintable()


def refusal_of(wheel: Path) -> str | None:
    """Return why an archive is refused, or None."""
    try:
        read_archive(wheel)
    except WheelError as problem:
        return problem.message
    return None


@given(number=st.integers(0, 1 << 32))
def test_a_changed_byte_is_refused_or_leaves_an_archive_that_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, number: int
) -> None:
    generator = random.Random(number)  # noqa: S311 - test data
    wheel = write_form(tmp_path_factory.mktemp("changed"), zip_files.ACCEPTED["plain"])
    content = bytearray(wheel.read_bytes())
    for _change in range(generator.randint(1, 3)):
        content[generator.randrange(len(content))] = generator.randrange(256)
    wheel.write_bytes(content)

    refusal = refusal_of(wheel)

    assert refusal is None or wheel.name in refusal


def test_refuses_a_million_members_before_their_headers_are_read(tmp_path: Path) -> None:
    """The directory has only zeros, which are refused as headers if they are ever read."""
    count = 1_000_000
    archive = tmp_path / "many-1.0-py3-none-any.whl"
    directory_size = 46 * count
    end64 = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, directory_size, 0)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, directory_size, 1)
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, directory_size, 0, 0)
    with archive.open("wb") as stream:
        stream.seek(directory_size)
        stream.write(end64 + locator + end)

    tracemalloc.start()
    try:
        with pytest.raises(WheelError, match="1000000"):
            read_archive(archive)
        _size, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1 << 20
