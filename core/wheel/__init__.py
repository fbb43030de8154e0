"""Wheel."""
