"""Torch refs as data: which repositories, commits and components a name stands for."""
