"""Keep a mapping that knows its changes, whoever interrupts them."""
