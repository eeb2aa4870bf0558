"""The untrusted cloud node: computes and trains the middle layers for its sessions, and knows no text."""
