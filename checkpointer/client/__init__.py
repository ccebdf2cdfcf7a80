"""Offer the public classes: one awaitable face, one blocking face."""
