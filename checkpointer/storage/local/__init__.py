"""A folder of the local machine."""
