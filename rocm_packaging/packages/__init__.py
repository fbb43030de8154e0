"""ROCm packages: which there are in each layout, what goes into them, and how they are written."""
