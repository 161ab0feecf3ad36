"""Benchmarks: Ingot beside its rivals, each in a process of its own (`python -m ingot.bench`)."""
