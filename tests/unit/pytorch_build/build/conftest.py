import pytest

from pytorch_build.build.build import Build
from tests.kit.builds import LocalRun, sample_build


@pytest.fixture
def build(run: LocalRun) -> Build:
    """Return a build of the sample's torch in the run's folder."""
    return sample_build(run)
