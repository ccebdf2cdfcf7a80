"""Positions of stream consumers: the checkpoint interfaces that they already use, on the same stores."""
