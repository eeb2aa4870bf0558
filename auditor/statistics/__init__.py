"""The statistics of the audit: plain functions on counts and arrays, no tensors and no files.

    binomial   Wilson and Clopper-Pearson bounds, the Bonferroni quantile
    gate       the published gate G, the floor that a constant guesser reads, counts files
    clusters   intraclass correlation and design effect
    bootstrap  studentised and percentile cluster bootstrap of ratios, with the max-statistic over arms
    auc        AUC with clustered uncertainty
    power      the minimum detectable effect
    effects    the paired effect of an arm over the constant guesser

Units are in the names: `_pp` percentage points, `_ratio` a number in [0, 1]. Uncertainty is clustered on the document.
Random numbers come from a generator that the caller seeds.
"""
