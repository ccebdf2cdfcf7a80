"""Write one checkpoint, commit it, and read it back."""
