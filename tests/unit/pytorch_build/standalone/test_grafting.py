from __future__ import annotations

from pathlib import Path

from pytorch_build.standalone.libraries import Binary
from pytorch_build.standalone.portable import Patch, plan

FOO, BAR = Path("/lib/libfoo.so.1.2"), Path("/lib/libbar.so.3")


def binary(*needed: str, search: tuple[str, ...] = ()) -> Binary:
    return Binary(name="", needed=needed, search=search)


def test_libraries_get_names_of_their_own_and_their_users_follow() -> None:
    patches = plan(
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
        Patch(member=f"torch.libs/{bar}", source=BAR, soname=bar, renamed={}, search=()),
        Patch(
            member=f"torch.libs/{foo}",
            source=FOO,
            soname=foo,
            renamed={"libbar.so.3": bar},
            search=("$ORIGIN",),
        ),
        Patch(
            member="_C.so",
            source=None,
            soname="",
            renamed={"libbar.so.3": bar},
            search=("$ORIGIN/torch.libs",),
        ),
        Patch(
            member="torch/lib/libtorch.so",
            source=None,
            soname="",
            renamed={"libfoo.so.1": foo},
            search=("$ORIGIN", "$ORIGIN/../../torch.libs"),
        ),
    ]
