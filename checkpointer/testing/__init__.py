"""Tools to test what is built on a store: a store that fails as told, and every crash point and order of requests."""
