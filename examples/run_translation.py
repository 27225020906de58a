# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Train, evaluate and run a sequence-to-sequence model on translation pairs with `Seq2SeqTrainer`.

    python run_translation.py recipes/multi30k_en_de.json --output_dir out --seed 1

A recipe is a JSON file of arguments; later arguments on the command line override it. Without a checkpoint
(`--model_name_or_path`), the model starts from a configuration, by default an ODE Transformer. Without a tokenizer
(`--tokenizer_name`, or the checkpoint's), one is trained on the training pairs. Pairs come from

    --train_source_file a.en --train_target_file a.de    one sentence per line in two files
    --train_file a.tsv                                   source<TAB>target per line
    --train_file a.jsonl                                 {"en": ..., "de": ...} per line, or under "translation"
    --dataset_name wmt/wmt14 --dataset_config_name de-en

and likewise for validation and test; every file may be gzipped (`.gz`). A run started again with the same
`--output_dir` continues from its last checkpoint. `output_dir` receives the model, the tokenizer, a generation
configuration with the requested beam search, the metrics (`all_results.json`) and the predictions.

Scores are sacreBLEU's BLEU (`bleu`) and chrF, with their signatures. `--bleu_moses_language de` adds `tokenized_bleu`
and `compound_split_bleu`, the BLEU of older papers. `docs/recipes.md` lists the recipes and the papers' results.
"""

from modeling_ode_transformer.training.run import run, run_process
from modeling_ode_transformer.training.tasks.translation import TRANSLATION


def main(argv: list[str] | None = None) -> dict[str, float | str]:
    """Runs the script with the given arguments (default: the command line's) and returns all metrics by name."""
    return run(TRANSLATION, argv)


if __name__ == "__main__":
    run_process(main)
