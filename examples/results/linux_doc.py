# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Makes the corpus of the verdict on language models from the documentation of Linux, as Debian packages it.

    apt-get download linux-doc-6.1 && dpkg-deb -x linux-doc-6.1_*.deb linux-doc
    python examples/results/linux_doc.py linux-doc --output_dir data/linux_doc

The text is under GPL-2.0 and, in parts, the GFDL; the corpus stays on your machine. A line is a paragraph of the
English `.rst` files, joined to one line. Of equal paragraphs the first one counts. By a hash of its name, a file
belongs to the validation set (2%), to the test set (2%) or to the training set.
"""

import gzip
import hashlib
import re
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from collections.abc import Iterator
from pathlib import Path


SPLITS = {"valid": range(2), "test": range(2, 4), "train": range(4, 100)}


def paragraphs(folder: Path) -> Iterator[tuple[str, str]]:
    """The (file, paragraph) pairs of a folder of unpacked packages, in the order of the files' names."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("Documentation/**/*.rst*")}
    for name, path in sorted(files.items()):
        if "translations" in path.parts or path.suffix not in (".rst", ".gz"):
            continue
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for paragraph in re.split(r"\n\s*\n", data.decode("utf-8", "replace")):
            yield name, " ".join(paragraph.split())


def main(argv: list[str] | None = None) -> None:
    """Runs the script with the given arguments (default: the command line's)."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the unpacked package")
    parser.add_argument("--output_dir", type=Path, default=Path("data/linux_doc"), help="folder for the corpus")
    args = parser.parse_args(argv)
    texts: dict[str, list[str]] = {split: [] for split in SPLITS}
    seen: set[str] = set()
    for name, paragraph in paragraphs(args.folder):
        if not any(map(str.isalpha, paragraph)) or paragraph in seen:
            continue
        seen.add(paragraph)
        number = int(hashlib.blake2b(name.encode(), digest_size=8).hexdigest(), 16) % 100
        texts[next(split for split, numbers in SPLITS.items() if number in numbers)].append(paragraph)
    if not seen:
        parser.error(f"{args.folder} has no Documentation folder with .rst files: give that of the unpacked package.")
    args.output_dir.mkdir(parents=True, exist_ok=True)
    for split, lines in texts.items():
        text = "".join(f"{line}\n" for line in lines).encode()
        (args.output_dir / f"{split}.txt.gz").write_bytes(gzip.compress(text, mtime=0))
        print(f"{split}: {len(lines):,} paragraphs, {len(text):,} bytes, {hashlib.sha256(text).hexdigest()[:16]}")


if __name__ == "__main__":
    main()
