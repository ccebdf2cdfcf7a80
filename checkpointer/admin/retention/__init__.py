"""Retire old checkpoints by a policy, and delete the objects that nothing needs any more."""
