"""Attacks times bundles in one table: what each inversion attack recovers of each bundle, and how long it takes.

cells   one attack on one family of one bundle
run     all of them, one after the other; what is done is kept
files   the table as Markdown, JSON and CSV
"""
