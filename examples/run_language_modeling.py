# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Train and evaluate a language model of words or subwords with `Trainer`.

    python run_language_modeling.py recipes/ptb.json --output_dir out --config_overrides decoder_solver=rk4
    python run_language_modeling.py --model_name_or_path out --test_file test.txt --do_predict --output_dir measured

A recipe is a JSON file of arguments; later arguments on the command line override it. Without a checkpoint
(`--model_name_or_path`), the model starts from a configuration, by default an ODE Transformer. Without a tokenizer
(`--tokenizer_name`, or the checkpoint's), one is made from the words of the training text, or from subwords
(`--tokenizer_model_type bpe`). Texts come from

    --train_file a.txt                                   one sentence per line, words separated by spaces
    --dataset_name Salesforce/wikitext --dataset_config_name wikitext-2-v1 --text_column text

and likewise for validation and test; every file may be gzipped (`.gz`).

Every line ends with `</s>`, which counts as a word, on an empty line too. `<unk>` is a word; it replaces words not in
the vocabulary. With `--block_size N`, the words of a text, line after line, are cut into blocks of N. Each word is
predicted once, from the words before it in its block and the last word of the block before. So the first of N words
sees one word, and the last sees N. With `--block_size 0`, a word is predicted from its own line. The first word of a
text, or of a line, is predicted from `</s>`. This holds for training and evaluation.

Of subwords, the spelling of a special token is text, and what is said of words here is true of tokens.

Perplexity is exp(summed negative log-likelihood / number of words or tokens), without label smoothing; bits per byte
divide by ln 2 and the bytes of the text, each line's end one. Evaluation runs in the precision of the weights
(float32), even with `--bf16` or `--fp16`.

A run started again with the same `--output_dir` continues from its last checkpoint. `output_dir` receives the model,
the tokenizer and the metrics (`all_results.json`).
"""

from modeling_ode_transformer.training.run import run, run_process
from modeling_ode_transformer.training.tasks.language_model import LANGUAGE_MODEL


def main(argv: list[str] | None = None) -> dict[str, float | str]:
    """Runs the script with the given arguments (default: the command line's) and returns all metrics by name."""
    return run(LANGUAGE_MODEL, argv)


if __name__ == "__main__":
    run_process(main)
