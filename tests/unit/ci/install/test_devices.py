"""Which device packages are installed, and for which GPUs."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ci.install import devices as install_devices
from ci.install import parse_requirements
from ci.install.devices import Devices, devices_for, known_candidates
from core.errors import MissingInputError, RocmError
from core.packages.candidates import Candidate
from core.packages.sources import PackageIndex
from tests.kit.offers import make_offer
from tests.kit.servers import served

FAMILY = "gfx110X-all"
TARGETS = ("gfx1100", "gfx1101", "gfx1102", "gfx1103")


def make_offers(*names: str, version: str) -> list[Candidate]:
    return [make_offer(name, version) for name in names]


SPLIT_ROCM = make_offers(
    "rocm",
    "rocm-sdk-libraries",
    "rocm-sdk-device-gfx1100",
    "rocm-sdk-device-gfx1101",
    version="7.1",
)
UNSPLIT_ROCM = make_offers(
    "rocm",
    "rocm-sdk-libraries-gfx110x-all",
    "rocm-sdk-libraries-gfx942",
    version="7.1",
)
TORCH = make_offers(
    "torch",
    "amd-torch-device-gfx1100",
    "amd-torch-device-gfx11",
    "amd-torch-device-gfx12-0",
    version="2",
)


# --- Which targets ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "gpus", "targets", "exact"),
    [
        (FAMILY, (), TARGETS, False),
        (FAMILY, ("gfx1101", "gfx942"), ("gfx1101",), True),
        (FAMILY, ("gfx942",), TARGETS, False),
        (f"{FAMILY},gfx942", ("gfx942",), ("gfx942",), True),
        ("", ("gfx942",), ("gfx942",), True),
        ("gfx94X-dcgpu/simple", (), (), False),
    ],
)
def test_targets_are_the_machines_of_the_family_or_all_of_the_family(
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    gpus: Sequence[str],
    targets: Sequence[str],
    *,
    exact: bool,
) -> None:
    monkeypatch.setattr(install_devices, "detect", lambda: gpus)

    devices = devices_for(parse_requirements(["torch"]), family)

    assert devices.targets == targets
    assert devices.exact is exact


@pytest.mark.parametrize(
    ("packages", "targets", "exact"),
    [
        ("torch[device-gfx942] rocm[device-gfx950]", ("gfx942", "gfx950"), True),
        ("rocm-sdk-device-gfx942", ("gfx942",), True),
        ("torch[device-all]", TARGETS, False),
        ("rocm[libraries,device]", ("gfx1101",), True),
    ],
)
def test_packages_may_name_their_targets(
    monkeypatch: pytest.MonkeyPatch,
    packages: str,
    targets: Sequence[str],
    *,
    exact: bool,
) -> None:
    monkeypatch.setattr(install_devices, "detect", lambda: ("gfx1101",))

    devices = devices_for(parse_requirements([packages]), FAMILY)

    assert devices.targets == targets
    assert devices.exact is exact


def test_fetches_for_any_machine_of_the_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install_devices, "detect", lambda: ("gfx1101",))

    assert devices_for((), FAMILY, for_this_machine=False) == Devices(family=FAMILY, targets=TARGETS)


# --- Which packages --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("installed", "targets", "expected"),
    [
        (
            {"rocm-sdk-libraries": "7.1"},
            TARGETS,
            {"rocm-sdk-device-gfx1100==7.1", "rocm-sdk-device-gfx1101==7.1"},
        ),
        ({"rocm-sdk-libraries": "7.1", "rocm-sdk-device-gfx1100": "7.1"}, ("gfx1100",), set()),
        ({"torch": "2"}, ("gfx1100",), {"amd-torch-device-gfx1100==2", "amd-torch-device-gfx11==2"}),
        ({"torch": "3"}, TARGETS, set()),
        # A fat wheel.
        ({"torchvision": "2"}, TARGETS, set()),
        ({"rocm-sdk-core": "7.1"}, TARGETS, set()),
    ],
    ids=["libraries", "all there", "torch", "other version", "no device packages", "core"],
)
def test_device_packages_are_those_of_what_is_installed(
    installed: dict[str, str],
    targets: tuple[str, ...],
    expected: set[str],
) -> None:
    devices = Devices(targets=targets)

    assert set(devices.packages(installed, [*SPLIT_ROCM, *TORCH])) == expected


@pytest.mark.parametrize(
    "devices",
    [
        Devices(targets=("gfx1102", "gfx1103")),
        Devices(targets=("gfx1100", "gfx1102"), exact=True),
    ],
    ids=["all targets", "one named target"],
)
def test_names_a_target_that_is_not_on_offer(devices: Devices) -> None:
    with pytest.raises(MissingInputError, match="rocm-sdk-device-gfx1102") as caught:
        devices.packages({"rocm-sdk-libraries": "7.1"}, SPLIT_ROCM)

    assert "rocm-sdk-device-gfx1100" in caught.value.message
    assert "rocm[device-gfx1100]" in caught.value.hint


# --- What the sdist of rocm is told ----------------------------------------------------------

ONE_GPU = Devices(family=f"{FAMILY};gfx942", targets=("gfx942",), exact=True)


@pytest.mark.parametrize(
    ("devices", "offers", "expected"),
    [
        (Devices(family=FAMILY, targets=TARGETS[1:]), SPLIT_ROCM, "gfx1101"),
        (Devices(family=FAMILY), SPLIT_ROCM, ""),
        (ONE_GPU, UNSPLIT_ROCM, "gfx942"),
        (Devices(family=FAMILY, targets=TARGETS), UNSPLIT_ROCM, FAMILY),
        (Devices(), UNSPLIT_ROCM, ""),
    ],
)
def test_the_sdist_is_told_a_target_or_a_family_by_its_layout(
    devices: Devices,
    offers: list[Candidate],
    expected: str,
) -> None:
    assert devices.sdk_family(offers) == expected


def test_names_a_target_without_device_code_of_rocm() -> None:
    with pytest.raises(MissingInputError, match="gfx942") as caught:
        ONE_GPU.sdk_family(SPLIT_ROCM)

    assert "gfx1100" in caught.value.message


def test_the_newest_rocm_decides_the_layout() -> None:
    newer = make_offers("rocm", "rocm-sdk-libraries", "rocm-sdk-device-gfx942", version="7.2")

    assert ONE_GPU.sdk_family([*UNSPLIT_ROCM, *newer]) == "gfx942"


def test_refuses_a_rocm_of_both_layouts() -> None:
    with pytest.raises(RocmError, match=r"7\.1"):
        ONE_GPU.sdk_family([*UNSPLIT_ROCM, *SPLIT_ROCM])


# --- What an index is asked for --------------------------------------------------------------


@pytest.fixture
def index_url(tmp_path: Path) -> Iterator[str]:
    """The address of an index with a page for each package."""
    for offer in (*SPLIT_ROCM, *TORCH):
        page = tmp_path / offer.distribution / "index.html"
        page.parent.mkdir()
        page.write_text(f'<a href="{offer.name}">x</a>')
    with served(tmp_path) as url:
        yield f"{url}/"


def test_an_index_is_asked_only_for_packages_of_the_family(index_url: str) -> None:
    requirements = parse_requirements(["torch numpy"])
    devices = Devices(family=FAMILY, targets=TARGETS)

    offers = known_candidates(PackageIndex(url=index_url), requirements, devices)

    every_name = {offer.distribution for offer in (*SPLIT_ROCM, *TORCH)}
    assert {offer.distribution for offer in offers} == every_name - {"amd-torch-device-gfx12-0"}
