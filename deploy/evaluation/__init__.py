"""Runs a task of an evaluation harness over the wire."""
