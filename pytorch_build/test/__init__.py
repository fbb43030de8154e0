"""Upstream's own unit tests on our wheels: which are skipped and why, running them, and their results."""
