from __future__ import annotations

import re
from pathlib import Path

import pytest

from core.errors import DataError, MissingInputError, UsageError
from pytorch_build.refs import torch_refs as refs

ISSUE = """
[refs.mine]
components = ["audio", "vision"]

[refs.mine.torch]
prebuilt = "torch==2.13.0"

[refs.mine.audio]
origin = "/path/to/torchaudio"
ref = "v2.6.0"
env = { BUILD_SOX = "0", USE_FFMPEG = "0" }

[refs.mine.vision]
origin = "../torchvision"
ref = "v0.21.0"
build_requirements = ["setuptools<81"]
"""


def written(folder: Path, text: str, name: str = "refs.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_embedded_refs_are_those_of_the_support_table() -> None:
    names = list(refs.load_refs())
    releases = [f"release/2.{minor}" for minor in (14, 13, 12, 11, 10, 9, 8, 7)]
    assert names == ["nightly", "main", *releases, "sample"]
    assert refs.default_ref() == "nightly"


def test_nightly_takes_upstream_branches() -> None:
    nightly = refs.torch_ref("nightly")
    assert nightly.components == refs.PROJECTS
    assert nightly.projects["torch"].origin == "https://github.com/pytorch/pytorch.git"
    assert nightly.projects["torch"].ref == nightly.projects["vision"].ref == "nightly"
    assert nightly.projects["torch"].hipify
    assert not nightly.projects["audio"].hipify
    assert nightly.projects["triton"].pin == "triton"
    assert nightly.projects["apex"].ref == "master"


def test_releases_take_the_fork_and_its_pins() -> None:
    ref = refs.torch_ref("release/2.8")
    assert ref.projects["torch"].origin == "https://github.com/ROCm/pytorch.git"
    assert ref.projects["torch"].ref == "release/2.8"
    assert ref.projects["audio"].pin == "related_commits"
    assert ref.projects["audio"].ref == ""
    assert ref.projects["vision"].build_requirements == ("setuptools<81",)
    assert refs.torch_ref("release/2.13").projects["vision"].build_requirements == ()


def test_windows_builds_other_components_and_another_triton() -> None:
    nightly = refs.torch_ref("nightly", platform="windows")
    assert nightly.components == ("torch", "audio", "vision")
    assert nightly.projects["triton"].origin == "https://github.com/triton-lang/triton-windows.git"
    assert re.fullmatch("[0-9a-f]{40}", nightly.projects["triton"].ref)
    assert nightly.projects["triton"].pin == ""
    old = refs.torch_ref("release/2.7", platform="windows")
    assert (old.components, old.platforms["windows"].status) == ((), "unsupported")


def test_sample_has_what_no_other_ref_has() -> None:
    sample = refs.torch_ref("sample")
    assert sample.default_family == "gfx94X-dcgpu"
    assert sample.rocm_version == "7.99.0.dev0+sample"
    assert sample.local_label == "sample"
    assert sample.projects["torch"].origin == "sample:torch"
    assert not any(ref.local_label for name, ref in refs.load_refs().items() if name != "sample")


def test_the_issues_file_reads_as_meant(tmp_path: Path) -> None:
    mine = refs.torch_ref("mine", written(tmp_path, ISSUE))
    assert mine.components == ("audio", "vision")
    assert mine.projects["torch"].prebuilt == "torch==2.13.0"
    assert mine.projects["audio"].origin == "/path/to/torchaudio"
    assert mine.projects["audio"].env == {"BUILD_SOX": "0", "USE_FFMPEG": "0"}
    assert mine.projects["vision"].origin == str(tmp_path.parent / "torchvision")
    assert mine.projects["vision"].build_requirements == ("setuptools<81",)
    assert mine.pythons == ("3.10", "3.11", "3.12", "3.13", "3.14")


def test_a_file_in_the_working_directory_is_found(tmp_path: Path) -> None:
    written(tmp_path, "default = 'mine'\n" + ISSUE, refs.USER_FILE_NAME)
    assert refs.torch_ref("mine", None, tmp_path).name == "mine"
    assert refs.default_ref(None, tmp_path) == "mine"


def test_a_given_file_comes_before_that_of_the_working_directory(tmp_path: Path) -> None:
    written(tmp_path, ISSUE, refs.USER_FILE_NAME)
    written(tmp_path, "[refs.other]\nextends = 'nightly'\n")
    names = refs.load_refs(Path("refs.toml"), tmp_path)
    assert "other" in names
    assert "mine" not in names


def test_a_partial_table_merges_over_an_embedded_ref(tmp_path: Path) -> None:
    text = '[refs."release/2.9".torch]\norigin = "https://example.org/mine.git"\n'
    ref = refs.torch_ref("release/2.9", written(tmp_path, text))
    assert ref.projects["torch"].origin == "https://example.org/mine.git"
    assert ref.projects["torch"].ref == "release/2.9"
    assert ref.projects["audio"].pin == "related_commits"


def test_an_override_reaches_the_refs_that_extend_it(tmp_path: Path) -> None:
    text = '[refs.nightly.apex]\nref = "other"\n'
    assert refs.torch_ref("main", written(tmp_path, text)).projects["apex"].ref == "other"


def test_a_ref_of_ones_own_comes_before_a_pin(tmp_path: Path) -> None:
    text = (
        '[refs.nightly.audio]\nref = "my-branch"\n[refs.nightly.vision]\norigin = "git@example.org:v.git"\n'
    )
    nightly = refs.torch_ref("nightly", written(tmp_path, text))
    assert (nightly.projects["audio"].ref, nightly.projects["audio"].pin) == ("my-branch", "")
    assert nightly.projects["vision"].pin == "related_commits"
    assert nightly.projects["vision"].own_origin
    assert nightly.projects["vision"].origin == "git@example.org:v.git"


def test_extends_starts_from_another_ref(tmp_path: Path) -> None:
    text = '[refs.fork]\nextends = "release/2.10"\ncomponents = ["torch"]\n[refs.fork.torch]\nref = "fix"\n'
    fork = refs.torch_ref("fork", written(tmp_path, text))
    assert fork.projects["torch"].origin == "https://github.com/ROCm/pytorch.git"
    assert fork.projects["torch"].ref == "fix"
    assert fork.projects["audio"].pin == "related_commits"


def test_components_default_to_what_is_not_prebuilt(tmp_path: Path) -> None:
    text = "[refs.mine]\n[refs.mine.torch]\nprebuilt = 'torch'\n[refs.mine.vision]\nref = 'v1'\n"
    mine = refs.torch_ref("mine", written(tmp_path, text))
    assert mine.components == ("vision",)
    assert mine.projects["vision"].origin == "https://github.com/pytorch/vision.git"


def test_a_prebuilt_torch_is_not_built(tmp_path: Path) -> None:
    text = "[refs.nightly.torch]\nprebuilt = 'torch==2.13.0'\n"
    assert "torch" not in refs.torch_ref("nightly", written(tmp_path, text)).components


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[refs.mine.audio]\norgin = 'x'\n", r"refs\.mine\.audio\.orgin: unknown key.*'origin'"),
        (
            "[refs.mine]\ncomponents = ['audo']\n",
            r"refs\.mine\.components: unknown component 'audo'.*'audio'",
        ),
        ("[refs.mine]\ncomponents = ['audio']\n", r"'audio' has no source"),
        ("[refs.mine.audio]\norigin = 'x'\n", r"refs\.mine\.audio: neither `ref`, `pin` nor"),
        ("[refs.mine]\nextends = 'nigthly'\n", r"refs\.mine\.extends: 'nigthly' is not a ref.*'nightly'"),
        ("[refs.mine]\nextends = 'mine'\n", "never ends"),
        ("[refs.mine.audio]\nref = 'x'\npin = 'related'\n", r"refs\.mine\.audio\.pin"),
        ("default = 'nigthly'\n", "'nigthly' is not a ref"),
        ("[refs.mine\n", "not valid TOML"),
    ],
)
def test_bad_files_are_refused_by_key_path(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        refs.load_refs(written(tmp_path, text))
    assert "refs.toml" in str(caught.value)


def test_an_absent_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=r"absent\.toml"):
        refs.load_refs(tmp_path / "absent.toml")


def test_an_unknown_ref_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"Did you mean 'release/2\.9'"):
        refs.torch_ref("releases/2.9")


def test_only_narrows_down_in_build_order() -> None:
    assert refs.torch_ref("nightly").only(["vision", "torch"]).components == ("torch", "vision")


@pytest.mark.parametrize("component", ["tourch", ""])
def test_only_refuses_what_is_no_project(component: str) -> None:
    with pytest.raises(UsageError, match="Unknown component"):
        refs.torch_ref("nightly").only([component])


def test_only_refuses_a_project_without_source(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="mine has no apex"):
        refs.torch_ref("mine", written(tmp_path, ISSUE)).only(["apex"])


@pytest.mark.parametrize(
    ("origin", "path"),
    [
        ("https://example.org/a.git", False),
        ("ssh://git@example.org/a", False),
        ("git@example.org:a.git", False),
        ("sample:torch", False),
        ("../a", True),
        ("a/b", True),
        ("/a/b", True),
    ],
)
def test_paths_among_origins_are_made_absolute(tmp_path: Path, origin: str, path: bool) -> None:  # noqa: FBT001
    made = refs.absolute_origin(origin, tmp_path)
    assert made == (str((tmp_path / origin).resolve()) if path else origin)
