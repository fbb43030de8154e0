"""What the smoke tests are told: SMOKE_EXPECT is JSON, distribution -> version that must be installed.

Standard library and pytest only: these tests run in the target environment, and as
plain `pytest pytorch_build/smoke` in any environment that has PyTorch.
"""

import json
import os
from importlib import metadata

import pytest

DISTRIBUTIONS = ("triton", "torch", "torchaudio", "torchvision", "apex", "rocm")


def expected():
    told = os.environ.get("SMOKE_EXPECT")
    if told:
        return json.loads(told)
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def pytest_configure(config):
    config.addinivalue_line("markers", "distribution(name): needs this distribution")
    config.addinivalue_line("markers", "gpu: needs a GPU")


def pytest_collection_modifyitems(items):
    present = expected()
    for item in items:
        marker = item.get_closest_marker("distribution")
        if marker and marker.args[0] not in present:
            item.add_marker(pytest.mark.skip(reason=f"{marker.args[0]} is not part of this run"))


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("torch sees no GPU in this machine")


def pytest_report_header():
    return "expected: " + ", ".join(f"{name} {version}" for name, version in sorted(expected().items()))


@pytest.fixture(scope="session")
def versions():
    return expected()
