# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The command `ode-transformer`, also available as `python -m modeling_ode_transformer`.

    ode-transformer train translation --train pairs.tsv --validation dev.tsv --output_dir mine
    ode-transformer prepare translation --train pairs.tsv --output_dir data-bin
    ode-transformer average multi30k_en_de --last 5 --output_dir averaged
    ode-transformer score bleu --hypotheses output.de --references test.de
    ode-transformer --help

A subcommand has one function that declares its options and another that runs it. Only the second imports torch, so
help and errors in the arguments come at once.
"""

import gc
import gzip
import json
import logging
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from shutil import copyfile
from typing import Any

from .errors import one_line_errors
from .inference.arguments import GenerateArguments, ServeArguments
from .options import FLAG, add_options, declarations, options_of
from .text_files import read_aligned_lines, read_json, read_lines, reading
from .training.recipe_files import read_recipe, recipe_file, recipe_of


# The choices of options, which their modules know too: those import torch.
TASKS = ("translation", "summarization", "text-correction", "text-generation", "text-classification")
SENTENCE_ENDS = ("newline", "period")
ERRANT_CRITERIA = ("cs", "cse", "ds", "dt")
ERRANT_TYPES = ("operation", "main", "all")
BOOTSTRAP_METRICS = ("bleu", "tokenized_bleu", "compound_split_bleu", "chrf", "m2", "perplexity")

BLEU_DEFAULTS = {"tokenize": "13a", "lowercase": False, "moses_language": None}
M2_DEFAULTS = {"max_unchanged_words": 2, "ignore_whitespace_casing": False}
# What a run does not know about its model card.
CARD_VALUES = {
    "title": "title of the card; default: the repository's name",
    "language": "codes of the languages, such as en de",
    "license": "license of the weights, such as apache-2.0",
    "dataset": "name of the data set, or its name on the Hub (OWNER/NAME); default: the names of the files",
    "about": "one sentence about the model",
    "intended_use": "what the model is for",
    "limits": "what the model is not for, and what it gets wrong",
    "machine": "machine that trained the model",
    "command": "command that repeats the run",
}


def main(argv: list[str] | None = None) -> None:
    """Calls `run`, but ends the process with one line for errors that the user can fix."""
    # Where torchao is installed, transformers imports it, and it warns of what it lacks.
    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with one_line_errors():
        run(argv)


def run(argv: list[str] | None = None) -> None:
    """Runs the command with the given arguments (default: the command line's).

    Raises:
        SystemExit: the arguments are malformed, or ask for help.
        ValueError, OSError, ImportError: a value, a file or an optional package is wrong or missing.
    """
    parser = make_parser()
    args = parser.parse_args(argv)
    if getattr(args, "recipe", None) is not None:
        lay_recipe_under(args)
        args = parser.parse_args(argv)
    if args.needs_models:
        with imports_that_stay():
            from . import registration  # noqa: F401, the Auto classes know the package's models from here on
    for path in getattr(args, "import_schemes", None) or []:
        from .own_schemes import import_schemes

        import_schemes(path)
    args.run(args)


@contextmanager
def imports_that_stay() -> Iterator[None]:
    """Imports without collections of garbage, now or later, in what they leave: these take a third of a command's time
    until it begins."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


def make_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="ode-transformer",
        description="Tools for ODE Transformers: train, generate, evaluate, convert and publish models.",
    )
    commands = parser.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND")
    add_train(commands)
    add_prepare(commands)
    add_average(commands)
    add_convert_fairseq(commands)
    add_convert_successor(commands)
    add_export_onnx(commands)
    add_generate(commands)
    add_serve(commands)
    add_publish(commands)
    add_card(commands)
    score = add_command(commands, "score", "compute a metric used in the papers", None)
    metrics = score.add_subparsers(dest="metric_name", required=True, metavar="METRIC")
    for add_metric in (add_bleu, add_rouge, add_m2, add_gleu, add_errant, add_perplexity, add_bootstrap):
        add_metric(metrics)
    add_annotate(commands)
    return parser


def add_command(
    commands: Any, name: str, summary: str, run: Callable[[Namespace], None] | None, needs_models: bool = True
) -> ArgumentParser:
    """Adds a parser for the options of a subcommand. `run` runs it; if needed, the package's models are first added to
    the Auto classes."""
    parser = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    parser.set_defaults(run=run, needs_models=needs_models)
    return parser


# Training

HELP_TEXTS = Path(__file__).parent / "training" / "help_texts"
# What `train` trains; `training.help` knows the modules.
TRAINED = {
    "translation": "a translation model on pairs of sentences",
    "summarization": "a summarization model on articles and their summaries",
    "correction": "a model that corrects grammatical errors, on sentences and their corrections",
    "language-model": "a word-level language model on running text",
    "classification": "a classifier of sentences or of pairs of sentences",
}


def add_train(commands: Any) -> None:
    summary = "train a model from scratch, with a recipe or from a checkpoint, and evaluate it"
    parser = add_command(commands, "train", summary, train, needs_models=False)
    tasks = parser.add_subparsers(dest="trained", required=True, metavar="TASK")
    for name, description in TRAINED.items():
        # No character begins an option here: all options are the training's.
        parser = tasks.add_parser(name, help=description, add_help=False, prefix_chars="\0")
        parser.add_argument("arguments", nargs="*")


def train(args: Namespace) -> None:
    if not {"-h", "--help"}.isdisjoint(args.arguments):
        print((HELP_TEXTS / f"{args.trained}.txt").read_text(encoding="utf-8"), end="")
        return
    if (recipe := recipe_of(args.arguments)[0]) is not None:
        read_json(recipe_file(recipe))
    with imports_that_stay():
        from .training.help import find_task
        from .training.run import run, run_process

        task = find_task(args.trained)
    run_process(lambda: run(task, args.arguments))


def add_import(parser: Any) -> None:
    parser.add_argument(
        "--import",
        dest="import_schemes",
        metavar="FILE",
        action="append",
        help="Python file that defines the model's own coefficients and schemes; may be repeated",
    )


# What `prepare` prepares, of the tasks of `train`.
PREPARED = ("translation", "summarization", "correction", "language-model")


def add_prepare(commands: Any) -> None:
    summary = "clean and encode data once, to be reused by `train` with --prepared_dir FOLDER"
    parser = add_command(commands, "prepare", summary, prepare, needs_models=False)
    tasks = parser.add_subparsers(dest="trained", required=True, metavar="TASK")
    for name in PREPARED:
        help_text = f"data for `train {name}`, with its options (see train {name} --help); writes to --output_dir"
        parser = tasks.add_parser(name, help=help_text, add_help=False, prefix_chars="\0")
        parser.add_argument("arguments", nargs="*")


def prepare(args: Namespace) -> None:
    if not {"-h", "--help"}.isdisjoint(args.arguments):
        print(
            f"usage: ode-transformer prepare {args.trained} --train FILE --validation FILE --output_dir FOLDER "
            "[OPTIONS]\n\nCleans and encodes data once and writes them to --output_dir. The options, including "
            f"--recipe,\nare listed by: ode-transformer train {args.trained} --help. To use the prepared data, train "
            "with the\nsame options and give that folder as --prepared_dir."
        )
        return
    with imports_that_stay():
        from .training.help import find_task
        from .training.run import prepare, run_process

        task = find_task(args.trained)
    run_process(lambda: prepare(task, args.arguments))


# Checkpoints


def add_average(commands: Any) -> None:
    parser = add_command(commands, "average", "average the weights of checkpoints into a model folder", average)
    parser.add_argument(
        "folders", nargs="+", type=Path, help="output folder of one training run, or several model folders"
    )
    parser.add_argument(
        "--last", type=int, help="number of last checkpoints of the training run to average; default: 5"
    )
    parser.add_argument(
        "--output_dir", type=Path, help="folder to write; default: averaged_last_N in the folder of the run"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an --output_dir that is not empty")
    add_import(parser)


def average(args: Namespace) -> None:
    from .training.average import average_checkpoints, last_checkpoints

    checkpoints, output_dir = args.folders, args.output_dir
    if len(args.folders) == 1:
        last = 5 if args.last is None else args.last
        checkpoints = last_checkpoints(args.folders[0], last)
        output_dir = output_dir or args.folders[0] / f"averaged_last_{last}"
    elif args.last is not None:
        raise ValueError(
            f"--last {args.last} needs one training run, but {len(args.folders)} folders are given: leave it out."
        )
    elif output_dir is None:
        raise ValueError(f"{len(args.folders)} folders are given: add --output_dir.")
    average_checkpoints(checkpoints, output_dir, args.overwrite)
    print(f"{output_dir}: the mean of {', '.join(path.name for path in checkpoints)}")


def add_convert_fairseq(commands: Any) -> None:
    summary = "convert checkpoints of the original code (fairseq 0.6.2) to a model folder"
    parser = add_command(commands, "convert-fairseq", summary, convert_fairseq)
    parser.add_argument("checkpoints", nargs="+", type=Path, help="a checkpoint, or several to average")
    parser.add_argument("--source_dict", required=True, type=Path, help="fairseq's dictionary for the source")
    parser.add_argument("--target_dict", required=True, type=Path, help="fairseq's dictionary for the target")
    parser.add_argument("--output_dir", required=True, type=Path, help="folder to write; it must be empty or new")
    parser.add_argument(
        "--bpe_codes",
        type=Path,
        help="BPE codes of subword-nmt or fastBPE; default: none, and the tokenizer expects text already split into "
        "pieces",
    )
    parser.add_argument("--target_bpe_codes", type=Path, help="BPE codes for the target; default: --bpe_codes")
    parser.add_argument(
        "--num_beams",
        type=int,
        default=4,
        help="number of beams in the generation configuration; default: %(default)s",
    )
    parser.add_argument(
        "--length_penalty",
        type=float,
        default=0.6,
        help="exponent p of the score of a beam, log probability / length ** p; default: %(default)s",
    )
    parser.add_argument(
        "--max_length", type=int, default=256, help="maximum length of an output in tokens; default: %(default)s"
    )
    parser.add_argument(
        "--trust_file",
        action="store_true",
        help="unpickle everything in the checkpoints; this can run any code, so use it only for files you trust",
    )


def convert_fairseq(args: Namespace) -> None:
    from .conversion.fairseq import convert_fairseq_checkpoints

    names = ("bpe_codes", "target_bpe_codes", "num_beams", "length_penalty", "max_length", "trust_file")
    convert_fairseq_checkpoints(
        args.checkpoints,
        args.source_dict,
        args.target_dict,
        args.output_dir,
        **{name: getattr(args, name) for name in names},
    )


def add_convert_successor(commands: Any) -> None:
    summary = "convert a language model of PCformer or IIET, as their code saved it, to a model folder"
    parser = add_command(commands, "convert-successor", summary, convert_successor)
    parser.add_argument("folder", type=Path, help="has config.json and model.safetensors or pytorch_model.bin")
    parser.add_argument("--output_dir", required=True, type=Path, help="folder to write; it must be empty or new")
    parser.add_argument(
        "--corrector_iterations",
        type=int,
        help="corrections of a layer, a constant of their code; default: 3 for IIET, 1 for PCformer, as released",
    )


def convert_successor(args: Namespace) -> None:
    from .depth.successors import convert_successor

    if args.output_dir.is_dir() and any(args.output_dir.iterdir()):
        raise ValueError(f"--output_dir {args.output_dir} is not an empty folder: choose another one.")
    convert_successor(args.folder, args.corrector_iterations).save_pretrained(args.output_dir)
    for path in chain(args.folder.glob("*token*"), args.folder.glob("vocab*"), args.folder.glob("merges.txt")):
        copyfile(path, args.output_dir / path.name)  # the tokenizer, where there is one


def add_export_onnx(commands: Any) -> None:
    summary = "export an encoder-decoder to ONNX, with its tokenizer and generation configuration"
    parser = add_command(commands, "export-onnx", summary, export_onnx)
    parser.add_argument("model_name_or_path", metavar="MODEL", help="model folder or Hub name")
    parser.add_argument("--output_dir", required=True, type=Path, help="folder to write; it must be empty or new")
    parser.add_argument(
        "--trust_remote_code", default=False, help="run modeling code stored with the model; default: false", **FLAG
    )
    add_import(parser)


def export_onnx(args: Namespace) -> None:
    from .conversion.onnx import export_onnx

    export_onnx(args.model_name_or_path, args.output_dir, trust_remote_code=args.trust_remote_code)


# Generation


def add_generate(commands: Any) -> None:
    summary = "translate, summarize or correct texts with an encoder-decoder, or with an ensemble of several"
    parser = add_command(commands, "generate", summary, generate)
    parser.set_defaults(parser=parser)
    parser.add_argument(
        "recipe",
        nargs="?",
        metavar="RECIPE.json",
        help="JSON file with options by name; it must be the first argument, and the command line overrides it",
    )
    add_options(parser, GenerateArguments)
    add_import(parser)


def lay_recipe_under(args: Namespace) -> None:
    """Makes the options in a recipe the defaults of the subcommand's parser.

    Raises:
        ValueError: the recipe is not a mapping from option names to values, or gives an option that runs code.
        FileNotFoundError: the file does not exist.
    """
    args.parser.set_defaults(**read_recipe(args.recipe, declarations(GenerateArguments).keys()))


def generate(args: Namespace) -> None:
    from .inference.generate import run

    logging.basicConfig(format="%(levelname)s: %(message)s", stream=sys.stderr)
    run(options_of(GenerateArguments, args))


def add_serve(commands: Any) -> None:
    parser = add_command(commands, "serve", "serve an encoder-decoder, or an ensemble of several, over HTTP", serve)
    parser.add_argument(
        "model_name_or_path",
        metavar="MODEL",
        nargs="+",
        help="model folder or Hub name; with several, their probabilities are averaged (an ensemble)",
    )
    add_options(parser, ServeArguments, without="model_name_or_path")
    add_import(parser)


def serve(args: Namespace) -> None:
    from .inference.serve import serve

    logging.basicConfig(format="%(levelname)s: %(message)s", stream=sys.stderr)
    serve(options_of(ServeArguments, args))


# The Hub


def add_card_options(parser: ArgumentParser) -> None:
    parser.add_argument("--task", choices=TASKS, help="task of the model; default: as recorded by its training run")
    for name, description in CARD_VALUES.items():
        parser.add_argument(f"--{name}", nargs="+" if name == "language" else None, help=description)


def card_values(args: Namespace) -> dict[str, Any]:
    """The values of a record's `card` that the arguments give."""
    return {name: value for name in ("repo_id", *CARD_VALUES) if (value := getattr(args, name)) is not None}


def add_publish(commands: Any) -> None:
    summary = "turn a training run into a Hub repository, test it without this package, and upload it"
    parser = add_command(commands, "publish", summary, publish)
    parser.add_argument("run_folder", metavar="RUN", help="output folder of a training run")
    parser.add_argument("--repo_id", required=True, help="name of the repository, NAME or OWNER/NAME")
    parser.add_argument(
        "--private",
        action="store_true",
        help="make a new repository visible to its owner only; default: public, unless the owner's settings on the "
        "Hub make new repositories private",
    )
    parser.add_argument("--dry_run", action="store_true", help="build and test the repository, but do not upload it")
    parser.add_argument("--output_dir", help="also write the repository to this folder")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        default="auto",
        help="of the weights; bfloat16 and float16 take half the space of float32; default: as saved",
    )
    parser.add_argument("--update", action="store_true", help="add a commit to a repository that already holds files")
    parser.add_argument(
        "--revision", default="main", help="branch to upload to, which must exist; default: %(default)s"
    )
    parser.add_argument("--commit_message", default="Upload model", help="message of the commit; default: %(default)s")
    parser.add_argument("--token", help="access token for the Hub; default: the one from `hf auth login` or HF_TOKEN")
    parser.add_argument(
        "--trust_remote_code",
        default=False,
        help="let the test run modeling code that this package did not write; default: false",
        **FLAG,
    )
    add_import(parser)
    add_card_options(parser)


def publish(args: Namespace) -> None:
    from .hub import publish as module

    names = ("private", "update", "revision", "commit_message", "token", "trust_remote_code", "dtype")
    options = {name: getattr(args, name) for name in names}
    try:
        commit = module.publish(
            args.run_folder, card_values(args), args.task, args.output_dir, args.dry_run, **options
        )
    except KeyboardInterrupt:
        print("Interrupted: the repository has all files of the new commit, or none of them.", file=sys.stderr)
        sys.exit(130)
    print(f"Uploaded: {commit.commit_url}" if commit else "Nothing was uploaded (--dry_run).")


def add_card(commands: Any) -> None:
    parser = add_command(commands, "card", "print the model card of a training run", card)
    parser.add_argument(
        "run_folder", metavar="RUN", help="output folder of a training run, or a record of one (.json)"
    )
    parser.add_argument("--repo_id", help="name of the repository, NAME or OWNER/NAME; default: the record's")
    parser.add_argument("--record", help="also write the record to this new file")
    add_card_options(parser)


def card(args: Namespace) -> None:
    from .hub.model_card import model_card, run_record

    if args.record:
        check_new_file("--record", args.record)
    is_record = args.run_folder.endswith(".json")
    if args.task and is_record:
        raise ValueError(f"{args.run_folder} is a record and already states its task: leave out --task {args.task}.")
    with reading(args.run_folder):
        record = read_json(args.run_folder) if is_record else run_record(args.run_folder, args.task)
    if isinstance(values := record.get("card", {}), dict):
        record["card"] = values | card_values(args)
        if "repo_id" not in record["card"]:
            raise ValueError("The card needs the repository's name: give --repo_id NAME or OWNER/NAME.")
    content = model_card(record).content
    if args.record:
        text = json.dumps(record, indent=1, ensure_ascii=False)
        Path(args.record).write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(content + "\n")


# Metrics


def add_metric(
    metrics: Any, name: str, summary: str, run: Callable[[Namespace], None], needs_models: bool = False
) -> ArgumentParser:
    parser = add_command(metrics, name, summary, run, needs_models)
    parser.add_argument("--json", action="store_true", help="print one JSON object with unrounded numbers")
    return parser


def add_text_options(parser: ArgumentParser) -> None:
    parser.add_argument("--hypotheses", required=True, help="file of hypotheses, one per line, UTF-8 (.gz accepted)")
    parser.add_argument(
        "--references",
        required=True,
        nargs="+",
        help="one or more files of references, line by line as the hypotheses",
    )


def read_texts(args: Namespace) -> tuple[list[str], list[list[str]]]:
    """The lines of the hypotheses, and for each one its references, a line from each file."""
    predictions, *references = read_aligned_lines([args.hypotheses, *args.references])
    return predictions, [list(lines) for lines in zip(*references)]


def check_new_file(option: str, path: str | Path) -> None:
    """Raises an error unless a file can be written there without replacing another one."""
    if not Path(path).parent.is_dir():
        raise FileNotFoundError(f"{option} {path}: there is no folder {Path(path).parent}.")
    if Path(path).exists():
        raise FileExistsError(f"{option} {path} exists: choose another one, or remove it.")


def print_scores(scores: Mapping[str, Any], as_json: bool) -> None:
    """Prints a line for each score, with four decimals, or one JSON object."""
    if as_json:
        print(json.dumps(scores, ensure_ascii=False, indent=2))
        return
    for name, value in scores.items():
        print(f"{name} = {format_value(value)}")


def format_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, list):
        return " / ".join(map(format_value, value))
    return str(value)


def add_bleu(metrics: Any) -> None:
    summary = "BLEU by sacreBLEU; for tokenized text also tokenized BLEU (multi-bleu.perl) and compound-split BLEU"
    parser = add_metric(metrics, "bleu", summary, bleu)
    add_text_options(parser)
    add_bleu_options(parser)
    parser.add_argument(
        "--tokenized",
        **FLAG,
        help="also print tokenized and compound-split BLEU; without --moses_language, the text is taken as already "
        "tokenized; default: true with --moses_language or if nine in ten punctuation marks are separate tokens",
    )


def add_bleu_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--tokenize",
        default=BLEU_DEFAULTS["tokenize"],
        help="sacreBLEU's tokenizer, such as 13a, intl, zh or none; default: %(default)s",
    )
    parser.add_argument("--lowercase", action="store_true", help="ignore case")
    parser.add_argument(
        "--moses_language",
        help="language code, such as de, for Moses' tokenizer, which splits plain text for tokenized and "
        "compound-split BLEU; default: none, for text that is already tokenized",
    )


def bleu(args: Namespace) -> None:
    from .metrics.bleu import CONVENTIONS, bleu, is_tokenized

    predictions, references = read_texts(args)
    tokenized = args.tokenized
    if tokenized is None:
        tokenized = bool(args.moses_language) or is_tokenized([*predictions, *chain.from_iterable(references)])
    conventions = CONVENTIONS if tokenized else CONVENTIONS[:1]
    options = (args.tokenize, args.lowercase, args.moses_language, conventions)
    print_scores(bleu(predictions, references, *options), args.json)


def add_rouge(metrics: Any) -> None:
    parser = add_metric(metrics, "rouge", "ROUGE-1, ROUGE-2 and ROUGE-L (F1) of summaries, one per line", rouge)
    add_text_options(parser)
    parser.add_argument(
        "--sentences",
        default="period",
        choices=SENTENCE_ENDS,
        help="where sentences end: at each '. ', or only at the end of the line (newline); default: %(default)s",
    )
    parser.add_argument("--no_stemmer", action="store_true", help="compare words as they are, without stemming")


def rouge(args: Namespace) -> None:
    from .metrics.rouge import rouge

    predictions, references = read_texts(args)
    print_scores(rouge(predictions, references, args.sentences, not args.no_stemmer), args.json)


def add_m2(metrics: Any) -> None:
    parser = add_metric(metrics, "m2", "M2 score (MaxMatch) of corrections, computed like the official scorer", m2)
    parser.add_argument(
        "--hypotheses",
        required=True,
        help="file of corrected, tokenized sentences, one per line, UTF-8 (.gz accepted)",
    )
    parser.add_argument("--references", required=True, help="M2 file of the same sentences, UTF-8 (.gz accepted)")
    parser.add_argument("--beta", type=float, default=0.5, help="weight of recall in F_beta; default: %(default)s")
    add_m2_options(parser)


def add_m2_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--max_unchanged_words",
        type=int,
        default=M2_DEFAULTS["max_unchanged_words"],
        help="maximum number of unchanged words within an edit; default: %(default)s",
    )
    parser.add_argument(
        "--ignore_whitespace_casing", action="store_true", help="ignore edits that change only white space or case"
    )


def m2(args: Namespace) -> None:
    from .metrics.m2 import m2_score, read_m2

    references, predictions = read_m2(args.references), read_lines(args.hypotheses)
    if len(predictions) != len(references):
        raise ValueError(
            f"{args.hypotheses} has {len(predictions)} lines, but {args.references} has {len(references)} sentences."
        )
    scores = m2_score(predictions, references, args.beta, args.max_unchanged_words, args.ignore_whitespace_casing)
    if args.json:
        print_scores(scores, True)
    else:
        print(f"Precision   : {scores['precision']:.4f}")
        print(f"Recall      : {scores['recall']:.4f}")
        print(f"{f'F_{args.beta}':12}: {scores[f'f{args.beta:g}']:.4f}")


def add_gleu(metrics: Any) -> None:
    parser = add_metric(metrics, "gleu", "GLEU for grammatical error correction, as used for JFLEG", gleu)
    add_text_options(parser)
    parser.add_argument(
        "--sources", required=True, help="file of the uncorrected sentences, one per line, UTF-8 (.gz accepted)"
    )
    parser.add_argument(
        "--iterations",
        type=int,
        default=500,
        help="number of random draws of a reference for each sentence; default: %(default)s",
    )


def gleu(args: Namespace) -> None:
    from .metrics.gleu import gleu

    predictions, sources, *references = read_aligned_lines([args.hypotheses, args.sources, *args.references])
    print_scores(gleu(predictions, list(zip(*references)), sources, args.iterations), args.json)


def add_errant(metrics: Any) -> None:
    summary = "ERRANT scores of an M2 file (made by `ode-transformer annotate`), with a table of error types"
    parser = add_metric(metrics, "errant", summary, errant)
    parser.add_argument(
        "--hypotheses", required=True, help="M2 file of the system's corrections, UTF-8 (.gz accepted)"
    )
    parser.add_argument(
        "--references", required=True, help="M2 file of the reference corrections of the same sentences"
    )
    parser.add_argument("--beta", type=float, default=0.5, help="weight of recall in F_beta; default: %(default)s")
    parser.add_argument(
        "--criterion",
        default="cs",
        choices=ERRANT_CRITERIA,
        help="what a correct edit shares with a reference edit: tokens and correction (cs), these and the type (cse), "
        "the tokens (ds), or each token by itself (dt); default: %(default)s",
    )
    parser.add_argument(
        "--types",
        default="all",
        choices=ERRANT_TYPES,
        help="how finely to split error types: R (operation), NOUN (main) or R:NOUN (all); default: %(default)s",
    )


def errant(args: Namespace) -> None:
    from .metrics.errant import errant_score, format_table
    from .metrics.m2 import read_m2

    files = read_m2(args.hypotheses), read_m2(args.references)
    scores = errant_score(*files, args.beta, args.criterion, args.types)
    if args.json:
        print_scores(scores, True)
    else:
        print(format_table(scores))


def add_annotate(commands: Any) -> None:
    summary = "make an M2 file from a text and its corrections with ERRANT"
    parser = add_command(commands, "annotate", summary, annotate, needs_models=False)
    parser.add_argument(
        "--sources", required=True, help="file of tokenized sentences, one per line, UTF-8 (.gz accepted)"
    )
    parser.add_argument(
        "--corrections",
        required=True,
        nargs="+",
        help="the corrected sentences, line by line: a file for each annotator, or the output of a system",
    )
    parser.add_argument("--output", required=True, help="M2 file to write (.gz accepted); it must not exist")
    parser.add_argument(
        "--spacy_model", default="en_core_web_sm", help="name of the spaCy model; default: %(default)s"
    )


def annotate(args: Namespace) -> None:
    from .metrics.errant import annotate, load_annotator
    from .metrics.m2 import write_m2

    check_new_file("--output", args.output)
    sources, *corrections = read_aligned_lines([args.sources, *args.corrections])
    write_m2(args.output, annotate(sources, list(zip(*corrections)), load_annotator(args.spacy_model)))


def add_perplexity(metrics: Any) -> None:
    parser = add_metric(
        metrics, "perplexity", "word perplexity and bits per byte of a causal language model", perplexity, True
    )
    parser.add_argument("--model", required=True, help="folder or Hub name of the model and its tokenizer")
    parser.add_argument("--texts", required=True, help="file of sentences, one per line, UTF-8 (.gz accepted)")
    parser.add_argument(
        "--block_size",
        type=int,
        default=0,
        help="tokens per block of running text, or 0 to score each line by itself; default: %(default)s",
    )
    parser.add_argument("--batch_size", type=int, default=8, help="blocks per forward pass; default: %(default)s")
    parser.add_argument(
        "--nll_file",
        type=Path,
        help="new file for the negative log-likelihood of each line in nats, for score bootstrap --metric perplexity",
    )
    add_import(parser)


def perplexity(args: Namespace) -> None:
    from .metrics.perplexity import load_model, score_lines, sum_lines

    if args.nll_file:
        check_new_file("--nll_file", args.nll_file)
    of_lines = score_lines(*load_model(args.model), read_lines(args.texts), args.block_size, args.batch_size)
    if args.nll_file:
        with (gzip.open if args.nll_file.suffix == ".gz" else open)(args.nll_file, "wt", encoding="utf-8") as file:
            file.writelines(f"{nll}\n" for nll in of_lines["nll"].tolist())
    print_scores(sum_lines(of_lines), args.json)


def add_bootstrap(metrics: Any) -> None:
    parser = add_metric(metrics, "bootstrap", "paired bootstrap resampling between two systems", bootstrap)
    parser.add_argument(
        "--metric",
        default="bleu",
        choices=BOOTSTRAP_METRICS,
        help="score to compare: bleu is sacreBLEU, m2 is F0.5, and perplexity takes files of `score perplexity "
        "--nll_file` as outputs and the text as references; default: %(default)s",
    )
    for name in ("--system_a", "--system_b"):
        parser.add_argument(
            name,
            required=True,
            nargs="+",
            help="file of the system's outputs, one per line, UTF-8 (.gz accepted), or one such file per seed",
        )
    parser.add_argument(
        "--references",
        required=True,
        nargs="+",
        help="one or more files of references, line by line as the outputs; for m2, one M2 file",
    )
    parser.add_argument("--num_samples", type=int, default=1000, help="number of resamples; default: %(default)s")
    parser.add_argument("--seed", type=int, default=12345, help="seed of the resamples; default: %(default)s")
    parser.add_argument(
        "--sentences_only",
        action="store_true",
        help="leave the differences between seeds out; by default they count if both systems have several files",
    )
    add_bleu_options(parser)
    add_m2_options(parser)


def bootstrap(args: Namespace) -> None:
    from .metrics.bootstrap import METRICS, compare

    outputs = read_aligned_lines([*args.system_a, *args.system_b])
    system_a, system_b = outputs[: len(args.system_a)], outputs[len(args.system_a) :]
    references: Sequence = METRICS[args.metric].read_references(args.references)
    if len(references) != len(system_a[0]):
        raise ValueError(
            f"{args.system_a[0]} has {len(system_a[0])} lines, but {args.references[0]} has {len(references)} "
            "sentences: they must match line by line."
        )
    defaults = BLEU_DEFAULTS | M2_DEFAULTS
    given = {name: value for name, default in defaults.items() if (value := getattr(args, name)) != default}
    scores = compare(
        system_a, system_b, references, args.metric, args.num_samples, args.seed, args.sentences_only, **given
    )
    print_scores(scores, args.json)
