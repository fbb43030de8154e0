"""Wheels that carry what they need of ROCm, or of the system: stand-alone and manylinux wheels."""
