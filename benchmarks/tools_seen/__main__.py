"""Runs the suite of its package."""

from benchmarks import suite

suite.main("tools_seen")
