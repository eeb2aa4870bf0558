"""The statistics of the audit: plain functions on counts and arrays, no tensors and no files.

    binomial   Wilson and Clopper-Pearson bounds, the Bonferroni quantile
    exact      exact tests for "leak found", paired and over whole clusters
    rates      a rate of correlated rows: design effect and cluster bootstrap, both required
    gate       the published gate G, the floor that a constant guesser reads, counts files
    clusters   intraclass correlation and design effect
    bootstrap  studentised and percentile cluster bootstrap of ratios, with the max-statistic over arms
    nested     bootstrap over clusters then rows, and over seeds then clusters
    auc        AUC with clustered uncertainty
    tpr        true positives at a fixed rate of false positives
    effects    the paired effect of an arm over the constant guesser
    meta       several runs by random effects: DerSimonian-Laird, Hartung-Knapp, prediction interval
    sequential bounded means under looks at any time
    power      the minimum detectable effect, and how many more documents an open check needs
    needs      power before an audit: documents that each ceiling needs
    tradeoff   the published score of privacy and utility
    units      conversions between ratios and percentage points that refuse the wrong range

docs/statistics.md says what each answers and which traps were measured. Units are in the names: `_pp` percentage
points, `_ratio` a number in [0, 1], `_count` a whole number. A statistic of any unit (bootstrap, meta, power) is in
that of its input, and says so. Uncertainty is clustered on the document. Random numbers come from a generator that
the caller seeds.
"""
