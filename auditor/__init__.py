"""The auditor: records what crosses, attacks exactly that, and says pass, fail or inconclusive."""
