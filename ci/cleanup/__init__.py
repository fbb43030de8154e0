"""What may go, by the policy of its release type, and how it goes."""
