"""What keeps a store sound and small."""
