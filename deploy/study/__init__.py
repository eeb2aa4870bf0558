"""The studies of published inversion attacks, on rows made in process: depth, noise, schedules, ablations.

`make study` runs what is missing.
"""
