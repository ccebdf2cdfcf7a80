"""A mapping that knows its changes."""
