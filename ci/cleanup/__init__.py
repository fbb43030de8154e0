"""What goes from a store, by the policy of its release type, and how it goes.

`units` puts objects together that go together, `plan` decides about them, `deletion` deletes them, and
`stores` names the stores that are kept in order.
"""
