"""A candidate's wheels and sdist written again as the release's."""

import io
import json
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from ci.promote import edits, version_change
from ci.promote.candidates import rewrite_set
from ci.promote.version_change import FileChange, final_of
from core.archive import Member
from core.errors import CheckError, WheelError
from core.wheel.writer import WheelSpec, WrittenFile, metadata_text, write_sdist, write_wheel
from pytorch_build.check import Expectation
from pytorch_build.components.torch import rocm_init_text
from tests.kit import wheels

CANDIDATE = "7.10.0rc2"
RELEASE = "7.10.0"
TORCH_CANDIDATE = "2.10.0+rocm7.10.0rc2"
TORCH_RELEASE = "2.10.0+rocm7.10.0"
COMMIT = "7a20251120a10c2bd0f5e3c1a2b3c4d5e6f70819"
CHANGE = final_of(CANDIDATE)
# The label lifts the limits that a wheel of a few bytes breaks.
EXPECTATIONS = {
    name: Expectation(distribution=name, version="", has_full_size=False) for name in ("torch", "triton")
}

CORE_INFO = "rocm_sdk_core/_dist_info.py"
DEVICE_LINKS = "_rocm_sdk_libraries/.devel_links/gfx942.json"
MANIFEST = "_rocm_sdk_core/share/therock/therock_manifest.json"


def dist_info(version: str = CANDIDATE, last_lines: str = "") -> bytes:
    """Return the module in which ROCm's packages state their version."""
    return (
        f"ALL = ['core']\n__version__ = {version!r}\nNAMES = [\"don't\", 'gfx942']\n{last_lines}"
    ).encode()


@dataclass(frozen=True, kw_only=True)
class Package:
    """A wheel as a build writes it, with its version wherever it belongs.

    It is written with the builds' own writer, since the release's files must equal a build's to the byte.
    """

    name: str
    version: str = CANDIDATE
    tag: str = "py3-none-linux_x86_64"
    requires: Sequence[str] = ()
    members: Mapping[str, bytes] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """Write the wheel; return its path."""
        fields = [("Name", self.name), ("Version", self.version)]
        fields += [("Requires-Dist", requirement) for requirement in self.requires]
        spec = WheelSpec(
            distribution=self.name,
            version=self.version,
            tag=self.tag,
            metadata=metadata_text(fields) + "\nThe body.\n",
            purelib=self.tag.startswith("py3"),
        )
        members = [Member(name=name, source=content) for name, content in self.members.items()]
        return write_wheel(folder, spec, members).path

    def with_member(self, name: str, content: bytes) -> "Package":
        """Return this package with another member, or another content of one."""
        return replace(self, members={**self.members, name: content})

    def without_member(self, name: str) -> "Package":
        """Return this package without one of its members."""
        members = dict(self.members)
        del members[name]
        return replace(self, members=members)


def core_package(version: str = CANDIDATE) -> Package:
    """Return ROCm's core package, whose library is compressible and no ELF file."""
    return Package(
        name="rocm-sdk-core",
        version=version,
        members={
            "rocm_sdk_core/__init__.py": b"",
            CORE_INFO: dist_info(version),
            "_rocm_sdk_core/lib/libamdhip64.so.7": b"\x7fno ELF\0" * 9999,
            MANIFEST: b'{"rocm_version": "7.10.0"}',
        },
    )


def device_package(version: str = CANDIDATE) -> Package:
    """Return the package of a target's device code."""
    links = {"version": version, "links": [{"relpath": "lib/a.so", "target": "../a.so"}]}
    return Package(
        name="rocm-sdk-device-gfx942",
        version=version,
        requires=[f"rocm-sdk-libraries=={version}"],
        members={
            DEVICE_LINKS: json.dumps(links).encode(),
            "_rocm_sdk_libraries/lib/a.kpack": b"\0",
        },
    )


def devel_package(version: str = CANDIDATE, files: Mapping[str, bytes] | None = None) -> Package:
    """Return the package of ROCm's headers, which are in a tar archive."""
    if files is None:
        files = {"_rocm_sdk_devel/include/hip.h": b"#define HIP 7\n"}
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return Package(
        name="rocm-sdk-devel",
        version=version,
        requires=[f"rocm-sdk-core=={version}"],
        members={
            "rocm_sdk_devel/_dist_info.py": dist_info(version),
            "rocm_sdk_devel/_devel.tar": content.getvalue(),
        },
    )


def torch_package(version: str = TORCH_CANDIDATE, rocm_version: str = CANDIDATE) -> Package:
    """Return a torch, which states its own version and ROCm's."""
    local_version = version.partition("+")[2]
    version_module = f"__version__ = '{version}'\ngit_version = '{COMMIT}'\nhip: str = '7.10.0'\n"
    return Package(
        name="torch",
        version=version,
        tag="cp312-cp312-linux_x86_64",
        requires=[
            "filelock",
            f"rocm[libraries]=={rocm_version}",
            f'triton==3.6.0+{local_version} ; sys_platform == "linux"',
        ],
        members={
            "torch/__init__.py": b"from torch.version import __version__\n",
            "torch/version.py": version_module.encode(),
            "torch/_rocm_init.py": rocm_init_text(("amdhip64",), rocm_version=rocm_version).encode(),
        },
    )


def triton_package(rocm_version: str = CANDIDATE) -> Package:
    """Return a triton, which states its version without the local part."""
    return Package(
        name="triton",
        version=f"3.6.0+rocm{rocm_version}",
        tag="cp312-cp312-linux_x86_64",
        members={"triton/__init__.py": b"__version__ = '3.6.0'\n"},
    )


def profiler_package() -> Package:
    """Return a package that can be rewritten."""
    return Package(name="rocm-profiler", members={"rocm_profiler/_dist_info.py": dist_info()})


def write_rocm_sdist(folder: Path, version: str = CANDIDATE) -> Path:
    """Write ROCm's sdist as a build does."""
    metadata = metadata_text([("Name", "rocm"), ("Version", version)])
    requires = (
        f"rocm-sdk-core=={version}\nnumpy\n\n[devel]\nrocm-sdk-devel=={version}\n\n[libraries:extra]\n# x\n"
    )
    members = [
        Member(name="setup.py", source=b"setup()\n"),
        Member(name="src/rocm_sdk/_dist_info.py", source=dist_info(version)),
        Member(name="src/rocm.egg-info/PKG-INFO", source=metadata.encode()),
        Member(name="src/rocm.egg-info/requires.txt", source=requires.encode()),
    ]
    return write_sdist(folder, "rocm", version, members, metadata=metadata).path


def rewrite(folder: Path, *packages: Package) -> Mapping[FileChange, WrittenFile]:
    """Write packages as candidates, and rewrite them."""
    paths = [package.write(folder / "old") for package in packages]
    return rewrite_set(paths, folder / "new", CHANGE, expected=EXPECTATIONS)


def digests_in(folder: Path) -> dict[str, str]:
    """Return the digests of a folder's files: name to digest."""
    return {path.name: wheels.sha256(path) for path in folder.iterdir()}


# Sets that become a release's


def write_candidates(folder: Path) -> list[Path]:
    """Write every kind of package, and the sdist, of a candidate."""
    packages = (core_package(), device_package(), devel_package(), torch_package(), triton_package())
    paths = [package.write(folder) for package in packages]
    return [*paths, write_rocm_sdist(folder)]


def test_writes_the_bytes_that_a_build_of_the_release_writes(tmp_path: Path) -> None:
    candidates = write_candidates(tmp_path / "old")
    built_packages = (
        core_package(RELEASE),
        device_package(RELEASE),
        devel_package(RELEASE),
        torch_package(TORCH_RELEASE, RELEASE),
        triton_package(RELEASE),
    )
    for package in built_packages:
        package.write(tmp_path / "built")
    write_rocm_sdist(tmp_path / "built", RELEASE)

    rewrite_set(candidates, tmp_path / "new", CHANGE, expected=EXPECTATIONS)

    assert digests_in(tmp_path / "new") == digests_in(tmp_path / "built")


def test_describes_every_rewritten_file_and_keeps_its_source(tmp_path: Path) -> None:
    candidates = write_candidates(tmp_path / "old")
    digests_before = digests_in(tmp_path / "old")

    written_files = rewrite_set(candidates, tmp_path / "new", CHANGE, expected=EXPECTATIONS)

    assert [file_change.source for file_change in written_files] == sorted(digests_before)
    assert digests_in(tmp_path / "old") == digests_before
    for file_change, written_file in written_files.items():
        assert written_file.path == tmp_path / "new" / file_change.target
        assert written_file.sha256 == wheels.sha256(written_file.path)
        assert written_file.size == written_file.path.stat().st_size


def test_keeps_a_mention_of_the_candidate_that_the_data_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mention = {"distributions": ["triton"], "members": "triton/history.md", "reason": "release notes"}
    data = version_change.rules().model_dump() | {"mentions": (mention,)}
    rules = version_change.RewritingRules.model_validate(data)
    monkeypatch.setattr(edits, "rules", lambda: rules)
    package = triton_package().with_member("triton/history.md", b"Since 7.10.0rc2: nothing.\n")

    (written_file,) = rewrite(tmp_path, package).values()

    members = wheels.read_members(written_file.path)
    assert members["triton/history.md"] == b"Since 7.10.0rc2: nothing.\n"


def test_rewrites_a_manifest_that_states_the_candidates_version(tmp_path: Path) -> None:
    package = core_package().with_member(MANIFEST, b'{"rocm_version": "7.10.0rc2"}')

    (written_file,) = rewrite(tmp_path, package).values()

    assert wheels.read_members(written_file.path)[MANIFEST] == b'{"rocm_version": "7.10.0"}'


# Sets that are refused


OTHER_ROCM = "rocm[libraries]==7.10.0rc1"


@pytest.mark.parametrize(
    ("package", "phrases"),
    [
        (core_package().without_member(CORE_INFO), ["rocm_*/_dist_info.py"]),
        (torch_package().without_member("torch/_rocm_init.py"), ["torch/_rocm_init.py"]),
        (torch_package().without_member("torch/version.py"), ["torch/version.py"]),
        (device_package().without_member(DEVICE_LINKS), [".devel_links/*.json"]),
        (core_package().with_member(CORE_INFO, dist_info("7.10.0rc1")), [CORE_INFO, "7.10.0rc2"]),
        (torch_package().with_member("torch/version.py", b"v = '2.10.0'\n"), ["2.10.0+rocm7.10.0rc2"]),
        (torch_package().with_member("torch/a.py", b"\n\nB = '7.10.0rc2'\n"), ["torch/a.py", "line 3"]),
        (
            core_package().with_member(CORE_INFO, dist_info(last_lines="# for 7.10.0rc2\n")),
            [CORE_INFO, "line 4"],
        ),
        (
            triton_package().with_member("triton/7.py", b"text = 'ROCm 7.10.0rc2, from 7.9'\n"),
            ["triton/7.py", "line 1"],
        ),
        (core_package().with_member("_rocm_7.10.0rc2/lib/a.so", b"\0"), ["_rocm_7.10.0rc2/lib/a.so", "path"]),
        (devel_package().with_member("rocm_sdk_devel/_devel.tar", b"\0no tar" * 99), ["_devel.tar"]),
        (replace(torch_package(), requires=[OTHER_ROCM]), ["METADATA", OTHER_ROCM]),
        (replace(torch_package(), requires=["rocm<=7.10.0rc2,!=7.10.0rc2"]), ["METADATA", "line 4"]),
        (devel_package(files={"share/made.txt": b"7.10.0rc2"}), ["_devel.tar/share/made.txt", "line 1"]),
    ],
    ids=[
        "no module of versions",
        "no module of torch's ROCm",
        "no module of torch's version",
        "no links of device code",
        "another version in a module",
        "another version of torch",
        "a mention in an unknown module",
        "a second mention in a module",
        "a mention within a text",
        "a mention in a path",
        "a broken archive",
        "a requirement on another candidate",
        "a requirement that excludes the candidate",
        "a mention in an archive",
    ],
)
def test_rejects_a_wheel_whose_versions_stand_elsewhere(
    tmp_path: Path, package: Package, phrases: list[str]
) -> None:
    with pytest.raises(WheelError) as raised:
        rewrite(tmp_path, profiler_package(), package)

    assert package.name.replace("-", "_") in raised.value.message
    for phrase in phrases:
        assert phrase in raised.value.message
    # Not even the wheel that could be rewritten appears.
    assert list((tmp_path / "new").iterdir()) == []


def test_names_every_problem_of_a_wheel(tmp_path: Path) -> None:
    package = torch_package().without_member("torch/version.py").with_member("torch/a.py", b"'7.10.0rc2'")

    with pytest.raises(WheelError) as raised:
        rewrite(tmp_path, package)

    heading, *problems = raised.value.message.splitlines()
    assert "torch-2.10.0+rocm7.10.0rc2-cp312-cp312-linux_x86_64.whl" in heading
    assert [problem.strip().partition(":")[0] for problem in problems] == ["torch/a.py", "torch/version.py"]
    assert "rewriting.toml" in raised.value.hint


def test_rejects_damage_that_record_hides(tmp_path: Path) -> None:
    path = core_package().write(tmp_path / "old")
    with zipfile.ZipFile(path) as archive:
        library = archive.getinfo("_rocm_sdk_core/lib/libamdhip64.so.7")
    # The compressed bytes of a member follow its header of 30 bytes and its name.
    middle = library.header_offset + 30 + len(library.filename) + library.compress_size // 2
    content = bytearray(path.read_bytes())
    content[middle] ^= 0xFF
    path.write_bytes(content)

    with pytest.raises(WheelError) as raised:
        rewrite_set([path], tmp_path / "new", CHANGE)

    assert "rocm_sdk_core-7.10.0rc2" in raised.value.message
    assert "libamdhip64" in raised.value.message
    assert list((tmp_path / "new").iterdir()) == []


def test_checks_torch_as_a_built_wheel_is_checked(tmp_path: Path) -> None:
    # This one is too small to be a torch.
    with pytest.raises(CheckError, match="at least"):
        rewrite_set([torch_package().write(tmp_path)], tmp_path / "new", CHANGE)
