"""The components, and that nothing else has to be told of a new one."""

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

import pytest

from ci.install.dependencies import mirror
from ci.pipeline import STEPS_BY_NAME
from ci.promote.version_change import rules
from ci.publish.buckets import buckets
from core.data import use_user_file
from core.errors import UsageError
from core.wheel.distributions import our_names
from pytorch_build.build.inputs import Dependency
from pytorch_build.build.machine import Needs, load_needs
from pytorch_build.build.plan import plan_build
from pytorch_build.check.allowed import find_allowed
from pytorch_build.check.policy import load_policy
from pytorch_build.components import (
    COMPONENTS,
    Component,
    component_of,
    components_built_before,
    distributions,
    find_component,
    with_required_components,
)
from pytorch_build.refs.torch_refs import load_refs, torch_ref
from tests.kit.build_plans import TREE_FACTS, build_facts, build_inputs
from tests.kit.torchao import TORCHAO

TORCH_VERSION = "2.10.0+rocm7.10.0"

each_component = pytest.mark.parametrize("name", COMPONENTS)


@pytest.fixture
def torchao(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Component]:
    """Add a sixth component, as its line in `components/__init__.py` would."""
    monkeypatch.setitem(COMPONENTS, TORCHAO.name, TORCHAO)
    # With another file of a user's, all data is read anew.
    user_file = tmp_path / "mine.toml"
    user_file.touch()
    use_user_file(user_file)
    yield TORCHAO
    use_user_file(None)


# What components say of each other


@each_component
def test_builds_a_component_after_what_it_needs(name: str) -> None:
    build_order = list(COMPONENTS)

    positions = [build_order.index(needed) for needed in COMPONENTS[name].built_first]

    assert all(position < build_order.index(name) for position in positions)


@each_component
def test_a_wheel_requires_only_what_is_built_before_it(name: str) -> None:
    assert set(COMPONENTS[name].required_components) <= set(COMPONENTS[name].built_first)


def test_names_distributions_and_options_are_each_of_one_component() -> None:
    components = COMPONENTS.values()

    assert len({component.distribution for component in components}) == len(COMPONENTS)
    assert len({component.tree_option for component in components}) == len(COMPONENTS)


def test_wheels_for_cpus_do_without_triton() -> None:
    assert components_built_before("audio", gpu=True) == ("triton", "torch")
    assert components_built_before("audio", gpu=False) == ("torch",)


@pytest.mark.parametrize(
    ("name", "required"),
    [
        ("triton", {"triton"}),
        ("torch", {"triton", "torch"}),
        ("apex", {"triton", "torch", "apex"}),
    ],
)
def test_adds_what_a_component_stands_on(name: str, required: set[str]) -> None:
    assert with_required_components([name]) == required


def test_names_the_nearest_component_for_a_misspelt_one() -> None:
    with pytest.raises(UsageError, match="'vision'"):
        find_component("vison")


def test_finds_a_component_by_its_distribution() -> None:
    assert component_of("torchaudio") is COMPONENTS["audio"]
    assert component_of("numpy") is None


# What others take from components


@each_component
def test_checks_and_machines_have_limits_for_every_component(name: str) -> None:
    component = COMPONENTS[name]

    assert load_policy().sizes[component.distribution].minimum == component.sizes.minimum
    assert load_needs().gpu[name].disk == component.gpu_need.disk


def test_only_wheels_that_require_no_torch_assume_it() -> None:
    assert load_policy().providers["torch"].assumed_by == ("apex",)


@pytest.mark.parametrize("name", ["triton-rocm", "pytorch-triton"])
def test_a_wheel_by_another_name_may_bring_the_same(name: str) -> None:
    allowed = find_allowed(name, {})

    assert allowed is not None
    assert allowed.top_level == COMPONENTS["triton"].allowed.top_level
    assert "triton" in allowed.replaces


@each_component
def test_the_pipeline_builds_every_component_after_what_it_needs(name: str) -> None:
    needed_steps = STEPS_BY_NAME[f"build_{name}"].needs

    assert {f"build_{needed}" for needed in COMPONENTS[name].built_first} <= set(needed_steps)


@each_component
def test_nobody_elses_package_may_have_a_components_name(name: str) -> None:
    component = COMPONENTS[name]

    assert {component.distribution, *component.other_names} <= our_names()
    if component.has_split_device_code:
        assert f"{component.device_prefix}gfx942" in our_names()


@each_component
def test_upstreams_product_of_pytorch_has_every_component(name: str) -> None:
    globs = buckets().products.distributions["pytorch"]

    assert any(fnmatchcase(COMPONENTS[name].distribution, glob) for glob in globs)


@each_component
def test_mirrors_what_a_component_requires_of_others(name: str) -> None:
    component = COMPONENTS[name]

    requirements = mirror().known_requirements[component.distribution]

    assert requirements == component.third_party_requirements


@each_component
def test_a_version_change_knows_where_a_component_holds_it(name: str) -> None:
    component = COMPONENTS[name]

    places = rules().places_of(component.distribution)

    assert rules().kind_of(component.distribution) == "pytorch"
    assert [place.members for place in places] == [place.members for place in component.version_places]


def test_refs_take_repositories_from_components() -> None:
    nightly = load_refs()["nightly"]

    assert {name: source.origin for name, source in nightly.projects.items()} == {
        name: component.repository for name, component in COMPONENTS.items()
    }
    assert nightly.projects["torch"].hipify
    assert nightly.projects["audio"].torch_in_version


def test_a_recipe_gives_the_same_plan_for_the_same_inputs_and_facts() -> None:
    triton = Dependency(project="triton", requirement="triton.whl", version="3.6.0", digest="bb")
    inputs = build_inputs(dependencies=(triton,))
    facts = build_facts(torch_version=TORCH_VERSION)

    for component in COMPONENTS.values():
        assert plan_build(component, inputs, facts) == plan_build(component, inputs, facts)


# A sixth component


def test_plans_a_sixth_component_for_rocm(torchao: Component) -> None:
    plan = plan_build(torchao, build_inputs(version="0.9.0"), build_facts(torch_version=TORCH_VERSION))

    assert plan.distribution == "torchao"
    assert plan.version == plan.env["BUILD_VERSION"] == "0.9.0"
    assert plan.env["PYTORCH_VERSION"] == TORCH_VERSION
    assert plan.env["PYTORCH_ROCM_ARCH"] == "gfx942;gfx1100"
    assert plan.env["USE_CPP"] == "1"
    assert plan.env["LD_LIBRARY_PATH"] == "/env/rocm/lib/rocm_sysdeps/lib"
    assert plan.wheel_glob == "torchao-*.whl"
    (command,) = plan.commands
    assert command.argv == ("/env/bin/python", "setup.py", "bdist_wheel")
    assert command.cwd == PurePosixPath("/src/torch")


def test_plans_a_sixth_component_without_a_gpu(torchao: Component) -> None:
    facts = build_facts(rocm=None, torch_version="2.10.0+cpu", gpu_family="cpu")

    plan = plan_build(torchao, build_inputs(gpu_targets=(), rocm=None), facts)

    assert "ROCM_HOME" not in plan.env


def test_plans_a_sixth_component_for_windows(torchao: Component) -> None:
    plan = plan_build(torchao, build_inputs(), build_facts("windows", torch_version=TORCH_VERSION))

    assert plan.env["DISTUTILS_USE_SDK"] == "1"
    assert plan.commands[0].argv[0] == r"C:\env\Scripts\python.exe"


def test_lets_no_index_answer_for_a_sixth_component(torchao: Component) -> None:
    tree_facts = replace(TREE_FACTS, build_requires=("torchao", "numpy"))

    facts = build_facts(torch_version=TORCH_VERSION, tree_facts=tree_facts)

    plan = plan_build(torchao, build_inputs(), facts)

    assert "torchao" in distributions()
    assert "numpy" in plan.requirements
    assert "torchao" not in plan.requirements


@pytest.mark.usefixtures("torchao")
def test_a_sixth_component_has_its_place_everywhere() -> None:
    needs = Needs.model_validate({"tools": {"cmake": "3.18", "ninja": "1.8"}})

    assert components_built_before("torchao", gpu=True) == ("triton", "torch")
    assert find_component("torchao") is component_of("torchao")
    assert load_policy().sizes["torchao"].minimum == TORCHAO.sizes.minimum
    assert "torchao" in load_policy().providers["torch"].assumed_by
    assert find_allowed("torchao", {}) is not None
    assert needs.gpu["torchao"].disk == TORCHAO.gpu_need.disk


@pytest.mark.usefixtures("torchao")
def test_a_ref_builds_a_sixth_component_that_it_has_a_table_of(tmp_path: Path) -> None:
    file = tmp_path / "refs.toml"
    file.write_text(
        '[refs.mine]\nextends = "nightly"\ncomponents = ["torch", "torchao"]\ntorchao = { ref = "main" }\n'
    )
    use_user_file(file)

    mine = torch_ref("mine")

    assert mine.components == ("torch", "torchao")
    assert mine.projects["torchao"].origin == TORCHAO.repository
