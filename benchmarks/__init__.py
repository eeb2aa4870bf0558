"""Measurements: each a ratio within one run, against the unsplit model or a named peer."""
