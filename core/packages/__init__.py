"""Our packages: where they come from, the choice among what is offered, and others' packages beside them."""
