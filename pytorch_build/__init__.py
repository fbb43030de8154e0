"""Torch refs to sources, sources to torch wheels, wheels to checks and tests."""
