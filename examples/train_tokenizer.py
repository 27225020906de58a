# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Train SentencePiece tokenizers from text files, one sentence per line (`.gz` accepted).

    python train_tokenizer.py --files train.en train.de --vocab_size 8000 --output_dir tokenizer
    python train_tokenizer.py --files train.en --target_files train.de --vocab_size 8000 --output_dir tokenizers

The first command trains one joint tokenizer. The second trains one for each language, with the target's in the
subfolder `target_tokenizer`. `run_translation.py --tokenizer_name FOLDER` and `AutoTokenizer.from_pretrained` open
both.
"""

import sys
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from pathlib import Path

from modeling_ode_transformer import OdeTransformerTokenizer
from modeling_ode_transformer.text_files import parse_overrides, read_lines
from modeling_ode_transformer.texts_ode_transformer import TARGET_TOKENIZER


def main(argv: list[str] | None = None) -> None:
    """Runs the script with the given arguments (default: the command line's)."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--files", nargs="+", required=True, help="text files of both languages, or of the source language"
    )
    parser.add_argument("--target_files", nargs="+", help="text files of the target language, for its own tokenizer")
    parser.add_argument("--output_dir", required=True, type=Path, help="folder to write")
    parser.add_argument("--vocab_size", type=int, default=8000, help="number of pieces, special tokens included")
    parser.add_argument(
        "--target_vocab_size", type=int, help="number of pieces of the target tokenizer; None: --vocab_size"
    )
    parser.add_argument("--model_type", choices=["bpe", "unigram"], default="bpe", help="type of SentencePiece model")
    parser.add_argument("--options", help="SentencePiece options, such as character_coverage=0.9995,split_digits=true")
    args = parser.parse_args(sys.argv[1:] if argv is None else argv)
    if args.target_vocab_size is not None and not args.target_files:
        raise ValueError(f"--target_vocab_size {args.target_vocab_size} needs --target_files: add it.")
    if args.output_dir.is_dir() and any(args.output_dir.iterdir()):
        raise ValueError(f"--output_dir {args.output_dir} is not empty: choose another folder.")

    options = parse_overrides(args.options)
    if own := sorted({"files", "vocab_size", "model_type"} & options.keys()):
        raise ValueError(f"--options {args.options}: give {' and '.join(f'--{name}' for name in own)} instead.")

    jobs = [(args.files, args.vocab_size, args.output_dir)]
    if args.target_files:
        target_size = args.vocab_size if args.target_vocab_size is None else args.target_vocab_size
        jobs.append((args.target_files, target_size, args.output_dir / TARGET_TOKENIZER))
    trained = []
    for files, vocab_size, folder in jobs:
        lines = [line for path in files for line in read_lines(path) if line.strip()]
        if not lines:
            raise ValueError(f"No text in {', '.join(files)}.")
        tokenizer = OdeTransformerTokenizer.train(lines, vocab_size, model_type=args.model_type, **options)
        report = f"{len(tokenizer)} pieces ({args.model_type}) from {len(lines)} lines of {', '.join(files)}"
        trained.append((tokenizer, folder, report))
    for tokenizer, folder, report in trained:
        tokenizer.save_pretrained(folder)
        print(f"{folder}: {report}")


if __name__ == "__main__":
    main()
