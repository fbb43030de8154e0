import io
import json
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from ci.promote import edits, version_change
from ci.promote.candidates import Rewritten, rewrite_set
from ci.promote.version_change import RocmChange, final_of
from core.archive import Member
from core.errors import CheckError, WheelError
from core.files import sha256
from core.wheel.writer import WheelSpec, metadata_text, write_sdist, write_wheel
from pytorch_build.build.plans.torch import rocm_init_text
from pytorch_build.check import Expectation

ROCM, FINAL = "7.10.0rc2", "7.10.0"
TORCH, TORCH_FINAL = "2.10.0+rocm7.10.0rc2", "2.10.0+rocm7.10.0"
COMMIT = "7a20251120a10c2bd0f5e3c1a2b3c4d5e6f70819"
CHANGE = final_of(ROCM)
# the label lifts the limits that a wheel of a few bytes breaks
SMALL = {
    name: Expectation(distribution=name, version="", local_label="sample") for name in ("torch", "triton")
}


def info(version: str = ROCM, more: str = "") -> bytes:
    return f"ALL = ['core']\n__version__ = {version!r}\nNAMES = [\"don't\", 'gfx942']\n{more}".encode()


@dataclass(kw_only=True)
class Package:
    """A wheel as a build writes it, with its version wherever it belongs."""

    name: str
    version: str = ROCM
    tag: str = "py3-none-linux_x86_64"
    requires: Sequence[str] = ()
    members: dict[str, bytes] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        fields = [("Name", self.name), ("Version", self.version)]
        fields += [("Requires-Dist", one) for one in self.requires]
        spec = WheelSpec(
            distribution=self.name,
            version=self.version,
            tag=self.tag,
            metadata=metadata_text(fields) + "\nThe body.\n",
            purelib=self.tag.startswith("py3"),
        )
        found = [Member(name=name, source=data) for name, data in self.members.items()]
        return write_wheel(folder, spec, found).path


def core(version: str = ROCM) -> Package:
    return Package(
        name="rocm-sdk-core",
        version=version,
        members={
            "rocm_sdk_core/__init__.py": b"",
            "rocm_sdk_core/_dist_info.py": info(version),
            "_rocm_sdk_core/lib/libamdhip64.so.7": b"\x7fno ELF\0" * 9999,
            "_rocm_sdk_core/share/therock/therock_manifest.json": b'{"rocm_version": "7.10.0"}',
        },
    )


def device(version: str = ROCM) -> Package:
    links = {"version": version, "links": [{"relpath": "lib/a.so", "target": "../a.so"}]}
    return Package(
        name="rocm-sdk-device-gfx942",
        version=version,
        requires=[f"rocm-sdk-libraries=={version}"],
        members={
            "_rocm_sdk_libraries/.devel_links/gfx942.json": json.dumps(links).encode(),
            "_rocm_sdk_libraries/lib/a.kpack": b"\0",
        },
    )


def devel(version: str = ROCM, tree: Mapping[str, bytes] | None = None) -> Package:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, data in (tree or {"_rocm_sdk_devel/include/hip.h": b"#define HIP 7\n"}).items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return Package(
        name="rocm-sdk-devel",
        version=version,
        requires=[f"rocm-sdk-core=={version}"],
        members={"rocm_sdk_devel/_dist_info.py": info(version), "rocm_sdk_devel/_devel.tar": raw.getvalue()},
    )


def torch(version: str = TORCH, rocm: str = ROCM) -> Package:
    local = version.partition("+")[2]
    return Package(
        name="torch",
        version=version,
        tag="cp312-cp312-linux_x86_64",
        requires=["filelock", f"rocm[libraries]=={rocm}", f'triton==3.6.0+{local} ; sys_platform == "linux"'],
        members={
            "torch/__init__.py": b"from torch.version import __version__\n",
            "torch/version.py": (
                f"__version__ = '{version}'\ngit_version = '{COMMIT}'\nhip: str = '7.10.0'\n"
            ).encode(),
            "torch/_rocm_init.py": rocm_init_text(("amdhip64",), rocm_version=rocm).encode(),
        },
    )


def triton(rocm: str = ROCM) -> Package:
    return Package(
        name="triton",
        version=f"3.6.0+rocm{rocm}",
        tag="cp312-cp312-linux_x86_64",
        members={"triton/__init__.py": b"__version__ = '3.6.0'\n"},
    )


def profiler() -> Package:
    return Package(name="rocm-profiler", members={"rocm_profiler/_dist_info.py": info()})


def sdist(folder: Path, version: str = ROCM) -> Path:
    metadata = metadata_text([("Name", "rocm"), ("Version", version)])
    requires = (
        f"rocm-sdk-core=={version}\nnumpy\n\n[devel]\nrocm-sdk-devel=={version}\n\n[libraries:extra]\n# x\n"
    )
    members = [
        Member(name="setup.py", source=b"setup()\n"),
        Member(name="src/rocm_sdk/_dist_info.py", source=info(version)),
        Member(name="src/rocm.egg-info/PKG-INFO", source=metadata.encode()),
        Member(name="src/rocm.egg-info/requires.txt", source=requires.encode()),
    ]
    return write_sdist(folder, "rocm", version, members, metadata=metadata).path


def rewrite(folder: Path, *packages: Package, change: RocmChange = CHANGE) -> tuple[Rewritten, ...]:
    files = [one.write(folder / "old") for one in packages]
    return rewrite_set(files, folder / "new", change, expected=SMALL)


def read(path: Path, member: str) -> str:
    with zipfile.ZipFile(path) as archive:
        return archive.read(member).decode()


def test_a_set_is_what_a_build_of_the_release_would_write(tmp_path: Path) -> None:
    files = [one.write(tmp_path / "old") for one in (core(), device(), devel(), torch(), triton())]
    files.append(sdist(tmp_path / "old"))
    before = {path.name: sha256(path) for path in files}
    done = rewrite_set(files, tmp_path / "new", CHANGE, expected=SMALL)
    packages = (core(FINAL), device(FINAL), devel(FINAL), torch(TORCH_FINAL, FINAL), triton(FINAL))
    built = [*(one.write(tmp_path / "built") for one in packages), sdist(tmp_path / "built", FINAL)]
    made = {path.name: sha256(path) for path in (tmp_path / "new").iterdir()}
    assert made == {path.name: sha256(path) for path in built}
    assert [one.plan.source for one in done] == sorted(before)
    assert {path.name: sha256(path) for path in files} == before
    for one in done:
        assert one.file.path == tmp_path / "new" / one.plan.target
        assert (one.file.sha256, one.file.size) == (sha256(one.file.path), one.file.path.stat().st_size)


def having(package: Package, member: str, content: bytes | None) -> Package:
    """Return a package another member, or take one away."""
    members = {name: data for name, data in package.members.items() if name != member}
    return replace(package, members=members if content is None else {**members, member: content})


ROCM_INFO = "rocm_sdk_core/_dist_info.py"
LINKS = "_rocm_sdk_libraries/.devel_links/gfx942.json"


@pytest.mark.parametrize(
    ("package", "member", "content", "said"),
    [
        (core(), ROCM_INFO, None, r"rocm_\*/_dist_info.py: there is no such file"),
        (torch(), "torch/_rocm_init.py", None, "torch/_rocm_init.py: there is no such file"),
        (torch(), "torch/version.py", None, "torch/version.py: there is no such file"),
        (device(), LINKS, None, r"\.devel_links/\*\.json: there is no such file"),
        (core(), ROCM_INFO, info("7.10.0rc1"), f"{ROCM_INFO}: It does not hold 7.10.0rc2 between quotes"),
        (torch(), "torch/version.py", b"v = '2.10.0'\n", "It does not hold 2.10.0.rocm7.10.0rc2"),
        (torch(), "torch/a.py", b"\n\nB = '7.10.0rc2'\n", "torch/a.py: line 3 still holds 7.10.0rc2"),
        (core(), ROCM_INFO, info(more="# for 7.10.0rc2\n"), f"{ROCM_INFO}: line 4 still holds 7.10.0rc2"),
        (triton(), "triton/7.py", b"text = 'ROCm 7.10.0rc2, from 7.9'\n", "triton/7.py: line 1 still holds"),
        (core(), "_rocm_7.10.0rc2/lib/a.so", b"\0", "_rocm_7.10.0rc2/lib/a.so: its path still holds"),
        (devel(), "rocm_sdk_devel/_devel.tar", b"\0no tar" * 99, "cannot be read as a tar"),
        (
            replace(torch(), requires=["rocm[libraries]==7.10.0rc1"]),
            "",
            None,
            r"METADATA: The requirement 'rocm\[libraries\]==7.10.0rc1' is not on ROCm 7.10.0rc2",
        ),
        (replace(torch(), requires=["rocm<=7.10.0rc2,!=7.10.0rc2"]), "", None, "METADATA: line 4 still"),
        (devel(tree={"share/made.txt": b"7.10.0rc2"}), "", None, "_devel.tar/share/made.txt: line 1 still"),
    ],
)
def test_a_wheel_that_does_not_hold_versions_where_it_should(
    tmp_path: Path, package: Package, member: str, content: bytes | None, said: str
) -> None:
    with pytest.raises(WheelError, match=said) as refused:
        rewrite(tmp_path, profiler(), having(package, member, content))
    assert package.name.replace("-", "_") in refused.value.message
    assert list((tmp_path / "new").iterdir()) == []


def test_every_problem_of_a_wheel_is_named(tmp_path: Path) -> None:
    package = having(having(torch(), "torch/version.py", None), "torch/a.py", b"'7.10.0rc2'")
    with pytest.raises(WheelError) as refused:
        rewrite(tmp_path, package)
    assert refused.value.message.splitlines() == [
        "torch-2.10.0+rocm7.10.0rc2-cp312-cp312-linux_x86_64.whl cannot become 2.10.0+rocm7.10.0:",
        "  torch/a.py: line 1 still holds 7.10.0rc2.",
        "  torch/version.py: there is no such file.",
    ]
    assert "rewriting.toml" in refused.value.hint


def test_the_data_allows_mentions_of_a_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mention = {"distributions": ["triton"], "members": "triton/history.md", "reason": "release notes"}
    plain = version_change.rules().model_dump() | {"mentions": (mention,)}
    made = version_change.Rules.model_validate(plain)
    monkeypatch.setattr(edits, "rules", lambda: made)
    done = rewrite(tmp_path, having(triton(), "triton/history.md", b"Since 7.10.0rc2: nothing.\n"))
    assert read(done[0].file.path, "triton/history.md") == "Since 7.10.0rc2: nothing.\n"


def test_builds_that_know_their_whole_version(tmp_path: Path) -> None:
    manifest = "_rocm_sdk_core/share/therock/therock_manifest.json"
    done = rewrite(tmp_path, having(core(), manifest, b'{"rocm_version": "7.10.0rc2"}'))
    assert read(done[0].file.path, manifest) == '{"rocm_version": "7.10.0"}'


def test_damage_that_record_hides_is_found_in_the_result(tmp_path: Path) -> None:
    path = core().write(tmp_path / "old")
    with zipfile.ZipFile(path) as archive:
        found = archive.getinfo("_rocm_sdk_core/lib/libamdhip64.so.7")
    raw = bytearray(path.read_bytes())
    raw[found.header_offset + 30 + len(found.filename) + found.compress_size // 2] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(WheelError, match=r"rocm_sdk_core-7\.10\.0rc2.*libamdhip64"):
        rewrite_set([path], tmp_path / "new", CHANGE)
    assert list((tmp_path / "new").iterdir()) == []


def test_torch_is_checked_as_a_built_wheel_is(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="one that works has at least"):
        rewrite_set([torch().write(tmp_path)], tmp_path / "new", CHANGE)
