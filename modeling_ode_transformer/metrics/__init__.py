# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The metrics of the papers' tables, each as functions and for `ode-transformer score`.

| module       | what it computes                                                                                     |
| ------------ | ---------------------------------------------------------------------------------------------------- |
| `bleu`       | sacreBLEU with its signature, tokenized BLEU as multi-bleu.perl, compound-split BLEU                 |
| `rouge`      | ROUGE-1, ROUGE-2 and summary-level ROUGE-L (rougeLsum), F1                                           |
| `perplexity` | word perplexity                                                                                      |
| `m2`         | MaxMatch precision, recall and F0.5 against M2 files                                                 |
| `gleu`       | GLEU of grammatical error correction                                                                 |
| `errant`     | ERRANT precision, recall and F0.5 of an M2 file against another, and by type of error                |
| `bootstrap`  | paired bootstrap between two systems                                                                 |

    ode-transformer score bleu --references test.de --hypotheses output.de
"""
