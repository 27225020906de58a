# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Train, evaluate and test a classifier of sentences, or of pairs of sentences, with `Trainer`.

    python run_classification.py recipes/trec.json --output_dir out --config_overrides solver=rk --seeds 1 2 3
    python run_classification.py --train_file mr.txt.gz --cross_validation 10 --do_train --do_predict --output_dir out

A recipe is a JSON file of arguments; later arguments on the command line override it. Without a checkpoint
(`--model_name_or_path`), the model starts from a configuration, by default CSAODE's. Without a tokenizer
(`--tokenizer_name`, or the checkpoint's), one is made from the words of the training text. Examples come from

    --train_file a.txt                                    one per line, `label words ...`, words separated by spaces
    --train_file a.jsonl --text_pair_column hypothesis --text_column premise   objects, or rows of a .csv
    --dataset_name stanfordnlp/snli --text_column premise --text_pair_column hypothesis

and likewise for validation and test; files may be gzipped (`.gz`). Without such files, `--validation_size` and
`--test_size` hold out a part of the training examples, drawn by `--split_seed`. `--cross_validation 10` tests ten
models, each on a tenth of the examples not used for its training.

`--seeds` trains one model for each seed. A single model is in `output_dir`; models of seeds and folds are in its
subfolders `seed_S/fold_F`. Their accuracies (percent), mean and standard deviation are in `output_dir/runs.json`. The
same command again keeps the finished models of `--seeds` and `--cross_validation`. As in the paper of CSAODE, Adam has
L2 regularization (`--weight_decay`), and the learning rate falls exponentially after a linear warm-up.
"""

from modeling_ode_transformer.training.run import run, run_process
from modeling_ode_transformer.training.tasks.classification import CLASSIFICATION


def main(argv: list[str] | None = None) -> dict:
    """Runs the script with the given arguments (default: the command line's). Returns the metrics of all runs and
    their summary, as in `runs.json`."""
    return run(CLASSIFICATION, argv)


if __name__ == "__main__":
    run_process(main)
