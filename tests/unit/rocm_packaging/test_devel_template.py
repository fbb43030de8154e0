"""The part of the `rocm_sdk` runtime that writes into environments, run from its template."""

import importlib
import io
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from core.wheel.writer import write_tar

FAMILY = "gfx94X-dcgpu"
CORE, DEVEL = "_rocm_sdk_core", "_rocm_sdk_devel"


@dataclass(frozen=True, kw_only=True)
class Site:
    root: Path
    devel: Any

    @property
    def record(self) -> Path:
        return self.root / "rocm_sdk_devel-1.0.0.dist-info" / "RECORD"

    @property
    def tree(self) -> Path:
        return self.root / DEVEL

    def recorded(self) -> list[str]:
        return [line.partition(",")[0] for line in self.record.read_text(encoding="utf-8").splitlines()]

    def add_package(self, name: str, **files: str) -> None:
        for path, content in {"__init__.py": "", **files}.items():
            target = self.root / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content, encoding="utf-8")
        importlib.invalidate_caches()

    def add_devel(self, files: dict[str, str], links: dict[str, str] | None = None) -> None:
        """Install the devel wheel as an installer would: its files, its archive, its RECORD."""
        stream = io.BytesIO()
        write_tar(stream, [], links={f"{DEVEL}/{path}": link for path, link in (links or {}).items()})
        self.add_devel_with(stream.getvalue(), files)

    def add_devel_with(self, archive: bytes, files: dict[str, str] | None = None) -> None:
        self.add_package("rocm_sdk_devel")
        (self.root / "rocm_sdk_devel" / "_devel.tar").write_bytes(archive)
        self.add_package(DEVEL, **(files or {}))
        rows = [
            "rocm_sdk_devel/__init__.py",
            *(f"{DEVEL}/{path}" for path in ("__init__.py", *(files or ()))),
        ]
        self.record.parent.mkdir()
        self.record.write_text("".join(f"{row},sha256=x,1\n" for row in rows), encoding="utf-8")

    def expand(self, *, force: bool = False) -> Path:
        return Path(self.devel.get_devel_root(force=force))


@pytest.fixture
def site(installed_sdk: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Site:
    root = installed_sdk({FAMILY: ("gfx942",)})
    monkeypatch.setenv("ROCM_SDK_TARGET_FAMILY", FAMILY)
    return Site(root=root, devel=importlib.import_module("rocm_sdk._devel"))


def raw_tar(*members: tarfile.TarInfo) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"x" * member.size))
    return stream.getvalue()


def member(name: str, *, kind: bytes = tarfile.SYMTYPE, link: str = "x") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def test_a_second_call_changes_nothing(site: Site) -> None:
    site.add_package(CORE, **{"lib/libx.so.1": "core"})
    site.add_devel({"include/x.h": "h"})
    site.expand()
    before = site.record.stat().st_mtime_ns, (site.tree / "include/x.h").stat().st_ino
    site.expand()
    site.expand(force=True)
    assert (site.record.stat().st_mtime_ns, (site.tree / "include/x.h").stat().st_ino) == before


def test_a_replaced_core_is_linked_anew(site: Site) -> None:
    site.add_package(CORE, **{"lib/libx.so.1": "old", "lib/gone.so": "old"})
    site.add_devel({"include/x.h": "h"})
    site.expand()
    for path in ("__init__.py", "lib/libx.so.1", "lib/gone.so"):
        (site.root / CORE / path).unlink()
    site.add_package(CORE, **{"lib/libx.so.1": "new"})
    root = site.expand(force=True)
    assert (root / "lib/libx.so.1").read_text(encoding="utf-8") == "new"
    assert not (root / "lib/gone.so").exists()
    assert (root / "include/x.h").exists()


@pytest.mark.parametrize(
    "hostile",
    [
        member("../evil"),
        member("/evil"),
        member("rocm_sdk_devel/__init__.py"),
        member(f"{DEVEL}/../evil"),
        member(f"{DEVEL}/link", link="/etc/passwd"),
        member(f"{DEVEL}/link", link="../../evil"),
        member(f"{DEVEL}/file", kind=tarfile.REGTYPE),
        member(f"{DEVEL}/link", kind=tarfile.LNKTYPE, link="evil"),
        member(f"{DEVEL}/pipe", kind=tarfile.FIFOTYPE),
    ],
    ids=lambda info: f"{info.name}-{info.linkname}",
)
def test_hostile_members_are_refused_before_anything_is_written(site: Site, hostile: tarfile.TarInfo) -> None:
    site.add_devel_with(raw_tar(member(f"{DEVEL}/good"), hostile))
    before = site.recorded()
    with pytest.raises(RuntimeError, match="the devel archive holds"):
        site.expand()
    assert [path.name for path in site.tree.iterdir()] == ["__init__.py"]
    assert site.recorded() == before


def test_links_do_not_pass_through_links_to_other_packages(site: Site) -> None:
    site.add_package(CORE, **{"lib/x": "core"})
    out, evil = member(f"{DEVEL}/out", link=f"../{CORE}"), member(f"{DEVEL}/out/evil")
    site.add_devel_with(raw_tar(out, evil))
    with pytest.raises(RuntimeError, match="leads out of"):
        site.expand()
    assert not (site.root / CORE / "evil").exists()


def test_a_missing_devel_package_is_a_missing_module(site: Site) -> None:
    with pytest.raises(ModuleNotFoundError, match="rocm-sdk-devel is not installed"):
        site.expand()


def test_a_left_over_folder_is_not_taken_for_an_expanded_tree(site: Site) -> None:
    site.add_package(DEVEL, **{"bin/old": "x"})
    site.add_package("rocm_sdk_devel")
    site.record.parent.mkdir()
    site.record.write_text("", encoding="utf-8")
    with pytest.raises(RuntimeError, match="install rocm"):
        site.expand()


@pytest.mark.parametrize("turned", [False, True])
def test_the_order_of_the_archive_does_not_show(site: Site, *, turned: bool) -> None:
    site.add_package(CORE, **{"lib/libx.so.1": "core"})
    members = [
        member(f"{DEVEL}/lib/liby.so", link="liby.so.1"),
        member(f"{DEVEL}/lib/libx.so", link="libx.so.1"),
        member(f"{DEVEL}/lib/libz.so", link="libx.so"),
    ]
    archive = raw_tar(*(reversed(members) if turned else members))
    site.add_devel_with(archive, {"lib/liby.so.1": "y"})
    root = site.expand()
    assert (root / "lib/liby.so").is_symlink()
    assert (root / "lib/libx.so").is_symlink()
    assert (root / "lib/libx.so").samefile(site.root / CORE / "lib/libx.so.1")
    assert (root / "lib/libz.so").samefile(root / "lib/libx.so")


def test_a_file_of_the_devel_wheel_stays_where_core_has_one_of_its_name(site: Site) -> None:
    site.add_package(CORE, **{"lib/libx.so.1": "core", "share/both": "core"})
    site.add_devel({"share/both": "devel"})
    root = site.expand()
    assert (root / "share/both").read_text(encoding="utf-8") == "devel"
    assert (root / "lib/libx.so.1").read_text(encoding="utf-8") == "core"
