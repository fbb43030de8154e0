"""Promotion: from staged wheels to a release index, and what a release candidate becomes."""
