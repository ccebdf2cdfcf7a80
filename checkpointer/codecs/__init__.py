"""Records to stored bytes, and back. Compression is bounded by the size that the manifest records."""
