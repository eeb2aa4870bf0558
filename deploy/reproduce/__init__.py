"""The published results, reproduced in shape: presets, seeds, depths and widths as cells. `make reproduce` runs it."""
