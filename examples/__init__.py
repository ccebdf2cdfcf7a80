"""Programs that show the checkpointer at work. Each runs by itself: `python -m examples.flights`."""
