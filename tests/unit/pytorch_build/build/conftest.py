import pytest

from tests.kit.builds import LocalRun, SampleBuild, sample_build


@pytest.fixture
def build(run: LocalRun) -> SampleBuild:
    """Return a build of the sample's torch in the run's folder."""
    return sample_build(run)
