import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from core import process
from core.errors import CheckError, WheelError
from core.wheel import read_wheel_info
from core.wheel.record import verify_record
from pytorch_build.check import load_policy
from pytorch_build.standalone import portable
from pytorch_build.standalone.libraries import Binary
from tests.unit.pytorch_build.check.conftest import elf_file, write_wheel

NAME = "demo-1.0-cp312-cp312-linux_x86_64.whl"
NEWEST = ("manylinux_2_34_x86_64",)
WINDOWS = "torchvision-0.25.0-cp312-cp312-win_amd64.whl"
FOO, BAR = Path("/lib/libfoo.so.1.2"), Path("/lib/libbar.so.3")
OLD = ("manylinux_2_17_x86_64", "manylinux2014_x86_64")


def found(
    satisfied: tuple[str, ...],
    reachable: tuple[str, ...] = NEWEST,
    external: Mapping[str, Path | None] | None = None,
) -> portable.Portability:
    needs = {"demo/a.so": Binary(name="", needed=tuple(external or ()))}
    return portable.Portability(
        satisfied=satisfied, reachable=reachable, external=external or {}, needs=needs
    )


def wheel(folder: Path, name: str = NAME) -> Path:
    return write_wheel(folder, name, {"demo/a.so": elf_file(needed=("libc.so.6",))})


def test_a_wheel_is_tagged_with_what_it_satisfies_and_not_with_more(tmp_path: Path) -> None:
    made = portable.repair(wheel(tmp_path), found(OLD, OLD), tmp_path / "new", graft=False)
    assert made.file is not None
    platform = "manylinux2014_x86_64.manylinux_2_17_x86_64"
    assert made.file.path.name == f"demo-1.0-cp312-cp312-{platform}.whl"
    assert verify_record(made.file.path) == ()
    assert read_wheel_info(made.file.path).tags == {f"cp312-cp312-{one}" for one in platform.split(".")}
    # with its tag already it is left alone
    path = wheel(tmp_path, f"demo-1.0-cp312-cp312-{NEWEST[0]}.whl")
    assert portable.repair(path, found(NEWEST), tmp_path / "other", graft=True).file is None
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("state", "graft", "said"),
    [
        (
            found(("linux_x86_64",), external={"libfoo.so.1": Path("/x")}),
            False,
            r"libfoo\.so\.1 \(for demo/a\.so\)",
        ),
        (found(("linux_x86_64",), external={"libfoo.so.1": None}), True, "this machine does not have"),
        (found(("linux_x86_64",), ("linux_x86_64",)), True, "satisfies no manylinux policy"),
    ],
)
def test_what_cannot_be_portable_is_refused_by_name(
    state: portable.Portability, said: str, tmp_path: Path, *, graft: bool
) -> None:
    with pytest.raises(CheckError, match=said):
        portable.repair(wheel(tmp_path), state, tmp_path / "new", graft=graft)
    assert not (tmp_path / "new").exists()


def test_rocm_torch_and_the_wheels_own_libraries_do_not_count() -> None:
    needs = {"torch/lib/libown.so.1": Binary(name="libown.so", needed=())}
    patterns = portable.excluded(needs, load_policy())
    assert {"libown.so.1", "libown.so", "libamdhip64.so.*", "libtorch_hip.so"} <= patterns
    assert not {"libnuma.so.*", "libc.so.6"} & patterns


@pytest.mark.skipif(sys.platform != "linux", reason="auditwheel is for Linux")
def test_a_wheel_without_compiled_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WheelError, match="auditwheel cannot judge demo"):
        portable.analyse(write_wheel(tmp_path, NAME, {"demo/a.py": b""}))


@pytest.mark.processes
@pytest.mark.skipif(process.which("cc") is None, reason="no C compiler")
def test_a_library_of_the_machine_goes_in_and_the_wheel_runs_without_it(tmp_path: Path) -> None:
    (tmp_path / "libextra.c").write_text("int extra(void) { return 42; }\n")
    (tmp_path / "user.c").write_text("int extra(void); int user(void) { return extra(); }\n")
    machine = tmp_path / "machine"
    machine.mkdir()
    flags = ("-shared", "-fPIC", "-O1")
    process.capture(
        ["cc", *flags, "-Wl,-soname,libextra.so.1", "libextra.c", "-o", machine / "libextra.so.1"],
        cwd=tmp_path,
    )
    library = tmp_path / "user.so"
    words: list[str | Path] = [f"-Wl,-rpath,{machine}", "user.c", machine / "libextra.so.1", "-o", library]
    process.capture(["cc", *flags, *words], cwd=tmp_path)
    old = write_wheel(tmp_path, NAME, {"demo/user.so": library.read_bytes()})
    state = portable.analyse(old)
    assert state.external == {"libextra.so.1": (machine / "libextra.so.1").resolve()}
    with pytest.raises(CheckError, match=r"libextra\.so\.1 \(for demo/user\.so\)"):
        portable.repair(old, state, tmp_path / "new", graft=False)
    made = portable.repair(old, state, tmp_path / "new", graft=True)
    assert made.file is not None
    assert verify_record(made.file.path) == ()
    assert portable.analyse(made.file.path).satisfied[0] in made.platform.split(".")
    with zipfile.ZipFile(made.file.path) as archive:
        archive.extractall(tmp_path / "installed")
    (machine / "libextra.so.1").unlink()
    code = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).user())"
    said = process.capture([sys.executable, "-c", code, tmp_path / "installed" / "demo" / "user.so"]).stdout
    assert said == "42\n"


def binary(*needed: str, search: tuple[str, ...] = ()) -> Binary:
    return Binary(name="", needed=needed, search=search)


def test_libraries_get_names_of_their_own_and_their_users_follow() -> None:
    patches = portable.plan(
        "torch",
        {"libfoo.so.1": FOO, "libbar.so.3": BAR},
        {"libfoo.so.1": "a" * 64, "libbar.so.3": "0123456789abcdef" * 4},
        {
            "torch/lib/libtorch.so": binary("libfoo.so.1", "libc.so.6", search=("$ORIGIN", "/build/lib")),
            "torch/_C.so": binary("libc.so.6"),
            "_C.so": binary("libbar.so.3"),
        },
        {"libfoo.so.1": binary("libbar.so.3", "libm.so.6"), "libbar.so.3": binary("libc.so.6")},
    )
    foo, bar = "libfoo-aaaaaaaa.so.1", "libbar-01234567.so.3"
    assert list(patches) == [
        portable.Patch(member=f"torch.libs/{bar}", source=BAR, soname=bar, renamed={}, search=()),
        portable.Patch(
            member=f"torch.libs/{foo}",
            source=FOO,
            soname=foo,
            renamed={"libbar.so.3": bar},
            search=("$ORIGIN",),
        ),
        portable.Patch(member="_C.so", renamed={"libbar.so.3": bar}, search=("$ORIGIN/torch.libs",)),
        portable.Patch(
            member="torch/lib/libtorch.so",
            renamed={"libfoo.so.1": foo},
            search=("$ORIGIN", "$ORIGIN/../../torch.libs"),
        ),
    ]
