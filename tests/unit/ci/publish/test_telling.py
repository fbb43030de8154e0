from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ci.publish import telling
from core.run.job_files import JobFiles
from core.run.outputs import RunOutputs
from core.run.records import FileRecord

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

OUTPUTS = RunOutputs(run_id="17", platform="linux", address="https://b.s3.amazonaws.com")


def wheel(name: str, version: str = "1.0+rocm7.1") -> FileRecord:
    filename = f"{name}-{version}-py3-none-any.whl"
    key = f"{OUTPUTS.python_prefix('g')}/{filename}"
    return FileRecord(name=filename, key=key, size=5, sha256="0" * 64, distribution=name, version=version)


def test_the_summary_links_wheels_and_pins_what_it_installs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    telling.summarize(OUTPUTS, "g", [wheel("apex"), wheel("torch")])
    text = (tmp_path / "summary").read_text()
    page = "https://b.s3.amazonaws.com/17-linux/python/g/index.html"
    assert f"pip install 'torch==1.0+rocm7.1' --find-links '{page}'" in text
    assert "(<https://b.s3.amazonaws.com/17-linux/python/g/apex-1.0%2Brocm7.1-py3-none-any.whl>)" in text
    telling.summarize(OUTPUTS, "g", [wheel(f"a{number}") for number in range(250)])
    assert "and 50 more" in (tmp_path / "summary").read_text()


def test_split_wheels_are_installed_with_device_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    devices = [
        wheel(f"{kind}-device-{gpu}") for kind in ("amd-torch", "rocm-sdk") for gpu in ("gfx942", "gfx11")
    ]
    telling.summarize(OUTPUTS, "g", [wheel("torch"), *devices])
    telling.summarize(OUTPUTS, "g", [wheel("rocm"), *devices])
    text = (tmp_path / "summary").read_text()
    for said in ("torch[device-gfx942]==1.0+rocm7.1", "rocm[libraries,device-gfx942]==1.0+rocm7.1"):
        assert f"pip install '{said}' --find-links" in text


def test_an_index_that_the_store_does_not_serve_has_no_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    telling.set_outputs(JobFiles(outputs=tmp_path / "outputs"), OUTPUTS, ["g"], index=False)
    telling.summarize(OUTPUTS, "g", [wheel("torch")], index=False)
    assert "package_index_url" not in (tmp_path / "outputs").read_text()
    assert "/simple/" not in (tmp_path / "summary").read_text()


def test_one_group_has_an_address_and_several_have_a_map(tmp_path: Path) -> None:
    for groups, file in ((["g"], "one"), (["g", "h"], "two")):
        telling.set_outputs(JobFiles(outputs=tmp_path / file), OUTPUTS, groups, index=True)
    one, two = ((tmp_path / file).read_text().splitlines() for file in ("one", "two"))
    url = OUTPUTS.url_of(OUTPUTS.prefix)
    assert one[1] == f"{url}/python/g/index.html"
    assert one[4] == f"{url}/python/g/simple/"
    assert json.loads(two[1]) == {group: f"{url}/python/{group}/index.html" for group in "gh"}
