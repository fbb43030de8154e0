"""Real torchaudio and torchvision, from real sources and against a released torch, by README's commands."""

from pathlib import Path

import pytest

from tests.kit.clones import Clone

pytestmark = pytest.mark.nightly

REFS = """
[refs.mine]
components = ["{project}"]

[refs.mine.torch]
prebuilt = "torch==2.13.0"

[refs.mine.{project}]
origin = "{origin}"
ref = "HEAD"
{settings}
"""

# What is left out where the machine has none of its libraries, and what a setup.py of 2025 imports.
SETTINGS = {
    "audio": 'env = { BUILD_SOX = "0", USE_FFMPEG = "0" }',
    "vision": """
env = { TORCHVISION_USE_PNG = "0", TORCHVISION_USE_JPEG = "0", TORCHVISION_USE_WEBP = "0" }
build_requirements = ["setuptools<81"]
""",
}


@pytest.mark.parametrize("project", SETTINGS)
def test_a_real_project_is_built_checked_indexed_installed_and_used(
    project: str, tmp_path: Path, upstream_sources: dict[str, Path], released_torch: Path
) -> None:
    if project not in upstream_sources:
        pytest.skip(f"--sources has no torch{project}")
    clone = Clone.create(tmp_path / "clone")
    refs = tmp_path / "refs.toml"
    origin = upstream_sources[project].as_posix()
    refs.write_text(REFS.format(project=project, origin=origin, settings=SETTINGS[project]))
    options = ["--gpu-family", "cpu", "--torch-ref", "mine", "--config-file", str(refs)]

    def run_session(session: str, *words: str | Path) -> str:
        # The package index's torch is several gigabytes of CUDA.
        variables = {"PIP_FIND_LINKS": str(released_torch.parent)}
        return clone.run_checked("nox", "-s", session, "-P", "3.11", "--", *words, **variables)

    output = tmp_path / "wheels"
    run_session(f"build_{project}", *options, "--output-dir", output)
    (wheel,) = output.glob(f"torch{project}-*cpu-cp311-cp311-linux_x86_64.whl")
    assert "1 wheel, 0 errors" in run_session("check_wheels", output)

    run_session("index", "--gpu-family", "cpu")
    page = (clone.wheels("cpu") / "index.html").read_text()
    assert wheel.name in page

    assert " passed" in run_session("test_smoke", *options)
    assert "unchanged, nothing to do" in run_session(f"build_{project}", *options)
