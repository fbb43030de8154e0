"""Which torch refs bring the sample's ROCm along."""

from core.data import user_file

SAMPLE = "sample"


def brings_sample_rocm(torch_ref: str) -> bool:
    """Return whether a torch ref is the sample, or one of the user's file that extends it."""
    user_refs = user_file().tables.get("refs") or {}
    name = torch_ref
    passed_names: set[str] = set()
    while name != SAMPLE:
        # Whoever builds the ref refuses one that extends itself.
        if name not in user_refs or name in passed_names:
            return False
        passed_names.add(name)
        name = user_refs[name].get("extends", "")
    return True
