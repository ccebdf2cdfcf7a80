"""Benchmarks: one file for each question, and all peers in the same run. `make bench` runs them all."""
