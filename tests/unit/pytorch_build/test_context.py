from typing import Any

import pytest

from core.errors import UsageError
from core.run.records import record_name
from pytorch_build import context as module


def test_one_familys_wheels_may_lie_in_a_group_of_several(run: Any) -> None:
    group = "gfx94X-dcgpu-gfx110X-all"
    found = module.context(run.common(gpu_family="gfx110X-all"), group=group)
    assert (found.artifact_group, found.gpu_family) == (group, "gfx110X-all")
    assert record_name("test_smoke", found.cell("cp312")) == "test_smoke-sample-cp312-gfx110X-all"
    assert module.context(run.common(gpu_family="gfx942"), group="gfx942").group == ""
    # the group's own families are what it is for where none is named
    whole = module.context(run.common(), group=group)
    assert whole.gpu_family == "gfx94X-dcgpu;gfx110X-all"
    for one in (whole, module.context(run.common(gpu_family="gfx942"), group="gfx942-asan")):
        assert record_name("test_smoke", one.cell("cp312")) == "test_smoke-sample-cp312"
    with pytest.raises(UsageError, match=f"{group} is for gfx94X-dcgpu;gfx110X-all, and gfx1201 is"):
        module.context(run.common(gpu_family="gfx1201"), group=group)


def test_defaults_are_printed(
    run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "detect", lambda: ("gfx942",))
    found = module.context(run.common(torch_ref=""))
    assert (found.ref.name, found.gpu_family) == ("nightly", "gfx94X-dcgpu")
    said = capsys.readouterr().err
    assert "torch ref: nightly (the default)" in said
    assert "GPU family: gfx94X-dcgpu (this machine's)" in said
    # without a GPU the message lists what can be given
    monkeypatch.setattr(module, "detect", lambda: ())
    with pytest.raises(UsageError) as caught:
        module.context(run.common(torch_ref=""))
    for word in ("gfx94X-dcgpu", "--gpu-family cpu", "--torch-ref sample"):
        assert word in str(caught.value)
    # the sample's own family needs none
    monkeypatch.setattr(module, "detect", lambda: pytest.fail("nobody has to look for a GPU"))
    assert module.context(run.common(torch_ref="sample")).gpu_family == "gfx94X-dcgpu"
    assert "default of sample" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"torch_ref": "nightyl"}, "Did you mean 'nightly'?"),
        ({"gpu_family": "gfx94x-dcgpu"}, "Did you mean 'gfx94X-dcgpu'?"),
        ({"gpu_family": "cpu;gfx110X-all"}, "cannot be combined"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(run: Any, options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        module.context(run.common(**options))
    assert words in str(caught.value)
