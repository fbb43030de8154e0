"""Builds inside the manylinux image: the same session, run by docker or podman."""
