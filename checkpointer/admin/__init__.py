"""Look at a store, and look after it: everything that is no part of a batch."""
