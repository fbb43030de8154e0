"""Search paths in a real torch: its largest libraries, and its programs."""

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from core import process
from core.archive.zips import read_archive
from core.env import installer
from core.wheel.record import verify_record
from pytorch_build.build.search_paths import rocm_folders, set_search_paths
from pytorch_build.check.run import check_wheel
from pytorch_build.standalone.libraries import read_members

# A wheel of torch that a machine may have.
TORCH = "torch-2.13.0+cpu-cp311"
LOADS = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).omp_get_max_threads() > 0)"


@pytest.fixture
def wheel(tmp_path: Path) -> Iterator[Path]:
    links = [Path(link) for link in installer.configured().find_links]
    found = next((path for link in links if link.is_dir() for path in sorted(link.glob(f"{TORCH}*"))), None)
    if found is None:
        pytest.skip(f"pip's find-links have no {TORCH}")
    copy = tmp_path / found.name
    copy.write_bytes(found.read_bytes())
    yield copy
    copy.unlink()


def test_a_real_torch_looks_into_rocms_packages_and_still_runs(wheel: Path, tmp_path: Path) -> None:
    set_search_paths(wheel, rocm_folders("split", ""), epoch=1_700_000_000)
    assert verify_record(wheel) == ()
    assert not [one for one in check_wheel(wheel) if one.severity == "error"]
    found = read_members(wheel, read_archive(wheel).members)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    linked = {path: one for path, one in found.items() if one.needed}
    assert len(linked) > 20
    assert all(one.is_rpath for one in linked.values())
    assert all(one.startswith("$ORIGIN") for binary in linked.values() for one in binary.search)
    torch = tmp_path / "site" / "torch"
    said = process.capture([sys.executable, "-c", LOADS, torch / "lib" / "libtorch_cpu.so"]).stdout
    assert said == "True\n"
    protoc = torch / "bin" / "protoc"
    protoc.chmod(0o755)
    assert process.capture([protoc, "--version"]).stdout.startswith("libprotoc ")
