# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Train, evaluate and run a model that corrects grammatical errors, on the BEA-2019 data and others like it.

    python run_gec.py recipes/bea2019_gec_base.json --output_dir out

A recipe is a JSON file of arguments; later arguments on the command line override it. Text and outputs are tokenized,
with a space between tokens (longer white space is read as one space). File names determine the kind of a file (each
may also be gzipped, `.gz`):

    --train_file fce.train.m2 ABC.train.m2    M2 files
    --train_file a.tsv b.jsonl                per line: sentence<TAB>correction; {"source": ..., "target": ...}
    --train_source_file a.src --train_reference_files a.ref0 a.ref1    plain text; a pair for each correction
    --test_file official-2014.combined.m2     scored by M2 (MaxMatch), and by ERRANT with --errant
    --test_file test.src --test_reference_files test.ref0 test.ref1    plain text, scored by GLEU
    --test_file test.src                      plain text, not scored

and likewise for validation. Only training pairs are filtered; test files are
used completely, and validation files up to `--validation_share`. A run started again with the same `--output_dir`
continues from its last checkpoint. `output_dir` receives the model, the tokenizer, a generation configuration, the
metrics (`all_results.json`) and the corrected sentences (`generated_predictions.txt`).
"""

from modeling_ode_transformer.training.run import run, run_process
from modeling_ode_transformer.training.tasks.correction import CORRECTION


def main(argv: list[str] | None = None) -> dict[str, float | str]:
    """Runs the script with the given arguments (default: the command line's) and returns all metrics by name."""
    return run(CORRECTION, argv)


if __name__ == "__main__":
    run_process(main)
