"""A run's wheels at who uses them: what is on offer, pages that lag behind, environments, installing."""
