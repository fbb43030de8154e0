"""Locks, and what compiles them."""
