"""More than one untrusted node: what each of them gets, and how their answers become one.

    single     one node
    replicas   K nodes get the same bytes; the answer is their median, and who deviates is named
    views      K nodes get disjoint shares of the width of every latent row
    segments   two nodes one after the other, with the trusted node between them

A topology is a crossing over several sessions (`GroupCrossing`), so that the model, the trainer and the cache do not
know of it. All sessions of a run share one counter of steps, and one gradient is released once.
"""
