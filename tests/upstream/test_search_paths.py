"""Search paths in a real torch: its largest libraries, and its programs."""

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from core import process
from core.archive.zips import read_archive
from core.wheel.record import verify_record
from pytorch_build.build.search_paths import rocm_folders, set_search_paths
from pytorch_build.check.run import check_wheel
from pytorch_build.standalone.libraries import read_members
from tests.kit.findings import errors_among

LOAD = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).omp_get_max_threads() > 0)"


@pytest.fixture
def torch_wheel(released_torch: Path, tmp_path: Path) -> Iterator[Path]:
    """Return a copy of torch's wheel, which is large and goes at the end."""
    copy = tmp_path / released_torch.name
    copy.write_bytes(released_torch.read_bytes())
    yield copy
    copy.unlink()


def test_a_real_torch_looks_into_rocms_packages_and_still_runs(torch_wheel: Path, tmp_path: Path) -> None:
    set_search_paths(torch_wheel, rocm_folders("split", ""), epoch=1_700_000_000)

    assert verify_record(torch_wheel) == ()
    assert errors_among(check_wheel(torch_wheel)) == []
    binaries = read_members(torch_wheel, read_archive(torch_wheel).members)
    linked = [binary for binary in binaries.values() if binary.needed]
    assert len(linked) > 20
    for binary in linked:
        assert binary.is_rpath
        assert all(folder.startswith("$ORIGIN") for folder in binary.search)

    with zipfile.ZipFile(torch_wheel) as archive:
        archive.extractall(tmp_path / "site")
    torch = tmp_path / "site" / "torch"
    library = torch / "lib" / "libtorch_cpu.so"
    assert process.capture([sys.executable, "-c", LOAD, library]).stdout == "True\n"
    protoc = torch / "bin" / "protoc"
    protoc.chmod(0o755)
    assert process.capture([protoc, "--version"]).stdout.startswith("libprotoc ")
