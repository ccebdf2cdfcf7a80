"""Administer a store: look at it, keep and roll back checkpoints, clean up, copy and repair. No part of a batch."""
