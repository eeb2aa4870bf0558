"""The trusted local node: text, head and tail, the defence, and the private loss."""
