"""Positions of stream consumers, behind the checkpoint interfaces that they already use, on the same stores."""
