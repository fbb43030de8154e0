"""A real torchaudio wheel from real sources, through the commands of the README."""

from collections.abc import Callable
from pathlib import Path

import pytest

from core.env import installer
from tests.kit.clones import Clone

TORCH = "torch-2.13.0+cpu-cp311"
REFS = """
[refs.mine]
components = ["audio"]

[refs.mine.torch]
prebuilt = "torch==2.13.0"

[refs.mine.audio]
origin = "{origin}"
ref = "HEAD"
env = {{ BUILD_SOX = "0", USE_FFMPEG = "0" }}
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    return Clone.create(tmp_path_factory.mktemp("checkout") / "clone")


@pytest.fixture
def nox(clone: Clone, tmp_path: Path, upstream_sources: dict[str, Path]) -> Callable[..., str]:
    if "audio" not in upstream_sources:
        pytest.skip("--sources has no torchaudio")
    links = installer.configured().find_links
    if not any(Path(link).is_dir() and list(Path(link).glob(f"{TORCH}*")) for link in links):
        pytest.skip(
            f"pip's find-links have no {TORCH}; the public index's torch is several gigabytes of CUDA"
        )
    refs = tmp_path / "refs.toml"
    refs.write_text(REFS.format(origin=upstream_sources["audio"].as_posix()))

    def call(session: str, *words: str | Path) -> str:
        options = ["--gpu-family", "cpu", "--torch-ref", "mine", "--config-file", str(refs)]
        own = () if words and session == "check_wheels" else options
        return clone.run_checked("nox", "-s", session, "-P", "3.11", "--", *words, *own)

    return call


def test_a_real_torchaudio_is_built_checked_indexed_installed_and_used(
    nox: Callable[..., str], clone: Clone, tmp_path: Path
) -> None:
    output = tmp_path / "wheels"
    nox("build_audio", "--output-dir", output)
    wheels = list(output.glob("torchaudio-*+torch2.13.cpu-cp311-cp311-linux_x86_64.whl"))
    assert len(wheels) == 1
    assert "1 wheel, 0 errors" in nox("check_wheels", output)
    nox("index")
    page = (clone.wheels("cpu") / "index.html").read_text()
    assert wheels[0].name in page
    smoke = nox("test_smoke")
    assert "0 failed" not in smoke
    assert " passed" in smoke
    assert "unchanged, nothing to do" in nox("build_audio")
