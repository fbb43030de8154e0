"""Portable wheels: what a wheel needs of its machine, and the platform tag that it keeps."""
