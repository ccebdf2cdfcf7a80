"""`python -m checkpointer` is the command `checkpointer`."""

from checkpointer.cli import main

if __name__ == "__main__":
    main()
