"""Measurements, one file for each question, every peer in the same run. `make bench` runs them all."""
