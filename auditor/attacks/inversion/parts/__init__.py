"""What inversion attacks are made of, one purpose a file."""
