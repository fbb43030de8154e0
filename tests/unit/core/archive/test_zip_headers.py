import random
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
