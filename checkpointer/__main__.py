"""`python -m pyspark_checkpointer` is the command `checkpointer`."""

from pyspark_checkpointer.cli import main

if __name__ == "__main__":
    main()
