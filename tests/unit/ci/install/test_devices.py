from collections.abc import Sequence
from typing import Any

import pytest

from ci import install
from ci.install import Devices, devices_for, known_offers, parse_requirements
from core.errors import MissingInputError, RocmError
from core.packages import Offer
from core.packages.sources import PackageSource

FAMILY = "gfx110X-all"
ALL = ("gfx1100", "gfx1101", "gfx1102", "gfx1103")


def offers(*names: str, version: str = "2") -> list[Offer]:
    return [Offer(name=one, distribution=one, version=version) for one in names]


SPLIT = offers(
    "rocm", "rocm-sdk-libraries", "rocm-sdk-device-gfx1100", "rocm-sdk-device-gfx1101", version="7.1"
)
ASKED = [
    f"rocm-sdk-libraries-{FAMILY.lower()}",
    *(
        f"{kind}-device-{gpu}"
        for kind in ("rocm-sdk", "amd-torch", "amd-torchvision")
        for gpu in (*ALL, "gfx11", "gfx110x")
    ),
]
TORCH = offers("torch", "amd-torch-device-gfx1100", "amd-torch-device-gfx11", "amd-torch-device-gfx12-0")


@pytest.mark.parametrize(
    ("packages", "family", "here", "targets", "exact"),
    [
        ("torch", FAMILY, (), ALL, False),
        ("torch", FAMILY, ("gfx1101", "gfx942"), ("gfx1101",), True),
        ("torch", FAMILY, ("gfx942",), ALL, False),
        ("torch", f"{FAMILY},gfx942", ("gfx942",), ("gfx942",), True),
        ("torch", "", ("gfx942",), ("gfx942",), True),
        ("torch", "gfx94X-dcgpu/simple", (), (), False),
        ("torch[device-gfx942] rocm[device-gfx950]", FAMILY, ("gfx1101",), ("gfx942", "gfx950"), True),
        ("rocm-sdk-device-gfx942", FAMILY, (), ("gfx942",), True),
        ("torch[device-all]", FAMILY, ("gfx1101",), ALL, False),
        ("rocm[libraries,device]", FAMILY, ("gfx1101",), ("gfx1101",), True),
    ],
)
def test_targets_are_those_named_those_here_or_the_familys(
    monkeypatch: pytest.MonkeyPatch,
    packages: str,
    family: str,
    here: Sequence[str],
    targets: Sequence[str],
    exact: Any,
) -> None:
    monkeypatch.setattr(install, "detect", lambda: here)
    found = devices_for(parse_requirements([packages]), family)
    assert (found.targets, found.exact) == (targets, exact)


def test_what_is_fetched_is_for_any_machine_of_the_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "detect", lambda: ("gfx1101",))
    assert devices_for((), FAMILY, here=False) == Devices(family=FAMILY, targets=ALL)


@pytest.mark.parametrize(
    ("chosen", "targets", "found"),
    [
        (
            {"rocm-sdk-libraries": "7.1"},
            ALL,
            {"rocm-sdk-device-gfx1100==7.1", "rocm-sdk-device-gfx1101==7.1"},
        ),
        ({"rocm-sdk-libraries": "7.1", "rocm-sdk-device-gfx1100": "7.1"}, ("gfx1100",), set()),
        ({"torch": "2"}, ("gfx1100",), {"amd-torch-device-gfx1100==2", "amd-torch-device-gfx11==2"}),
        # of another version, or without device packages at all: a fat wheel
        ({"torch": "3"}, ALL, set()),
        ({"torchvision": "2"}, ALL, set()),
        ({"rocm-sdk-core": "7.1"}, ALL, set()),
    ],
)
def test_device_packages_are_those_of_what_is_installed(
    chosen: dict[str, str], targets: tuple[str, ...], found: set[str]
) -> None:
    assert set(Devices(targets=targets).packages(chosen, [*SPLIT, *TORCH])) == found


@pytest.mark.parametrize(
    "devices", [Devices(targets=("gfx1102", "gfx1103")), Devices(targets=("gfx1100", "gfx1102"), exact=True)]
)
def test_a_target_that_is_not_on_offer_is_told(devices: Devices) -> None:
    with pytest.raises(MissingInputError, match=r"no rocm-sdk-device-gfx1102 7\.1, .*-gfx1100, .*") as caught:
        devices.packages({"rocm-sdk-libraries": "7.1"}, SPLIT)
    assert "rocm[device-gfx1100]" in caught.value.hint


def test_the_sdist_is_told_what_its_layout_takes() -> None:
    unsplit = offers("rocm", "rocm-sdk-libraries-gfx110x-all", "rocm-sdk-libraries-gfx942", version="7.1")
    here = Devices(family=f"{FAMILY};gfx942", targets=("gfx942",), exact=True)
    assert Devices(family=FAMILY, targets=ALL[1:]).sdk_family(SPLIT) == "gfx1101"
    assert Devices(family=FAMILY).sdk_family(SPLIT) == ""
    with pytest.raises(MissingInputError, match=r"no device code of ROCm 7\.1 for gfx942 \(it has gfx1100"):
        here.sdk_family(SPLIT)
    assert here.sdk_family(unsplit) == "gfx942"
    assert Devices(family=FAMILY, targets=ALL).sdk_family(unsplit) == FAMILY
    assert Devices().sdk_family(unsplit) == ""
    # the newest decides, and may have one layout only
    newer = offers("rocm", "rocm-sdk-libraries", "rocm-sdk-device-gfx942", version="7.2")
    assert here.sdk_family([*unsplit, *newer]) == "gfx942"
    with pytest.raises(RocmError, match=r"ROCm 7\.1 on offer holds .* both layouts"):
        here.sdk_family([*unsplit, *SPLIT])


def test_an_index_is_asked_for_what_is_wanted_and_belongs_to_it() -> None:
    held = {one.distribution: (one,) for one in (*SPLIT, *TORCH)}
    source = PackageSource(index_urls=("https://x/",))
    source._indexed.update({name: held.get(name, ()) for name in (*ASKED, *held)})
    found = known_offers(source, parse_requirements(["torch numpy"]), Devices(family=FAMILY, targets=ALL))
    assert {one.distribution for one in found} == set(held) - {"amd-torch-device-gfx12-0"}
