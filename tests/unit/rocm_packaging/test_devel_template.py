"""The part of the `rocm_sdk` runtime that writes into environments, run from its template."""

import errno
import importlib
import io
import os
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from core.wheel.writer import write_tar
from tests.kit.rocm_sdk import (
    VERSION,
    install_files,
    install_metadata,
    install_runtime,
)

FAMILY = "gfx94X-dcgpu"
CORE = "_rocm_sdk_core"
DEVEL = "_rocm_sdk_devel"


@dataclass(frozen=True, kw_only=True)
class Environment:
    """An environment with ROCm's packages, whose development tree is expanded."""

    site: Path
    runtime: Any

    @property
    def tree(self) -> Path:
        """The development tree."""
        return self.site / DEVEL

    @property
    def record(self) -> Path:
        """The RECORD of the development package."""
        return self.site / f"rocm_sdk_devel-{VERSION}.dist-info" / "RECORD"

    def recorded_paths(self) -> list[str]:
        """Return the paths in the RECORD of the development package."""
        rows = self.record.read_text(encoding="utf-8").splitlines()
        return [row.partition(",")[0] for row in rows]

    def install_core(self, files: Mapping[str, str], *, version: str = VERSION) -> None:
        """Install the core package."""
        install_files(self.site / CORE, {"__init__.py": "", **files})
        paths = [f"{CORE}/{path}" for path in ("__init__.py", *files)]
        install_metadata(self.site, "rocm-sdk-core", paths, version=version)

    def uninstall_core(self) -> None:
        """Remove the core package, and what an installer keeps of it."""
        shutil.rmtree(self.site / CORE)
        for folder in self.site.glob("rocm_sdk_core-*.dist-info"):
            shutil.rmtree(folder)

    def install_devel(self, files: Mapping[str, str], *, archive: bytes | None = None) -> None:
        """Install the development package as an installer would: files, archive of links, RECORD."""
        if archive is None:
            archive = archive_of_links({})
        install_files(self.site, {"rocm_sdk_devel/__init__.py": ""})
        (self.site / "rocm_sdk_devel" / "_devel.tar").write_bytes(archive)
        install_files(self.tree, {"__init__.py": "", **files})

        paths = [f"{DEVEL}/{path}" for path in ("__init__.py", *files)]
        install_metadata(self.site, "rocm-sdk-devel", ["rocm_sdk_devel/__init__.py", *paths])

    def expand(self, *, force: bool = False) -> Path:
        """Expand the development tree; return it."""
        return Path(self.runtime.get_devel_root(force=force))


@pytest.fixture
def environment(sdk_site: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """Return an environment with the runtime alone."""
    install_runtime(sdk_site, families={FAMILY: ("gfx942",)})
    monkeypatch.setenv("ROCM_SDK_TARGET_FAMILY", FAMILY)
    return Environment(site=sdk_site, runtime=importlib.import_module("rocm_sdk._devel"))


def archive_of_links(links: Mapping[str, str]) -> bytes:
    """Return the archive that our builds write for links: path in the tree to target."""
    stream = io.BytesIO()
    write_tar(
        stream,
        [],
        links={f"{DEVEL}/{path}": target for path, target in links.items()},
    )
    return stream.getvalue()


def archive_of(*members: tarfile.TarInfo) -> bytes:
    """Return an archive of any members."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"x" * member.size))
    return stream.getvalue()


def tar_member(name: str, *, link: str = "x", kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    """Return a link, or another member."""
    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = link
    return member


# Expanding


def test_changes_nothing_in_an_expanded_tree(environment: Environment) -> None:
    environment.install_core({"lib/libx.so.1": "core"})
    environment.install_devel({"include/x.h": "h"})
    header = environment.expand() / "include/x.h"
    state_before = (environment.record.stat().st_mtime_ns, header.stat().st_ino)

    environment.expand()
    environment.expand(force=True)

    assert (
        environment.record.stat().st_mtime_ns,
        header.stat().st_ino,
    ) == state_before


def test_links_a_core_anew_that_was_replaced(environment: Environment) -> None:
    environment.install_core({"lib/libx.so.1": "old", "lib/gone.so": "old"})
    environment.install_devel({"include/x.h": "h"})
    environment.expand()
    environment.uninstall_core()
    environment.install_core({"lib/libx.so.1": "new"})

    tree = environment.expand()

    assert (tree / "lib/libx.so.1").read_text(encoding="utf-8") == "new"
    assert not (tree / "lib/gone.so").exists()
    assert (tree / "include/x.h").exists()


@pytest.mark.usefixtures("needs_links")
@pytest.mark.parametrize("is_reversed", [False, True])
def test_makes_links_in_any_order_of_the_archive(environment: Environment, *, is_reversed: bool) -> None:
    environment.install_core({"lib/libx.so.1": "core"})
    members = [
        tar_member(f"{DEVEL}/lib/liby.so", link="liby.so.1"),
        tar_member(f"{DEVEL}/lib/libx.so", link="libx.so.1"),
        tar_member(f"{DEVEL}/lib/libz.so", link="libx.so"),
    ]
    if is_reversed:
        members.reverse()
    environment.install_devel({"lib/liby.so.1": "y"}, archive=archive_of(*members))

    library_folder = environment.expand() / "lib"

    assert (library_folder / "liby.so").is_symlink()
    assert (library_folder / "libx.so").is_symlink()
    assert (library_folder / "libx.so").samefile(environment.site / CORE / "lib/libx.so.1")
    assert (library_folder / "libz.so").samefile(library_folder / "libx.so")


def test_keeps_a_file_of_the_development_package_where_core_has_one(
    environment: Environment,
) -> None:
    environment.install_core({"lib/libx.so.1": "core", "share/both": "core"})
    environment.install_devel({"share/both": "devel"})

    tree = environment.expand()

    assert (tree / "share/both").read_text(encoding="utf-8") == "devel"
    assert (tree / "lib/libx.so.1").read_text(encoding="utf-8") == "core"


# Packages of several versions


@pytest.mark.parametrize(
    "sibling",
    [
        "rocm-sdk-devel",
        "rocm-sdk-core",
        "rocm-sdk-libraries-gfx94x-dcgpu",
        "rocm-profiler",
        "rocm",
    ],
)
def test_refuses_a_package_of_another_version(environment: Environment, sibling: str) -> None:
    environment.install_core({"lib/libx.so.1": "core"})
    environment.install_devel({"include/x.h": "h"})
    for folder in environment.site.glob(f"{sibling.replace('-', '_')}-*.dist-info"):
        shutil.rmtree(folder)
    install_metadata(environment.site, sibling, version="8.0.0")
    paths_before = sorted(environment.tree.rglob("*"))

    with pytest.raises(RuntimeError) as raised:
        environment.expand(force=True)

    assert sibling in str(raised.value)
    assert "8.0.0" in str(raised.value)
    assert VERSION in str(raised.value)
    assert sorted(environment.tree.rglob("*")) == paths_before


def test_refuses_an_expanded_tree_after_a_half_upgrade(
    environment: Environment,
) -> None:
    environment.install_core({"lib/libx.so.1": "core"})
    environment.install_devel({"include/x.h": "h"})
    environment.expand()
    environment.uninstall_core()
    environment.install_core({"lib/libx.so.2": "core"}, version="8.0.0")

    with pytest.raises(RuntimeError, match=r"rocm-sdk-core 8\.0\.0"):
        environment.expand()


def test_accepts_a_package_that_was_only_packaged_again(
    environment: Environment,
) -> None:
    environment.install_core({"lib/libx.so.1": "core"}, version=f"{VERSION}.post1")
    environment.install_devel({"include/x.h": "h"})

    assert (environment.expand() / "lib/libx.so.1").is_file()


# Somebody else's environment


def forbid_changes(monkeypatch: pytest.MonkeyPatch, error_number: int) -> None:
    """Let files be opened for reading alone, as a folder of root's or a file system may."""
    open_file = open

    def refuse_writing(path: Any, mode: str = "r", **options: Any) -> Any:
        if not {"w", "a", "+"}.isdisjoint(mode):
            raise OSError(error_number, os.strerror(error_number), str(path))
        return open_file(path, mode, **options)

    monkeypatch.setattr("builtins.open", refuse_writing)


def copy_environment(environment: Environment) -> None:
    """Replace an environment's files by copies, as layers of an image do: other inodes, other times."""
    copy = environment.site.with_name("copy")
    shutil.copytree(environment.site, copy, symlinks=True, copy_function=shutil.copyfile)
    shutil.rmtree(environment.site)
    copy.rename(environment.site)


@pytest.mark.parametrize("error_number", [errno.EACCES, errno.EPERM, errno.EROFS])
@pytest.mark.parametrize("is_forced", [False, True])
def test_uses_a_copied_tree_that_this_user_may_not_change(
    environment: Environment,
    monkeypatch: pytest.MonkeyPatch,
    error_number: int,
    *,
    is_forced: bool,
) -> None:
    environment.install_core({"lib/libx.so.1": "core"})
    environment.install_devel({"include/x.h": "h"})
    environment.expand()
    copy_environment(environment)
    forbid_changes(monkeypatch, error_number)

    assert environment.expand(force=is_forced) == environment.tree


def test_says_who_may_update_a_tree_that_is_out_of_date(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.install_core({"lib/libx.so.1": "core"})
    environment.install_devel({"include/x.h": "h"})
    environment.expand()
    environment.uninstall_core()
    environment.install_core({"lib/libx.so.1": "another"})
    forbid_changes(monkeypatch, errno.EACCES)

    with pytest.raises(RuntimeError, match="rocm-sdk init"):
        environment.expand()


# Hostile archives


@pytest.mark.parametrize(
    "member",
    [
        tar_member("../evil"),
        tar_member("/evil"),
        tar_member("rocm_sdk_devel/__init__.py"),
        tar_member(f"{DEVEL}/../evil"),
        tar_member(f"{DEVEL}/link", link="/etc/passwd"),
        tar_member(f"{DEVEL}/link", link="../../evil"),
        tar_member(f"{DEVEL}/file", kind=tarfile.REGTYPE),
        tar_member(f"{DEVEL}/link", kind=tarfile.LNKTYPE, link="evil"),
        tar_member(f"{DEVEL}/pipe", kind=tarfile.FIFOTYPE),
    ],
    ids=lambda member: f"{member.name}-{member.linkname}",
)
def test_refuses_a_hostile_member_before_anything_is_written(
    environment: Environment, member: tarfile.TarInfo
) -> None:
    environment.install_devel({}, archive=archive_of(tar_member(f"{DEVEL}/good"), member))
    paths_before = environment.recorded_paths()

    with pytest.raises(RuntimeError, match="archive"):
        environment.expand()

    assert [path.name for path in environment.tree.iterdir()] == ["__init__.py"]
    assert environment.recorded_paths() == paths_before


@pytest.mark.usefixtures("needs_links")
def test_refuses_a_link_that_passes_through_another_package(
    environment: Environment,
) -> None:
    environment.install_core({"lib/x": "core"})
    link_to_core = tar_member(f"{DEVEL}/out", link=f"../{CORE}")
    archive = archive_of(link_to_core, tar_member(f"{DEVEL}/out/evil"))
    environment.install_devel({}, archive=archive)

    with pytest.raises(RuntimeError, match="leads out of"):
        environment.expand()

    assert not (environment.site / CORE / "evil").exists()


# Without the package


def test_fails_as_a_missing_module_without_the_package(
    environment: Environment,
) -> None:
    with pytest.raises(ModuleNotFoundError, match="rocm-sdk-devel"):
        environment.expand()


def test_does_not_take_a_leftover_folder_for_an_expanded_tree(
    environment: Environment,
) -> None:
    install_files(environment.tree, {"__init__.py": "", "bin/old": "x"})
    install_files(environment.site, {"rocm_sdk_devel/__init__.py": ""})
    install_metadata(environment.site, "rocm-sdk-devel")

    with pytest.raises(RuntimeError, match="install rocm"):
        environment.expand()
