# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Train a small ODE Transformer and its residual baseline to translate English number names into German.

    python quickstart.py quickstart_output

A toy example of all steps in a few minutes on two CPU cores: texts, tokenizer, training, beam search, scores. The
pairs are generated. German says the units before the tens and writes a number in one word ("two hundred twenty-one"
is "zweihunderteinundzwanzig"). So the words must be reordered and spelled, not just replaced. run_translation.py
trains both models with the same tokenizer, seed and number of updates. They are tested on numbers that occur in
neither training nor validation.
"""

import json
import logging
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path


# If torchao is installed, transformers imports it, and it warns about its missing parts.
for name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(name).setLevel(logging.ERROR)

import run_translation  # noqa: E402
from number_names import english, german, write_corpus  # noqa: E402
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer  # noqa: E402

from modeling_ode_transformer.text_files import read_lines  # noqa: E402


SIZES = {"train": 20_000, "validation": 500, "test": 1_000}

MODEL = {
    "d_model": 128,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256,
}
TRAINING = {
    "vocab_size": 400,
    "max_source_length": 64,
    "max_target_length": 64,
    "max_steps": 700,
    "per_device_train_batch_size": 64,
    "per_device_eval_batch_size": 250,
    "train_sampling_strategy": "group_by_length",
    "learning_rate": 2e-3,
    "lr_scheduler_type": "linear",
    "warmup_steps": 150,
    "label_smoothing_factor": 0.1,
    "logging_steps": 100,
    "save_strategy": "no",
    "num_beams": 4,
    "length_penalty": 0.6,
    # BLEU of characters: a number is one word, so BLEU of words would find no 4-gram.
    "bleu_tokenize": "char",
    "seed": 1,
    "use_cpu": True,
    "preset": "none",
}
# Name: solver and coefficients.
SCHEMES = {"RK2 (gate)": ("rk2", "gate"), "residual": ("euler", "fixed")}


def arguments(corpus: Path, output_dir: Path, solver: str, coefficients: str, tokenizer: Path | None) -> list[str]:
    """Arguments for run_translation.py to train, evaluate and test one model."""
    scheme = {"encoder_solver": solver, "encoder_coefficients": coefficients}
    values = TRAINING | {"config_overrides": json.dumps(MODEL | scheme)}
    for split in SIZES:
        values |= {f"{split}_source_file": corpus / f"{split}.en", f"{split}_target_file": corpus / f"{split}.de"}
    if tokenizer is not None:
        values["tokenizer_name"] = tokenizer
    flags = "do_train do_eval do_predict predict_with_generate overwrite_output_dir".split()
    values |= dict.fromkeys(flags, True) | {"output_dir": output_dir, "report_to": "none", "log_level": "error"}
    return [argument for name, value in values.items() for argument in (f"--{name}", str(value))]


def run_scheme(name: str, corpus: Path, output_dir: Path, tokenizer: Path | None) -> dict:
    """Trains and tests one model; returns its losses, scores and translations."""
    solver, coefficients = SCHEMES[name]
    print(f"\n=== {name}: encoder_solver={solver!r}, encoder_coefficients={coefficients!r}", flush=True)
    metrics = run_translation.main(arguments(corpus, output_dir, solver, coefficients, tokenizer))
    history = json.loads((output_dir / "trainer_state.json").read_text())["log_history"]
    predictions = read_lines(output_dir / "generated_predictions.txt")
    references = read_lines(corpus / "test.de")
    return {
        "model": name,
        "parameters": AutoModelForSeq2SeqLM.from_pretrained(output_dir).num_parameters(),
        "losses": {entry["step"]: entry["loss"] for entry in history if "loss" in entry},
        "exact_match": 100 * sum(p == r for p, r in zip(predictions, references)) / len(references),
        "bleu": metrics["predict_bleu"],
        "bleu_signature": metrics["predict_bleu_signature"],
        "training_seconds": metrics["train_runtime"],
    }


def translate(folder: Path, texts: list[str]) -> list[str]:
    """Translations by a saved model, with its saved beam search."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    output = model.generate(**tokenizer(texts, padding=True, return_tensors="pt"))
    return tokenizer.batch_decode(output, skip_special_tokens=True)


def report(results: list[dict]) -> str:
    """The losses and scores of the models, side by side."""
    rows = [["", *(result["model"] for result in results)]]
    rows.append(["parameters", *(f"{result['parameters']:,}" for result in results)])
    for step in results[0]["losses"]:
        rows.append([f"training loss, update {step}", *(f"{result['losses'][step]:.3f}" for result in results)])
    rows.append([f"exact match, {SIZES['test']} unseen (%)", *(f"{result['exact_match']:.1f}" for result in results)])
    rows.append(["BLEU of characters", *(f"{result['bleu']:.1f}" for result in results)])
    rows.append(["training time (s)", *(f"{result['training_seconds']:.0f}" for result in results)])
    return "\n".join(f"{row[0]:<32}" + "".join(f"{cell:>14}" for cell in row[1:]) for row in rows)


def main(argv: list[str] | None = None) -> list[dict]:
    """Runs the script with the given arguments (default: the command line's); returns both models' results."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="OUTPUT_FOLDER", help="folder for texts, models and results.json")
    folder = parser.parse_args(argv).folder
    corpus = folder / "corpus"
    write_corpus(corpus, SIZES)
    print(f"{SIZES['train']} training pairs in {corpus}, e.g. {english(421_735)!r} -> {german(421_735)!r}")

    results, tokenizer = [], None
    for name, (solver, _) in SCHEMES.items():
        output_dir = folder / solver
        results.append(run_scheme(name, corpus, output_dir, tokenizer))
        tokenizer = tokenizer or output_dir
    (folder / "results.json").write_text(json.dumps(results, indent=2), encoding="utf-8")

    print("\nUnseen numbers, translated by the saved models:")
    sources = read_lines(corpus / "test.en")[:4]
    references = read_lines(corpus / "test.de")[:4]
    translations = [translate(folder / solver, sources) for solver, _ in SCHEMES.values()]
    for source, reference, *outputs in zip(sources, references, *translations):
        print(f"\n  {source}\n  {'reference':<12}{reference}")
        for name, output in zip(SCHEMES, outputs):
            print(f"  {name:<12}{output}")

    print(f"\n{report(results)}")
    print(f"BLEU signature: {results[0]['bleu_signature']}")
    print(
        "\nThis is a toy: one seed on a generated language. It shows that everything works, not which model is "
        f"better.\nModels and results.json are in {folder}."
    )
    return results


if __name__ == "__main__":
    main()
