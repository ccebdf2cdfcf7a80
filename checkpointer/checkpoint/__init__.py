"""One checkpoint: write it, commit it, read it back."""
