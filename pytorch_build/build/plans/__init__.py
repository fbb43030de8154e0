"""Plans of builds: pure functions from a build and its site to what has to run.

Source: the build contract of ROCm/TheRock's PyTorch packaging, less its defects: this process's environment
stays as it is, the user's compiler flags are kept, and no choice depends on the order of files.
"""
