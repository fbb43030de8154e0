from importlib import import_module, metadata

import pytest
from conftest import DISTRIBUTIONS, expected

NAMES = [name for name in DISTRIBUTIONS if name in expected()]


def test_something_is_expected():
    assert NAMES, "no distribution of a PyTorch build is installed"


@pytest.mark.parametrize("name", NAMES)
def test_installed_version_is_the_recorded_one(name, versions):
    assert metadata.version(name) == versions[name]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "rocm"])
def test_module_names_its_version(name, versions):
    module = import_module(name)
    assert getattr(module, "__version__", versions[name]) == versions[name]
