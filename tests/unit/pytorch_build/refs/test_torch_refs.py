from pathlib import Path

import pytest

from core.data import use_user_file
from core.errors import DataError, UsageError
from pytorch_build.refs.torch_refs import (
    TorchRef,
    absolute_origin,
    default_ref,
    load_refs,
    rehearsal_labels,
    torch_ref,
)
from rocm_packaging.sample.facts import FAMILIES

# What the issue that asked for files of one's own wants to write.
OWN_REFS = """
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


def use_refs(folder: Path, text: str) -> None:
    """Use a refs file of the user's own."""
    path = folder / "refs.toml"
    path.write_text(text, encoding="utf-8")
    use_user_file(path)


def read_ref(folder: Path, name: str, text: str) -> TorchRef:
    """Return a torch ref as a file of the user's own has it."""
    use_refs(folder, text)
    return torch_ref(name)


# Refs of one's own


def test_reads_components_and_pythons_of_a_users_ref(tmp_path: Path) -> None:
    mine = read_ref(tmp_path, "mine", OWN_REFS)

    assert mine.components == ("audio", "vision")
    assert mine.pythons == ("3.10", "3.11", "3.12", "3.13", "3.14")


def test_reads_the_projects_of_a_users_ref(tmp_path: Path) -> None:
    projects = read_ref(tmp_path, "mine", OWN_REFS).projects

    assert projects["torch"].prebuilt == "torch==2.13.0"
    # On Windows the file says its drive.
    assert projects["audio"].origin == str(Path(tmp_path.anchor, "path/to/torchaudio"))
    assert projects["audio"].env == {"BUILD_SOX": "0", "USE_FFMPEG": "0"}
    # A relative path is one from the file.
    assert projects["vision"].origin == str(tmp_path.parent / "torchvision")
    assert projects["vision"].build_requirements == ("setuptools<81",)


def test_reads_the_users_default_ref(tmp_path: Path) -> None:
    use_refs(tmp_path, f'default = "mine"\n{OWN_REFS}')

    assert default_ref() == "mine"


def test_builds_by_default_what_is_not_prebuilt(tmp_path: Path) -> None:
    refs = "[refs.mine.torch]\nprebuilt = 'torch'\n[refs.mine.vision]\nref = 'v1'\n"

    mine = read_ref(tmp_path, "mine", refs)

    assert mine.components == ("vision",)
    assert mine.projects["vision"].origin == "https://github.com/pytorch/vision.git"


def test_builds_no_torch_of_an_embedded_ref_that_a_user_has_prebuilt(tmp_path: Path) -> None:
    refs = "[refs.nightly.torch]\nprebuilt = 'torch==2.13.0'\n"

    assert "torch" not in read_ref(tmp_path, "nightly", refs).components


# Refs that extend others


@pytest.mark.parametrize(
    ("text", "name", "project", "ref", "pin"),
    [
        pytest.param(
            '[refs."release/2.9".torch]\norigin = "u:x"',
            "release/2.9",
            "torch",
            "release/2.9",
            "",
            id="table over an embedded ref",
        ),
        pytest.param(
            '[refs.fork]\nextends = "release/2.9"\n[refs.fork.torch]\nref = "x"',
            "fork",
            "torch",
            "x",
            "",
            id="table over an extended ref",
        ),
        pytest.param(
            '[refs.fork]\nextends = "release/2.9"',
            "fork",
            "audio",
            "",
            "related_commits",
            id="extended ref",
        ),
        pytest.param(
            '[refs.nightly.apex]\nref = "other"',
            "main",
            "apex",
            "other",
            "",
            id="table reaches a ref that extends",
        ),
    ],
)
def test_merges_tables_into_the_refs_that_they_extend(
    tmp_path: Path, text: str, name: str, project: str, ref: str, pin: str
) -> None:
    source = read_ref(tmp_path, name, text).projects[project]

    assert source.ref == ref
    assert source.pin == pin


@pytest.mark.parametrize(
    ("text", "name", "origin"),
    [
        ('[refs."release/2.9".torch]\norigin = "u:x"', "release/2.9", "u:x"),
        (
            '[refs.fork]\nextends = "release/2.9"\n[refs.fork.torch]\nref = "x"',
            "fork",
            "https://github.com/ROCm/pytorch.git",
        ),
    ],
    ids=["given", "extended"],
)
def test_takes_the_origin_that_a_table_gives_or_extends(
    tmp_path: Path, text: str, name: str, origin: str
) -> None:
    assert read_ref(tmp_path, name, text).projects["torch"].origin == origin


def test_takes_a_users_ref_before_a_pin(tmp_path: Path) -> None:
    audio = read_ref(tmp_path, "nightly", '[refs.nightly.audio]\nref = "my-branch"\n').projects["audio"]

    assert audio.ref == "my-branch"
    assert audio.pin == ""


def test_keeps_a_pin_beside_a_users_origin(tmp_path: Path) -> None:
    refs = '[refs.nightly.vision]\norigin = "git@example.org:v.git"\n'

    vision = read_ref(tmp_path, "nightly", refs).projects["vision"]

    assert vision.pin == "related_commits"
    assert vision.has_own_origin
    assert vision.origin == "git@example.org:v.git"


# Files that are not valid


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param("[refs.mine.audio]\norgin = 'x'\n", ["refs.mine.audio.orgin", "'origin'"], id="key"),
        pytest.param(
            "[refs.mine]\ncomponents = ['audo']\n",
            ["refs.mine.components", "'audo'", "'audio'"],
            id="component",
        ),
        pytest.param("[refs.mine]\ncomponents = ['audio']\n", ["refs.mine", "'audio'"], id="no source"),
        pytest.param("[refs.mine.audio]\norigin = 'x'\n", ["refs.mine.audio", "`ref`", "`pin`"], id="no ref"),
        pytest.param(
            "[refs.mine]\nextends = 'nigthly'\n",
            ["refs.mine.extends", "'nigthly'", "'nightly'"],
            id="unknown ref",
        ),
        pytest.param("[refs.mine]\nextends = 'mine'\n", ["mine", "never ends"], id="extends itself"),
        pytest.param(
            "[refs.mine.audio]\nref = 'x'\npin = 'related'\n", ["refs.mine.audio.pin"], id="unknown pin"
        ),
        pytest.param("default = 'nigthly'\n", ["'nigthly'"], id="unknown default"),
        pytest.param(
            "[refs.mine]\nextends = 'nightly'\npublishable = false\n",
            ["refs.mine.publishable", "local_label"],
            id="no label of unpublished wheels",
        ),
        pytest.param("[refs.mine\n", ["not valid TOML"], id="no TOML"),
    ],
)
def test_names_the_file_and_the_key_that_is_not_valid(tmp_path: Path, text: str, names: list[str]) -> None:
    use_refs(tmp_path, text)

    with pytest.raises(DataError) as caught:
        load_refs()

    assert [name for name in ("refs.toml", *names) if name not in str(caught.value)] == []


# Fewer components


def test_narrows_a_ref_down_in_the_order_of_builds() -> None:
    assert torch_ref("nightly").with_only_components(["vision", "torch"]).components == ("torch", "vision")


@pytest.mark.parametrize("component", ["tourch", ""])
def test_rejects_an_unknown_component(component: str) -> None:
    with pytest.raises(UsageError, match=repr(component)):
        torch_ref("nightly").with_only_components([component])


def test_rejects_a_component_that_the_ref_does_not_have(tmp_path: Path) -> None:
    mine = read_ref(tmp_path, "mine", OWN_REFS)

    with pytest.raises(UsageError, match="mine has no apex"):
        mine.with_only_components(["apex"])


# Origins


@pytest.mark.parametrize(
    "origin",
    ["https://a.org/a.git", "ssh://git@example.org/a", "git@example.org:a.git", "sample:torch"],
)
def test_keeps_an_origin_that_is_an_address(tmp_path: Path, origin: str) -> None:
    assert absolute_origin(origin, tmp_path) == origin


@pytest.mark.parametrize("path", ["../a", "a/b", "/a/b"])
def test_makes_an_origin_that_is_a_path_absolute(tmp_path: Path, path: str) -> None:
    assert absolute_origin(path, tmp_path) == str((tmp_path / path).resolve())


# Facts of a ref that is not as upstream's


def test_the_sample_has_small_wheels_for_rehearsals_alone() -> None:
    sample = torch_ref("sample")

    assert not sample.is_publishable
    assert not sample.has_full_size
    assert not sample.has_gpu_code
    assert not sample.has_whole_tests
    assert sample.need is not None


def test_the_sample_names_the_families_that_its_rocm_is_for() -> None:
    assert torch_ref("sample").rocm_families == FAMILIES


def test_other_refs_are_as_upstreams() -> None:
    refs = [ref for name, ref in load_refs().items() if name != "sample"]

    assert all(ref.is_publishable and ref.has_full_size and ref.has_gpu_code for ref in refs)
    assert all(ref.has_whole_tests and ref.need is None for ref in refs)


def test_knows_wheels_for_rehearsals_by_the_labels_of_their_refs(tmp_path: Path) -> None:
    assert rehearsal_labels() == {"sample"}

    use_refs(tmp_path, "[refs.mine]\nextends = 'nightly'\npublishable = false\nlocal_label = 'trial'\n")

    assert rehearsal_labels() == {"sample", "trial"}
