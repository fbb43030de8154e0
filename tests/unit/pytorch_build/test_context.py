import pytest

from core.errors import UsageError
from core.run.records import record_name
from pytorch_build import context as context_module
from pytorch_build.context import find_context, find_context_of_wheels
from tests.kit.builds import LocalRun

TWO_FAMILIES = "gfx94X-dcgpu-gfx110X-all"


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide this machine's GPUs."""
    monkeypatch.setattr(context_module, "detect", lambda: ())


def test_one_familys_wheels_may_lie_in_a_group_of_several(run: LocalRun) -> None:
    run_context = find_context(run.common(gpu_family="gfx110X-all"), group=TWO_FAMILIES)

    assert run_context.artifact_group == TWO_FAMILIES
    assert run_context.gpu_family == "gfx110X-all"
    assert record_name("test_smoke", run_context.cell("cp312")) == "test_smoke-sample-cp312-gfx110X-all"


def test_a_group_is_for_its_own_families_where_none_is_named(run: LocalRun) -> None:
    run_context = find_context(run.common(), group=TWO_FAMILIES)

    assert run_context.gpu_family == "gfx94X-dcgpu;gfx110X-all"
    assert record_name("test_smoke", run_context.cell("cp312")) == "test_smoke-sample-cp312"


@pytest.mark.parametrize(
    ("group", "group_name"),
    [
        pytest.param("gfx942", "", id="the family's own"),
        pytest.param("gfx942-asan", "gfx942-asan", id="a variant of it"),
    ],
)
def test_a_record_in_the_group_of_one_family_does_not_name_it(
    run: LocalRun, group: str, group_name: str
) -> None:
    run_context = find_context(run.common(gpu_family="gfx942"), group=group)

    assert run_context.group == group_name
    assert record_name("test_smoke", run_context.cell("cp312")) == "test_smoke-sample-cp312"


def test_refuses_a_group_of_other_families(run: LocalRun) -> None:
    with pytest.raises(UsageError) as caught:
        find_context(run.common(gpu_family="gfx1201"), group=TWO_FAMILIES)

    assert TWO_FAMILIES in caught.value.message
    assert "gfx1201" in caught.value.message


def test_defaults_are_the_nightly_ref_and_this_machines_family(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(context_module, "detect", lambda: ("gfx942",))

    run_context = find_context(run.common(torch_ref=""))

    printed = capsys.readouterr().err
    assert run_context.ref.name == "nightly"
    assert run_context.gpu_family == "gfx94X-dcgpu"
    assert "torch ref: nightly" in printed
    assert "GPU family: gfx94X-dcgpu" in printed


@pytest.mark.usefixtures("no_gpu")
def test_a_machine_without_a_gpu_needs_a_family(run: LocalRun) -> None:
    with pytest.raises(UsageError) as caught:
        find_context(run.common(torch_ref=""))

    for option in ("gfx94X-dcgpu", "--gpu-family cpu", "--torch-ref sample"):
        assert option in str(caught.value)


@pytest.mark.usefixtures("no_gpu")
def test_the_sample_has_a_family_of_its_own(run: LocalRun) -> None:
    assert find_context(run.common(torch_ref="sample")).gpu_family == "gfx94X-dcgpu"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        pytest.param({"torch_ref": "nightyl"}, "'nightly'", id="torch ref"),
        pytest.param({"gpu_family": "gfx94x-dcgpu"}, "'gfx94X-dcgpu'", id="family"),
        pytest.param({"gpu_family": "cpu;gfx110X-all"}, "cpu", id="families that exclude each other"),
    ],
)
def test_refuses_unknown_names_with_the_nearest(run: LocalRun, options: dict[str, str], name: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_context(run.common(**options))

    assert name in str(caught.value)


@pytest.mark.usefixtures("no_gpu")
def test_wheels_are_of_the_only_ref_and_family_of_the_run(
    run: LocalRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run.built("torch", run_id="77", gpu_family="gfx110X-all")
    run.built("vision", run_id="77", gpu_family="gfx110X-all", python="cp311")

    context = find_context_of_wheels(run.common(torch_ref="", run_id="77"))

    printed = capsys.readouterr().err
    assert context.ref.name == "sample"
    assert context.gpu_family == "gfx110X-all"
    assert "torch ref: sample (that of run 77)" in printed
    assert "GPU family: gfx110X-all (that of run 77)" in printed


@pytest.mark.usefixtures("no_gpu")
def test_wheels_are_of_the_family_that_is_named(run: LocalRun) -> None:
    run.built("torch", gpu_family="gfx110X-all")

    context = find_context_of_wheels(run.common(torch_ref="", gpu_family="gfx94X-dcgpu"))

    assert context.ref.name == "sample"
    assert context.gpu_family == "gfx94X-dcgpu"


@pytest.mark.usefixtures("no_gpu")
def test_wheels_of_a_named_group_are_of_its_ref(run: LocalRun) -> None:
    run.built("torch", gpu_family=TWO_FAMILIES)
    run.built("torch", gpu_family="cpu", ref="nightly")

    context = find_context_of_wheels(run.common(torch_ref=""), group=TWO_FAMILIES)

    assert context.ref.name == "sample"
    assert context.artifact_group == TWO_FAMILIES


def test_wheels_of_several_refs_and_families_leave_the_defaults(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_module, "detect", lambda: ("gfx942",))
    run.built("torch", gpu_family="gfx110X-all", ref="sample")
    run.built("torch", gpu_family="gfx1151", ref="nightly")
    run.built("torch", gpu_family="cpu", ref="nightly")

    context = find_context_of_wheels(run.common(torch_ref=""))

    assert context.ref.name == "nightly"
    assert context.gpu_family == "gfx94X-dcgpu"


def test_a_run_without_wheels_leaves_the_defaults(run: LocalRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_module, "detect", lambda: ("gfx942",))
    run.rocm("7.1.0")

    context = find_context_of_wheels(run.common(torch_ref=""))

    assert context.ref.name == "nightly"
    assert context.gpu_family == "gfx94X-dcgpu"
