"""The embedded sample: miniature PyTorch projects as real git repositories.

The templates keep upstream's build contract (files, environment variables, commands), so
that every stage treats the sample as it treats the real projects.
"""

from __future__ import annotations

from pytorch_build.sample.repositories import REPOSITORIES, ensure_repositories

__all__ = ["REPOSITORIES", "ensure_repositories"]
