from __future__ import annotations

import pytest

from ci.verbs.build_image import image, images, repository, tags
from core.errors import UsageError


def test_one_image_is_meant_where_none_is_named() -> None:
    assert image() is not None
    assert image().name == image("ubuntu-rocm").name == "pytorch-therock-rocm-ci"
    assert image("no-rocm").values({})["BASE_IMAGE"] == "docker.io/library/ubuntu:24.04"
    assert len(images()) == 2


def test_an_unknown_image_is_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="no image 'no-rcm'") as caught:
        image("no-rcm")
    assert caught.value.hint == "Did you mean 'no-rocm'?"


def test_a_default_follows_the_arguments_it_is_made_of() -> None:
    values = image().values({"UBUNTU_VERSION": "24.04", "ROCM_VERSION": "7.1"})
    assert values["BASE_IMAGE"] == "docker.io/library/ubuntu:24.04"
    assert values["BUILD_ENVIRONMENT"] == "therock-nightly-rocm7.1"
    assert list(values) == list(image().arguments)


def test_what_is_given_stays_as_it_is() -> None:
    values = image().values({"BASE_IMAGE": "localhost/a:${UBUNTU_VERSION}", "CONDA_INSTALLER_URL": ""})
    assert values["BASE_IMAGE"] == "localhost/a:${UBUNTU_VERSION}"
    assert values["CONDA_INSTALLER_URL"] == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("UBUNTU_VERSION", "22"),
        ("UBUNTU_VERSION", "22.04\n"),
        ("ANACONDA_PYTHON_VERSION", "2.7"),
        ("ROCM_VERSION", "latest"),
        ("ROCM_VERSION", ""),
        ("USE_THEROCK_NIGHTLY", "true"),
        ("THEROCK_NIGHTLY_INDEX_URL", "rocm.nightlies.amd.com"),
        ("THEROCK_NIGHTLY_INDEX_URL", ""),
        ("THEROCK_NIGHTLY_VERSION", "7.1; id"),
        ("PYTORCH_ROCM_ARCH", "gfx942,gfx90a"),
        ("PYTORCH_ROCM_ARCH", "gfx94X-dcgpu"),
        ("BASE_IMAGE", "ubuntu 22.04"),
        ("CONDA_INSTALLER_URL", "http://x.invalid/c.sh"),
        ("CONDA_INSTALLER_SHA256", "abc"),
    ],
)
def test_values_that_cannot_be_are_refused(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"^{name}=") as caught:
        image().values({name: value})
    assert repr(image().arguments[name].default) in caught.value.hint


def test_credentials_do_not_get_into_an_image() -> None:
    url = "https://me:secret@x.invalid/simple/"
    with pytest.raises(UsageError, match="THEROCK_NIGHTLY_INDEX_URL holds a user name") as caught:
        image().values({"THEROCK_NIGHTLY_INDEX_URL": url})
    assert "secret" not in str(caught.value)


def test_an_argument_of_another_image_is_refused() -> None:
    with pytest.raises(UsageError, match="has no build argument ROCM_VERSION"):
        image("no-rocm").values({"ROCM_VERSION": "6.4"})


def test_tags_are_the_day_and_latest_or_those_named() -> None:
    assert tags("20251121") == ("nightly-20251121", "latest")
    assert tags("20251121", ("rocm7.1",)) == ("rocm7.1",)


@pytest.mark.parametrize(("date", "named"), [("2025-11-21", ()), ("", ()), ("20251121", ("a b",))])
def test_days_and_tags_that_are_none_are_refused(date: str, named: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"is no (day|tag)"):
        tags(date, named)


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("ghcr.io/Owner/Repo", "ghcr.io/owner/repo"),
        ("localhost:5000/team/rocm-ci", "localhost:5000/team/rocm-ci"),
        ("https://ghcr.io/a/b", ""),
        ("ghcr.io/a/b:latest", ""),
        ("rocm-ci", ""),
        ("ghcr.io/", ""),
        ("ghcr.io/a b", ""),
    ],
)
def test_where_an_image_is_pushed_to_is_a_repository(named: str, found: str) -> None:
    if found:
        assert repository(named) == found
        return
    with pytest.raises(UsageError, match="is no REGISTRY/REPO"):
        repository(named)
