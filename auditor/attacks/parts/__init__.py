"""What attacks are made of. None of these is an attack.

invariants, probes, probe_data        features of a row, the networks of the token probes, and the data they share
stacked, probe_groups, feature_arm    arms trained together on one pass, or alone on features of an attack's own
gaussian_classes, chunks, row_source  closed forms and scores, some rows at a time
alignment                             one frame into the coordinates and the order of another
measures                              scores of candidate documents
"""
