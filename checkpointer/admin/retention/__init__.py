"""Retire old checkpoints by a policy, and delete objects that nothing needs."""
