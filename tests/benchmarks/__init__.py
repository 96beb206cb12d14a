"""Benchmarks: ``python -m tests.benchmarks [name...]`` runs ``bench_<name>.py`` and fails where a bound is missed."""
