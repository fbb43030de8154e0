"""A torch ref resolved: every repository at a commit, every wheel's version, once per run."""
