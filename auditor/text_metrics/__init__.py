"""Metrics of recovered text, one file a purpose. Every number over texts has bounds clustered on the document.

tokens       position-wise accuracy, bags of tokens, exact match
words        ROUGE-L, BLEU, METEOR
entities     names and numbers
embedding    similarity of sentence embeddings, with a local model
performance  AP, MP and DCS of the published comparison
intervals    a metric over texts with its bounds
report       all of them for the texts of one attack
"""
