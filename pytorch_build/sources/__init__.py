"""Source trees as the lock says: fetched, tagged, hipified, repaired; or a developer's own."""
