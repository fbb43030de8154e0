import json
from pathlib import Path

import pytest

from core.errors import ArtifactError, MissingInputError
from rocm_packaging.artifacts import build_info, families_of, merge_artifacts, scan
from tests.kit.artifacts import (
    BASE_FACTS,
    MANIFEST,
    STAGE,
    write_artifact,
    write_base_artifact,
)


def write_manifest(root: Path, name: str, *stages: str) -> Path:
    """Write an artifact that lists these stages and has none of them; return its folder."""
    folder = root / name
    folder.mkdir(parents=True)
    folder.joinpath(MANIFEST).write_text("".join(f"{stage}\n" for stage in stages), encoding="utf-8")
    return folder


# Names and manifests


def test_lists_artifacts_by_name_component_and_target(tmp_path: Path) -> None:
    for name in (
        "core-hip_lib_generic",
        "blas_lib_gfx94X-dcgpu",
        "blas_lib_gfx942:xnack+",
    ):
        write_manifest(tmp_path, name)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "notes.txt").write_text("x", encoding="utf-8")

    artifacts = scan(tmp_path)

    assert [(artifact.name, artifact.component, artifact.target) for artifact in artifacts] == [
        ("blas", "lib", "gfx942"),
        ("blas", "lib", "gfx94X-dcgpu"),
        ("core-hip", "lib", "generic"),
    ]
    assert families_of(artifacts) == ("gfx942", "gfx94X-dcgpu")


def test_reads_the_stages_of_a_manifest(tmp_path: Path) -> None:
    write_manifest(tmp_path, "core-hip_lib_generic", "core/clr/stage", "", "core/x/stage")

    (artifact,) = scan(tmp_path)

    assert artifact.stage_folders == ("core/clr/stage", "core/x/stage")


@pytest.mark.parametrize("folder", ["empty", "absent"])
def test_refuses_a_folder_without_artifacts(tmp_path: Path, folder: str) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(MissingInputError, match=folder):
        scan(tmp_path / folder)


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        ("blas_lib", "blas_lib"),
        ("blas_libs_generic", "'lib'"),
        ("a_lib_b_c", "a_lib_b_c"),
    ],
)
def test_refuses_a_malformed_name(tmp_path: Path, name: str, subject: str) -> None:
    write_manifest(tmp_path, name)

    with pytest.raises(ArtifactError, match=subject):
        scan(tmp_path)


@pytest.mark.parametrize("stage", ["/etc", "../x", "a/../../x", "a//b"])
def test_refuses_a_stage_outside_of_the_artifact(tmp_path: Path, stage: str) -> None:
    write_manifest(tmp_path, "a_lib_generic", stage)

    with pytest.raises(ArtifactError) as raised:
        scan(tmp_path)

    assert repr(stage) in raised.value.message


def test_refuses_an_artifact_without_a_manifest(tmp_path: Path) -> None:
    (tmp_path / "a_lib_generic").mkdir()

    with pytest.raises(ArtifactError, match=MANIFEST):
        scan(tmp_path)


# One tree of several artifacts


@pytest.mark.usefixtures("needs_links")
def test_merges_stages_without_their_folders(tmp_path: Path) -> None:
    library = write_artifact(tmp_path, "a_lib_generic", {"lib/x.so.1": "x"})
    (library / STAGE / "lib/x.so").symlink_to("x.so.1")
    program = write_artifact(tmp_path, "b_run_generic", {"bin/tool": "t"})
    (program / STAGE / "bin/tool").chmod(0o755)
    (program / "unlisted").mkdir()
    (program / "unlisted" / "file").touch()

    tree = merge_artifacts(scan(tmp_path))

    assert sorted(tree) == ["bin/tool", "lib/x.so", "lib/x.so.1"]
    assert [path for path, entry in tree.items() if entry.executable] == ["bin/tool"]
    assert {path: entry.link for path, entry in tree.items() if entry.link} == {"lib/x.so": "x.so.1"}


def test_merges_an_artifact_whose_listed_stage_is_absent(tmp_path: Path) -> None:
    folder = write_artifact(tmp_path, "a_lib_generic", {"lib/x": "x"})
    (folder / MANIFEST).write_text(f"{STAGE}\nabsent/stage\n", encoding="utf-8")

    assert list(merge_artifacts(scan(tmp_path))) == ["lib/x"]


@pytest.mark.parametrize("content", ["diff", "longer than that"])
def test_refuses_different_files_in_one_place(tmp_path: Path, content: str) -> None:
    write_artifact(tmp_path, "a_lib_generic", {"lib/x": "same"})
    write_artifact(tmp_path, "b_lib_generic", {"lib/x": content})

    with pytest.raises(ArtifactError, match="lib/x"):
        merge_artifacts(scan(tmp_path))


def write_opposing_artifacts(root: Path, stage: str) -> Path:
    """Write an artifact that has the folder lib/tool; return that path in the stage of another one."""
    write_artifact(root, "a_lib_generic", {"lib/real/x": "x"}, stage="a/stage")
    folder = write_artifact(root, "b_run_generic", {"lib/y": "y"}, stage=stage)
    write_artifact(root, "c_run_generic", {"lib/tool/deep/z": "z"}, stage="a/stage")
    return folder / stage / "lib/tool"


def require_refusal(root: Path, kind: str) -> None:
    """Require that merging the artifacts names what lies in the place of the folder, and where."""
    with pytest.raises(ArtifactError) as raised:
        merge_artifacts(scan(root))

    for subject in (f"lib/tool is a {kind}", "b_run_generic", "c_run_generic"):
        assert subject in raised.value.message


@pytest.mark.parametrize("stage", ["a/stage", "b/stage"])
def test_refuses_a_file_where_another_artifact_has_a_folder(tmp_path: Path, stage: str) -> None:
    write_opposing_artifacts(tmp_path, stage).write_text("t", encoding="utf-8")

    require_refusal(tmp_path, "file")


@pytest.mark.usefixtures("needs_links")
@pytest.mark.parametrize("stage", ["a/stage", "b/stage"])
def test_refuses_a_link_where_another_artifact_has_a_folder(tmp_path: Path, stage: str) -> None:
    write_opposing_artifacts(tmp_path, stage).symlink_to("real")

    require_refusal(tmp_path, "link")


@pytest.mark.parametrize(
    ("path", "spellings"),
    [("lib/X.h", ("lib/X.h", "lib/x.h")), ("LIB/y", ("LIB", "lib"))],
)
def test_refuses_two_spellings_of_a_name_for_windows_alone(
    tmp_path: Path, path: str, spellings: tuple[str, str]
) -> None:
    write_artifact(tmp_path, "a_lib_generic", {"lib/x.h": "x"})
    write_artifact(tmp_path, "b_lib_generic", {path: "x"})
    artifacts = scan(tmp_path)

    assert len(merge_artifacts(artifacts)) == 2
    with pytest.raises(ArtifactError) as raised:
        merge_artifacts(artifacts, ignores_case=True)

    for subject in (*spellings, "a_lib_generic", "b_lib_generic"):
        assert subject in raised.value.message


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../outside", ".."])
@pytest.mark.usefixtures("needs_links")
def test_refuses_a_link_out_of_the_tree(tmp_path: Path, target: str) -> None:
    folder = write_artifact(tmp_path, "a_lib_generic", {"lib/x": "x"})
    (folder / STAGE / "link").symlink_to(target)

    with pytest.raises(ArtifactError) as raised:
        merge_artifacts(scan(tmp_path))

    assert target in raised.value.message


# What the artifacts say of their build


def test_requires_the_base_artifact(tmp_path: Path) -> None:
    write_artifact(tmp_path, "blas_lib_generic", {})

    with pytest.raises(ArtifactError, match="base_lib_generic"):
        build_info(scan(tmp_path))


def write_base_manifest(root: Path, text: str) -> None:
    """Write a base artifact whose manifest of the build is this text."""
    folder = write_base_artifact(root, is_split=False)
    (folder / BASE_FACTS).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("document", [{}, {"flags": {}}, {"flags": {"KPACK_SPLIT_ARTIFACTS": "ON"}}])
def test_requires_to_know_whether_artifacts_are_split(tmp_path: Path, document: object) -> None:
    write_base_manifest(tmp_path, json.dumps(document))

    with pytest.raises(ArtifactError, match="KPACK_SPLIT_ARTIFACTS"):
        build_info(scan(tmp_path))


def test_refuses_a_manifest_of_the_build_that_is_no_object(tmp_path: Path) -> None:
    write_base_manifest(tmp_path, "[]")

    with pytest.raises(ArtifactError, match="therock_manifest"):
        build_info(scan(tmp_path))
