"""What `build … --dry-run` shows: the plan, where each variable comes from, and why it would be built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from core import console
from core.env.installer import InstallerCall
from core.env.locks import locked_call
from core.environment import allowed, need_of
from core.shell import command_line
from pytorch_build.build.build import find_tree_facts
from pytorch_build.build.facts import assume_facts, name_assumptions
from pytorch_build.build.plan import plan_build, plan_environment
from rocm_packaging.origin import requirements
from rocm_packaging.packages.layouts import sdk_target

if TYPE_CHECKING:
    from pytorch_build.build.build import Work
    from pytorch_build.build.facts import BuildFacts
    from pytorch_build.build.inputs import BuildInputs
    from pytorch_build.build.plan import BuildPlan
    from pytorch_build.components.steps import Command, Overlay


def describe_build(work: Work, assumptions: Sequence[str] = ()) -> dict[str, Any]:
    """Return the plan of a build as data, with the whole environment of its commands; secrets are masked.

    Args:
        work: The build.
        assumptions: What was assumed while it was looked for what it is made of.
    """
    request = work.request
    inputs = work.inputs
    facts = assume_facts(work, find_tree_facts(request, work.tree))
    plan = plan_build(request.component, inputs, facts, clean=request.clean)
    env = request.platform.merge(allowed(facts.user_env), plan.env, unset=plan.unset)
    shown_env: dict[str, str] = {}
    origins: dict[str, str] = {}
    for name, value in sorted(env.items()):
        shown_env[name] = console.mask(value)
        origins[name] = _origin_of_variable(name, inputs, facts, plan)

    return {
        "project": plan.project,
        "version": plan.version,
        "platform": request.platform.name,
        "python": inputs.python,
        "torch_ref": request.context.ref.name,
        "gpu_family": request.context.gpu_family,
        "gpu_targets": list(inputs.gpu_targets),
        "source": dict(inputs.source),
        "assumptions": [*name_assumptions(work, facts), *assumptions],
        "environment": [_describe_install(call) for call in _environment_calls(work)],
        "uninstall": list(dict.fromkeys((*plan.uninstall, plan.distribution))),
        "requirements_files": list(plan.requirements_files),
        "requirements": list(plan.requirements),
        "as_locked": list(plan.as_locked),
        "removes": list(plan.removes),
        "file_drops": [_describe_overlay(overlay) for overlay in plan.overlays],
        "env": shown_env,
        "env_from": origins,
        "commands": [_describe_command(command) for command in plan.commands],
        "wheel": {"folder": str(plan.wheel_dir), "pattern": plan.wheel_glob, "version": plan.version},
        "after": list(_later_steps(inputs, facts)),
        "notes": list(plan.notes),
    }


def print_plan(description: Mapping[str, Any]) -> None:
    """Print what `describe_build` returned, for people."""
    console.say(
        f"{description['project']} {description['version']}: "
        f"{description['torch_ref']} for {description['gpu_family']} on "
        f"{description['platform']}, Python {description['python']}"
    )
    for sentence in description["assumptions"]:
        console.say(f"assumption: {sentence}")
    for sentence in description["notes"]:
        console.say(f"note: {sentence}")

    _print_installs(description)
    _print_variables(description["env"], description["env_from"])
    console.say("\nin the tree")
    for overlay in description["file_drops"]:
        console.say(f"  put {overlay['path']}, {overlay.get('source', 'written by the build')}")
    console.say(f"  remove {' '.join(description['removes'])}")
    for folder, commands in groupby(description["commands"], key=itemgetter("cwd")):
        lines = [command_line(command["argv"]) for command in commands]
        console.say("\n  ".join([f"\ncommands in {folder}", *lines]))

    wheel = description["wheel"]
    console.say(f"leaves one {wheel['pattern']} of version {wheel['version']} in {wheel['folder']}\n")
    for step in description["after"]:
        console.say(f"then: {step}")


def _environment_calls(work: Work) -> Sequence[InstallerCall]:
    """Return the installer's calls that would fill the build environment, without asking ROCm anything."""
    request = work.request
    rocm = None
    if work.rocm is not None:
        family = request.context.gpu_family
        rocm = InstallerCall(
            requirements=requirements(work.rocm, family, work.inputs.rocm_extras),
            sources=work.rocm.packages.installer_sources(),
            gpu_family=sdk_target(work.rocm.layout, family),
        )
    replaced = work.inputs.build_requirements
    locked = locked_call(request.context.common, request.target, replaced=replaced)
    return plan_environment(
        work.inputs,
        locked=locked,
        rocm=rocm,
    )


def _describe_command(command: Command) -> dict[str, Any]:
    """Return a command's arguments and folder as plain data."""
    return {
        "argv": list(command.argv),
        "cwd": str(command.cwd),
    }


def _describe_install(call: InstallerCall) -> dict[str, Any]:
    """Return an installer's call as plain data: requirements, files, variables and package sources."""
    sources: list[str] = []
    if call.sources:
        if call.sources.index_url:
            sources.append(call.sources.index_url)
        sources += call.sources.find_links
    return {
        "requirements": list(call.requirements),
        "files": [path.name for path in call.files],
        "hashed": call.hashed,
        "env": dict(call.env),
        "from": sources,
    }


def _describe_overlay(overlay: Overlay) -> dict[str, str]:
    """Return the fields of a file that is put into the tree as texts, without the empty ones."""
    return {name: str(value) for name, value in asdict(overlay).items() if value}


def _origin_of_variable(
    name: str,
    inputs: BuildInputs,
    facts: BuildFacts,
    plan: BuildPlan,
) -> str:
    """Return in words who sets a variable of the build's commands: the user, the refs data or the plan."""
    user_value = facts.user_env.get(name)
    planned_value = plan.env.get(name)
    # A variable that the plan leaves as it is comes from the user, if it may reach builds at all.
    if planned_value is None or (planned_value == user_value and need_of(name)):
        return f"your environment: {need_of(name)}"
    if name in inputs.ref_env:
        return f"the env of {plan.project} in the refs data"
    if user_value and user_value in planned_value:
        return "the plan, with yours"
    return "the plan"


def _later_steps(inputs: BuildInputs, facts: BuildFacts) -> Iterator[str]:
    """Yield in words what follows upstream's build commands: search paths, split, import, checks."""
    is_linux = not facts.platform.windows
    if is_linux:
        yield "set the search paths (RPATH) of every ELF file of the wheel"
    if inputs.is_split:
        yield f"split it into a host wheel and one device wheel each for {', '.join(inputs.gpu_targets)}"
    yield "install the wheel, and import it without the build's environment"
    if is_linux and inputs.rocm is not None:
        yield "import it without rocm-sdk-devel, and without loading ROCm's libraries first"
    yield "check the wheel, as check_wheels does; an error ends the build, and the wheel stays in the tree"
    yield "put the wheel and its record among the run's outputs"


def _print_installs(description: Mapping[str, Any]) -> None:
    """Print what would be installed into the build environment and uninstalled from it, in order."""
    console.say("\nenvironment, in this order")
    for call in description["environment"]:
        console.say(f"  install {' '.join((*call['requirements'], *call['files']))}")
    console.say(f"  uninstall {' '.join(description['uninstall'])}")
    project_requirements = (*description["requirements_files"], *description["requirements"])
    console.say(f"  install {' '.join(project_requirements)}")
    if description["as_locked"]:
        console.say(f"  install as locked {' '.join(description['as_locked'])}")


def _print_variables(env: Mapping[str, str], origins: Mapping[str, str]) -> None:
    """Print the variables by where they come from, the plan's own first."""
    for origin in sorted(set(origins.values()), key=lambda text: (not text.startswith("the"), text)):
        console.say(f"\nvariables of {origin}")
        for name, value in env.items():
            if origins[name] == origin:
                needs_quotes = command_line([value]) != value
                console.say(f'  {name}="{value}"' if needs_quotes else f"  {name}={value}")
