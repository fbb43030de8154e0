import json
from pathlib import Path

import pytest

from core.errors import ArtifactError, MissingInputError
from rocm_packaging.artifacts import build_info, families_of, merged, scan
from tests.kit.artifact_sets import write_base


def artifact(root: Path, name: str, files: dict[str, str], stages: str = "a/stage\n") -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "artifact_manifest.txt").write_text(stages, encoding="utf-8")
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content, encoding="utf-8")
    return folder


def test_scan_reads_names_and_stages(tmp_path: Path) -> None:
    artifact(tmp_path, "core-hip_lib_generic", {}, "core/clr/stage\n\ncore/x/stage\n")
    artifact(tmp_path, "blas_lib_gfx94X-dcgpu", {})
    artifact(tmp_path, "blas_lib_gfx942:xnack+", {})
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "notes.txt").write_text("x", encoding="utf-8")
    found = scan(tmp_path)
    expected = [("blas", "lib", "gfx942"), ("blas", "lib", "gfx94X-dcgpu"), ("core-hip", "lib", "generic")]
    assert [(a.name, a.component, a.target) for a in found] == expected
    assert found[2].stages == ("core/clr/stage", "core/x/stage")
    assert families_of(found) == ("gfx942", "gfx94X-dcgpu")


def test_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="no artifact folders"):
        scan(tmp_path)
    with pytest.raises(MissingInputError, match="is not a directory"):
        scan(tmp_path / "absent")


@pytest.mark.parametrize(
    ("name", "stages", "said"),
    [
        ("blas_lib", "", "not named"),
        ("blas_libs_generic", "", "Did you mean 'lib'"),
        ("a_lib_b_c", "", "not named"),
        *(
            ("a_lib_generic", f"{one}\n", "outside of the art")
            for one in ("/etc", "../x", "a/../../x", "a//b")
        ),
    ],
)
def test_malformed_names_and_stages_are_refused(tmp_path: Path, name: str, stages: str, said: str) -> None:
    artifact(tmp_path, name, {}, stages)
    with pytest.raises(ArtifactError, match=said):
        scan(tmp_path)


def test_a_manifest_is_required(tmp_path: Path) -> None:
    (tmp_path / "a_lib_generic").mkdir()
    with pytest.raises(ArtifactError, match=r"no artifact_manifest\.txt"):
        scan(tmp_path)


def test_merged_takes_prefixes_off_and_keeps_links(tmp_path: Path) -> None:
    folder = artifact(tmp_path, "a_lib_generic", {"a/stage/lib/x.so.1": "x"}, "a/stage\nabsent/stage\n")
    (folder / "a/stage/lib/x.so").symlink_to("x.so.1")
    artifact(tmp_path, "b_run_generic", {"b/stage/bin/tool": "t", "elsewhere/lost": "l"}, "b/stage\n")
    (tmp_path / "b_run_generic/b/stage/bin/tool").chmod(0o755)
    tree = merged(scan(tmp_path))
    expected = {"bin/tool": ("", True), "lib/x.so": ("x.so.1", False), "lib/x.so.1": ("", False)}
    assert {path: (entry.link, entry.executable) for path, entry in tree.items()} == expected


@pytest.mark.parametrize("other", ["diff", "longer than that"])
def test_different_files_of_one_path_are_refused(tmp_path: Path, other: str) -> None:
    artifact(tmp_path, "a_lib_generic", {"a/stage/x": "same"})
    artifact(tmp_path, "b_lib_generic", {"a/stage/x": other})
    with pytest.raises(ArtifactError, match="different files for x"):
        merged(scan(tmp_path))


@pytest.mark.parametrize("stage", ["a/stage", "b/stage"])
@pytest.mark.parametrize(("one", "kind"), [("file", "a file"), ("link", "a link")])
def test_a_file_or_link_for_a_folder_is_refused(tmp_path: Path, one: str, kind: str, stage: str) -> None:
    artifact(tmp_path, "a_lib_generic", {"a/stage/lib/real/x": "x"}, "a/stage\nb/stage\n")
    folder = artifact(tmp_path, "b_run_generic", {f"{stage}/lib/y": "y"}, f"{stage}\n")
    artifact(tmp_path, "c_run_generic", {"a/stage/lib/tool/deep/z": "z"})
    tool = folder / stage / "lib/tool"
    tool.write_text("t", encoding="utf-8") if one == "file" else tool.symlink_to("real")
    with pytest.raises(ArtifactError, match=f"lib/tool is {kind} .*b_run_generic.*folder .*c_run_generic"):
        merged(scan(tmp_path))


@pytest.mark.parametrize(("path", "names"), [("lib/X.h", "lib/x.h .*lib/X.h"), ("LIB/y", "lib .*LIB")])
def test_two_spellings_of_one_name_are_refused_for_windows(tmp_path: Path, path: str, names: str) -> None:
    artifact(tmp_path, "a_lib_generic", {"a/stage/lib/x.h": "x"})
    artifact(tmp_path, "b_lib_generic", {f"a/stage/{path}": "x"})
    assert len(merged(scan(tmp_path))) == 2
    with pytest.raises(ArtifactError, match=f"Windows takes {names} .*for one name") as raised:
        merged(scan(tmp_path), folded=True)
    assert all(name in raised.value.message for name in ("a_lib_generic", "b_lib_generic"))


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../outside", ".."])
def test_links_out_of_the_tree_are_refused(tmp_path: Path, target: str) -> None:
    folder = artifact(tmp_path, "a_lib_generic", {"a/stage/lib/x": "x"})
    (folder / "a/stage/link").symlink_to(target)
    with pytest.raises(ArtifactError, match="outside of ROCm's tree"):
        merged(scan(tmp_path))


def test_build_info_needs_the_base_artifact(tmp_path: Path) -> None:
    artifact(tmp_path, "blas_lib_generic", {})
    with pytest.raises(ArtifactError, match="base_lib_generic is missing"):
        build_info(scan(tmp_path))


@pytest.mark.parametrize("manifest", [{}, {"flags": {}}, {"flags": {"KPACK_SPLIT_ARTIFACTS": "ON"}}, []])
def test_build_info_needs_the_split_flag(tmp_path: Path, manifest: object) -> None:
    write_base(tmp_path, split=False)
    (written,) = tmp_path.rglob("therock_manifest.json")
    written.write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"KPACK_SPLIT_ARTIFACTS|JSON object"):
        build_info(scan(tmp_path))
