"""Realistic faults that are planted one at a time, and the tests that have to notice them."""
