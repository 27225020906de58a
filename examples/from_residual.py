# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""A residual model of transformers continues as an ODE Transformer: does the second stage help?

    python examples/from_residual.py --data_dir data/multi30k --output_dir from_residual

1. trains an `M2M100ForConditionalGeneration`, transformers' own pre-norm model, on Multi30k en-de;
2. turns it into an RK2 model with learned coefficients (`from_residual`), which at first computes the same function;
3. trains both further, for the same number of updates, on the same batches;
4. writes `results.json` with the scores before and after, and prints them as a table.

The training uses `run_translation.py` with the recipe below. A run started again continues where it stopped.
"""

import json
import sys
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from pathlib import Path

from run_translation import main as run_translation
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, M2M100Config, M2M100ForConditionalGeneration, set_seed

from modeling_ode_transformer import OdeTransformerTokenizer
from modeling_ode_transformer.conversion.residual import from_residual
from modeling_ode_transformer.text_files import read_json, read_lines
from modeling_ode_transformer.training.recipe_files import RECIPES
from modeling_ode_transformer.training.records import ARGUMENTS, RESULTS


RECIPE = RECIPES / "multi30k_en_de.json"


def make_residual_model(sentences: list[str], vocab_size: int, folder: Path) -> None:
    """Writes a new M2M100 of the recipe's size, and its tokenizer of `vocab_size` BPE pieces."""
    tokenizer = OdeTransformerTokenizer.train(sentences, vocab_size, model_type="bpe")
    config = M2M100Config(
        vocab_size=len(tokenizer),
        d_model=256,
        encoder_layers=3,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=1024,
        decoder_ffn_dim=1024,
        encoder_layerdrop=0.0,
        decoder_layerdrop=0.0,
        dropout=0.2,
        attention_dropout=0.1,
        activation_dropout=0.1,
        init_std=256**-0.5,
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.eos_token_id,
    )
    tokenizer.save_pretrained(folder)
    M2M100ForConditionalGeneration(config).save_pretrained(folder)


def note(folder: Path, arguments: list[str]) -> None:
    """Records the arguments of a folder's contents in a file beside the folder.

    Raises:
        ValueError: the folder was made with other arguments.
    """
    file = folder.with_suffix(".arguments.json")
    if folder.exists() and file.is_file() and (noted := read_json(file)["arguments"]) != arguments:
        raise ValueError(
            f"{folder} was written with the arguments {' '.join(noted)}, not {' '.join(arguments)}: choose another "
            "--output_dir."
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"arguments": arguments}), encoding="utf-8")


def train(start: Path, output_dir: Path, data_dir: Path, arguments: list[str]) -> dict:
    """Trains the model in the folder `start` with the recipe and returns its metrics. If the run is already finished,
    they are read from its file.

    Raises:
        ValueError: the run in the folder had other arguments.
    """
    note(output_dir, arguments)
    results, noted = output_dir / RESULTS, output_dir / ARGUMENTS
    # A later evaluation may have used other sentences.
    is_measured = results.is_file() and "predict_bleu" in read_json(results)
    if not is_measured or read_json(noted).get("evaluated"):
        files_of_run = []
        files = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
        for split, name in files.items():
            for side, language in (("source", "en"), ("target", "de")):
                files_of_run += [f"--{split}_{side}_file", str(data_dir / f"{name}.{language}.gz")]
        recipe = read_json(RECIPE)
        del recipe["config_overrides"]
        recipe_file = output_dir.with_suffix(".json")
        recipe_file.write_text(json.dumps(recipe, indent=2), encoding="utf-8")
        folders = ["--model_name_or_path", str(start), "--output_dir", str(output_dir)]
        run_translation([str(recipe_file), *files_of_run, *folders, *arguments])
    return read_json(results)


def main(argv: list[str] | None = None) -> None:
    """Runs the script with the given arguments (default: the command line's)."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--data_dir", type=Path, required=True, help="folder with the files of Multi30k (train.en.gz, ...)"
    )
    parser.add_argument("--output_dir", type=Path, required=True, help="folder to write")
    parser.add_argument("--vocab_size", type=int, default=8000, help="number of BPE pieces of the joint tokenizer")
    parser.add_argument("--epochs", type=int, default=10, help="training epochs of the residual model")
    parser.add_argument(
        "--further_epochs", type=int, default=4, help="further epochs of both models after the conversion"
    )
    parser.add_argument("--learning_rate", type=float, default=2e-3, help="peak learning rate of the residual model")
    parser.add_argument(
        "--further_learning_rate", type=float, default=5e-4, help="initial learning rate after the conversion"
    )
    parser.add_argument("--seed", type=int, default=1, help="random seed")
    args, training_arguments = parser.parse_known_args(sys.argv[1:] if argv is None else argv)
    set_seed(args.seed)

    start, residual = args.output_dir / "start", args.output_dir / "residual"
    given = {"data_dir": args.data_dir.resolve(), "vocab_size": args.vocab_size, "seed": args.seed}
    note(start, [word for name, value in given.items() for word in (f"--{name}", str(value))])
    if not (start / "model.safetensors").is_file():
        lines = [line for name in ("train.en.gz", "train.de.gz") for line in read_lines(args.data_dir / name)]
        make_residual_model([line for line in lines if line.strip()], args.vocab_size, start)

    seed = ["--seed", str(args.seed), *training_arguments]  # others go to run_translation.py
    first = ["--num_train_epochs", str(args.epochs), "--learning_rate", str(args.learning_rate), *seed]
    results = {"residual": train(start, residual, args.data_dir, first)}

    converted = args.output_dir / "converted"
    model = AutoModelForSeq2SeqLM.from_pretrained(residual)
    ode = from_residual(model, encoder_solver="rk2")
    ode.save_pretrained(converted)
    AutoTokenizer.from_pretrained(residual).save_pretrained(converted)

    further = ["--num_train_epochs", str(args.further_epochs), "--learning_rate", str(args.further_learning_rate)]
    further += ["--lr_scheduler_type", "linear", "--warmup_steps", "0", *seed]
    for name, folder in (("residual, continued", residual), ("RK2, continued", converted)):
        output_dir = args.output_dir / f"{folder.name}_continued"
        results[name] = train(folder, output_dir, args.data_dir, further)
    encoder = AutoModelForSeq2SeqLM.from_pretrained(args.output_dir / "converted_continued").model.encoder
    results["coefficients"] = encoder.solver_coefficients.weight.tolist()
    (args.output_dir / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")

    columns = ("eval_bleu", "eval_perplexity", "predict_bleu", "predict_chrf", "predict_perplexity", "train_loss")
    print("| model |", " | ".join(columns), "|")
    for name in ("residual", "residual, continued", "RK2, continued"):
        print(f"| {name} |", " | ".join(f"{results[name][column]:.2f}" for column in columns), "|")
    print("coefficients of the RK2 stages, from (1, 0):", results["coefficients"])


if __name__ == "__main__":
    main()
