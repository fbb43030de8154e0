"""Standalone."""
