# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Plot the attention of a CSAODE model: figures 4 and 6 of its paper, for one sentence.

    python plot_attention.py --model_name_or_path trec --text "What state did the Battle of Bighorn take place in ?" \\
        --pair state Bighorn --output_dir plots

writes three files. `attention_over_time.png` shows how much the first word of the pair attends to the second, at the
beginning of each step and at the end. `euclidean_attention.png` shows the shares of the local vectors (columns) for
each global one (rows). `attention.json` has the numbers. A vector stands for the n-gram that begins at its word. The
paper's figure 4 shows a model with `ngram_size=1`, so its vectors are words.
"""

import json
import sys
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from pathlib import Path

import matplotlib
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import modeling_ode_transformer  # noqa: F401  (makes the Auto classes know it)


matplotlib.use("Agg")
from matplotlib import pyplot


# Which evaluations, out of `number`, begin a step.
FIRST_STAGES = {
    "rk": lambda number: range(0, number, 4),
    "ark": lambda number: [0, *range(4, number, 3)],
    "rkf": lambda number: range(0, number, 6),
    "none": range,
}


def position_of(word: str, tokens: list[str]) -> int:
    if tokens.count(word) != 1:
        raise ValueError(f"--pair {word}: {tokens.count(word)} of the words are {word!r}: {' '.join(tokens)}.")
    return tokens.index(word)


def attention_over_time(model, inputs, output) -> tuple[list[float], torch.Tensor]:
    """The beginning of each step and the end of the last one, with the attention at each: (times, length, length).
    With several blocks, a step is a block, and there is no attention at the end of the last."""
    config, times = model.config, output.evaluation_times[:, 0].tolist()
    # A step that an adaptive solver repeats begins at the same time.
    starts = {times[i]: output.attentions[i][0, 0] for i in FIRST_STAGES[config.solver](len(times))}
    if config.num_blocks > 1:
        return list(starts), torch.stack(list(starts.values()))
    ends = dict.fromkeys(("rkf", "none"), 1.0)
    end = ends.get(config.solver, config.solver_options.num_steps * config.step_size)
    last = model.base_model.attention(output.hidden_states[1], inputs["attention_mask"])
    return [*starts, end], torch.stack([*starts.values(), last[0]])


def main(argv: list[str] | None = None) -> dict:
    """Runs the script with the given arguments (default: the command line's) and returns what it plots."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--model_name_or_path", required=True, help="folder or Hub name of a classifier with its tokenizer"
    )
    parser.add_argument("--text", required=True, help="the sentence, with words separated by spaces")
    parser.add_argument("--pair", nargs=2, required=True, help="two words of the sentence")
    parser.add_argument("--output_dir", type=Path, required=True, help="folder for the pictures")
    args = parser.parse_args(sys.argv[1:] if argv is None else argv)

    model = AutoModelForSequenceClassification.from_pretrained(args.model_name_or_path).eval()
    if model.config.model_type != "csa_ode" or model.config.num_sentences != 1:
        raise ValueError(f"--model_name_or_path {args.model_name_or_path} is not a CSAODE model of single sentences.")
    inputs = AutoTokenizer.from_pretrained(args.model_name_or_path)([args.text], return_tensors="pt")
    words = args.text.split()
    if (length := inputs["input_ids"].shape[1]) != len(words):
        raise ValueError(
            f"--model_name_or_path {args.model_name_or_path}: its tokenizer makes {length} tokens of the {len(words)} "
            "words of --text, but this script needs a tokenizer of whole words."
        )
    first, second = (position_of(word, words) for word in args.pair)
    with torch.no_grad():
        output = model(**inputs, output_attentions=True, output_hidden_states=True)
        times, attention = attention_over_time(model, inputs, output)
    weights = attention[:, first, second].tolist()
    shares = torch.nn.functional.normalize(output.euclidean_attention[0], p=1, dim=1)

    args.output_dir.mkdir(parents=True, exist_ok=True)
    figure, panels = pyplot.subplots(1, 2, figsize=(9, 4), layout="constrained")
    panels[0].plot(times, weights, "o-")
    panels[0].set(
        xlabel="integration time", ylabel=f"attention of '{args.pair[0]}' to '{args.pair[1]}'", ylim=(0, None)
    )
    heat_map(panels[1], attention[-1], words, words, f"self-attention at time {times[-1]:g}")
    figure.savefig(args.output_dir / "attention_over_time.png", dpi=110)

    figure, panel = pyplot.subplots(figsize=(5, 4.5), layout="constrained")
    n = model.config.ngram_size
    ngrams = [" ".join(words[i : i + n]) for i in range(len(words) - n + 1)] if n > 1 else words
    columns = [*ngrams, *[""] * (len(words) - len(ngrams))]
    heat_map(panel, shares, words, columns, "Euclidean attention, shares of a row")
    figure.savefig(args.output_dir / "euclidean_attention.png", dpi=110)

    results = {"times": times, "weights": weights, "euclidean_attention": shares.tolist()}
    (args.output_dir / "attention.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    return results


def heat_map(panel, values: torch.Tensor, rows: list[str], columns: list[str], title: str) -> None:
    image = panel.imshow(values.numpy(), cmap="viridis", vmin=0)
    panel.set_xticks(range(len(columns)), columns, rotation=60, ha="right")
    panel.set_yticks(range(len(rows)), rows)
    panel.set_title(title)
    panel.figure.colorbar(image, ax=panel)


if __name__ == "__main__":
    main()
