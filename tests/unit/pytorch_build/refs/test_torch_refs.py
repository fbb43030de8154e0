from pathlib import Path

import pytest

from core.data import use_own
from core.errors import DataError, UsageError
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


def written(folder: Path, text: str) -> Path:
    path = folder / "refs.toml"
    path.write_text(text, encoding="utf-8")
    return path


def own_ref(name: str, file: Path) -> refs.TorchRef:
    use_own(file)
    return refs.torch_ref(name)


def test_the_issues_file_reads_as_meant(tmp_path: Path) -> None:
    mine = own_ref("mine", written(tmp_path, f'default = "mine"\n{ISSUE}'))
    assert (refs.default_ref(), mine.components) == ("mine", ("audio", "vision"))
    assert mine.projects["torch"].prebuilt == "torch==2.13.0"
    assert mine.projects["audio"].origin == "/path/to/torchaudio"
    assert mine.projects["audio"].env == {"BUILD_SOX": "0", "USE_FFMPEG": "0"}
    assert mine.projects["vision"].origin == str(tmp_path.parent / "torchvision")
    assert mine.projects["vision"].build_requirements == ("setuptools<81",)
    assert mine.pythons == ("3.10", "3.11", "3.12", "3.13", "3.14")


@pytest.mark.parametrize(
    ("text", "name", "project", "ref", "pin"),
    [
        # a partial table merges over an embedded ref
        ('["release/2.9".torch]\norigin = "u:x"', "release/2.9", "torch", "release/2.9", ""),
        ('[fork]\nextends = "release/2.9"\n[refs.fork.torch]\nref = "x"', "fork", "torch", "x", ""),
        ('[fork]\nextends = "release/2.9"', "fork", "audio", "", "related_commits"),
        # and reaches the refs that extend it
        ('[nightly.apex]\nref = "other"', "main", "apex", "other", ""),
    ],
)
def test_tables_extend_refs(tmp_path: Path, text: str, name: str, project: str, ref: str, pin: str) -> None:
    found = own_ref(name, written(tmp_path, text.replace("[", "[refs.", 1))).projects[project]
    assert (found.ref, found.pin) == (ref, pin)
    assert project != "torch" or found.origin == (
        "u:x" if "u:x" in text else "https://github.com/ROCm/pytorch.git"
    )


def test_components_are_by_default_what_is_not_prebuilt(tmp_path: Path) -> None:
    text = "[refs.mine.torch]\nprebuilt = 'torch'\n[refs.mine.vision]\nref = 'v1'\n"
    mine = own_ref("mine", written(tmp_path, text))
    assert mine.components == ("vision",)
    assert mine.projects["vision"].origin == "https://github.com/pytorch/vision.git"
    text = "[refs.nightly.torch]\nprebuilt = 'torch==2.13.0'\n"
    assert "torch" not in own_ref("nightly", written(tmp_path, text)).components


def test_a_ref_of_ones_own_comes_before_a_pin(tmp_path: Path) -> None:
    text = (
        '[refs.nightly.audio]\nref = "my-branch"\n[refs.nightly.vision]\norigin = "git@example.org:v.git"\n'
    )
    nightly = own_ref("nightly", written(tmp_path, text))
    assert (nightly.projects["audio"].ref, nightly.projects["audio"].pin) == ("my-branch", "")
    assert nightly.projects["vision"].pin == "related_commits"
    assert nightly.projects["vision"].own_origin
    assert nightly.projects["vision"].origin == "git@example.org:v.git"


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
    use_own(written(tmp_path, text))
    with pytest.raises(DataError, match=said) as caught:
        refs.load_refs()
    assert "refs.toml" in str(caught.value)


def test_only_narrows_down_in_build_order(tmp_path: Path) -> None:
    nightly = refs.torch_ref("nightly")
    assert nightly.only(["vision", "torch"]).components == ("torch", "vision")
    for component in ("tourch", ""):
        with pytest.raises(UsageError, match="Unknown component"):
            nightly.only([component])
    with pytest.raises(UsageError, match="mine has no apex"):
        own_ref("mine", written(tmp_path, ISSUE)).only(["apex"])


def test_paths_among_origins_are_made_absolute(tmp_path: Path) -> None:
    for url in (
        "https://example.org/a.git",
        "ssh://git@example.org/a",
        "git@example.org:a.git",
        "sample:torch",
    ):
        assert refs.absolute_origin(url, tmp_path) == url
    for path in ("../a", "a/b", "/a/b"):
        assert refs.absolute_origin(path, tmp_path) == str((tmp_path / path).resolve())
