# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Train, evaluate and run a sequence-to-sequence model on articles and their summaries with `Seq2SeqTrainer`.

    python run_summarization.py recipes/cnn_dailymail_base.json --output_dir out --seed 1

A recipe is a JSON file of arguments; later arguments on the command line override it. Without a checkpoint
(`--model_name_or_path`), the model starts from a configuration, by default an ODE Transformer. Without a tokenizer
(`--tokenizer_name`, or the checkpoint's), one is trained on articles and summaries. They come from

    --train_file a.jsonl                                 {"article": ..., "highlights": ...} per line (or .gz)
    --dataset_name abisee/cnn_dailymail --dataset_config_name 3.0.0

and likewise for validation and test; `--article_column` and `--summary_column` name other keys. Articles are cut after
`--max_source_length` tokens. A run started again with the same `--output_dir` continues from its last checkpoint.
`output_dir` receives the model, the tokenizer, a generation configuration with the requested beam search, the metrics
(`all_results.json`) and the predictions, one summary per line.

**Sentences.** Line ends in articles and summaries become spaces: models and tokenizers read one line and write one.
ROUGE-L of summaries (`rougeLsum`) needs sentence ends. As in the papers, outputs and references are split at each
". ". A line that ends differently ("!", a quotation mark) forms one sentence with the next line, in references and
outputs alike, so the same text still gets 100. `rouge_convention` says how the scores were computed.
"""

from modeling_ode_transformer.training.run import run, run_process
from modeling_ode_transformer.training.tasks.summarization import SUMMARIZATION


def main(argv: list[str] | None = None) -> dict[str, float | str]:
    """Runs the script with the given arguments (default: the command line's) and returns all metrics by name."""
    return run(SUMMARIZATION, argv)


if __name__ == "__main__":
    run_process(main)
