"""Packages."""
