"""What the trusted node, the untrusted node and the auditor may all know: the contract, and how to speak it."""

__version__ = "0.1.0"
