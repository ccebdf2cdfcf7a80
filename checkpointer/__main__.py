"""Run the command `checkpointer`, as `python -m pyspark_checkpointer`."""

from pyspark_checkpointer.cli import main

if __name__ == "__main__":
    main()
