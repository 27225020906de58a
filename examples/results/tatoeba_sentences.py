# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Makes the corpus of the verdict on language models from the sentences of Tatoeba's English-German pairs.

    python examples/results/tatoeba_sentences.py data/tatoeba_en_de --output_dir data/tatoeba_sentences

A line is a sentence of either language, each once, in an order drawn by a hash. No sentence of the validation or the
test set is in the training set. The text is under CC BY 2.0.
"""

import gzip
import hashlib
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from pathlib import Path


def main(argv: list[str] | None = None) -> None:
    """Runs the script with the given arguments (default: the command line's)."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with the pairs: train.tsv.gz, valid.tsv.gz and test.tsv.gz")
    parser.add_argument(
        "--output_dir", type=Path, default=Path("data/tatoeba_sentences"), help="folder for the corpus"
    )
    args = parser.parse_args(argv)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    for split in ("valid", "test", "train"):
        pairs = gzip.decompress((args.folder / f"{split}.tsv.gz").read_bytes()).decode()
        sentences = set(pairs.replace("\t", "\n").removesuffix("\n").split("\n")) - seen
        seen |= sentences
        lines = sorted(sentences, key=lambda line: hashlib.blake2b(line.encode(), digest_size=8).digest())
        text = "".join(f"{line}\n" for line in lines).encode()
        (args.output_dir / f"{split}.txt.gz").write_bytes(gzip.compress(text, mtime=0))
        print(f"{split}: {len(lines):,} sentences, {len(text):,} bytes, {hashlib.sha256(text).hexdigest()[:16]}")


if __name__ == "__main__":
    main()
