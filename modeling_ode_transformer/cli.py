# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The command `ode-transformer`, also available as `python -m modeling_ode_transformer`.

    ode-transformer train translation --train pairs.tsv --validation dev.tsv --output_dir mine
    ode-transformer prepare translation --train pairs.tsv --output_dir data-bin
    ode-transformer average multi30k_en_de --last 5 --output_dir averaged
    ode-transformer score bleu --hypotheses output.de --references test.de
    ode-transformer --help

A subcommand is a function under its declaration, `@command`; it is called with its options. Only these functions
import torch, so help and errors in the arguments come at once.
"""

import json
import logging
import sys
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from shutil import copyfile
from typing import Any, NamedTuple

from .errors import one_line_errors
from .inference.arguments import GenerateArguments, ServeArguments
from .options import FLAG, add_options, declarations
from .text_files import check_empty_folder, read_aligned_lines, read_json, read_lines
from .training import TASKS, find_task
from .training.recipe_files import read_recipe, recipe_file, recipe_of


class Command(NamedTuple):
    """A subcommand.

    Attributes:
        run: The function, called with the options by name.
        summary: One line for `--help`.
        options: Functions that add an option each to a parser.
        needs_models: Whether the Auto classes must know the package's models.
    """

    run: Callable[..., None]
    summary: str
    options: Sequence[Callable[[ArgumentParser], Any]]
    needs_models: bool


# The subcommands by their words, such as "score bleu", in the order of `--help`.
COMMANDS: dict[str, Command] = {}
# What begins several subcommands: its summary, and what its help calls the second word.
GROUPS = {
    "train": ("train a model from scratch, with a recipe or from a checkpoint, and evaluate it", "TASK"),
    "prepare": ("clean and encode data once, to be reused by `train` with --prepared_dir FOLDER", "TASK"),
    "score": ("compute a metric used in the papers", "METRIC"),
}


def command(words: str, summary: str, *options: Callable, needs_models: bool = False) -> Callable:
    """Declares the function below it as a subcommand; the arguments are those of `Command`."""

    def declare(run: Callable[..., None]) -> Callable[..., None]:
        COMMANDS[words] = Command(run, summary, options, needs_models)
        return run

    return declare


def arg(name: str, help: str, **settings: Any) -> Callable[[ArgumentParser], Any]:
    """An option or a positional argument, with settings of `add_argument`. A default of text or numbers gives the type
    and is named in the help."""
    default = settings.get("default")
    if isinstance(default, (str, int, float)) and not isinstance(default, bool) and default != SUPPRESS:
        settings = {"type": type(default)} | settings
        help += "" if "default:" in help else "; default: %(default)s"
    return lambda parser: parser.add_argument(name, help=help, **settings)


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
    options = vars(parser.parse_args(argv))
    if recipe := options.get("recipe"):  # the command line comes after it, and wins
        given = sys.argv[1:] if argv is None else argv
        of_recipe = recipe_arguments(read_recipe(recipe, declarations(GenerateArguments).keys()))
        options = vars(parser.parse_args([*given[:2], *of_recipe, *given[2:]]))
    command = options.pop("_command")
    if command.needs_models:
        from . import registration  # noqa: F401, the Auto classes know the package's models from here on
    for path in options.pop("import_schemes", None) or []:
        from .own_schemes import import_schemes

        import_schemes(path)
    command.run(**options)


def recipe_arguments(recipe: dict[str, Any]) -> list[str]:
    """The values of a recipe as arguments of a command line."""
    arguments = []
    for name, value in recipe.items():
        values = value if isinstance(value, list) else [value]
        arguments += [f"--{name}", *(each if isinstance(each, str) else json.dumps(each) for each in values)]
    return arguments


def make_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="ode-transformer",
        description="Tools for ODE Transformers: train, generate, evaluate, convert and publish models.",
    )
    groups = {"": parser.add_subparsers(required=True, metavar="SUBCOMMAND")}

    def add(group: str, name: str, summary: str, **settings: Any) -> ArgumentParser:
        description = f"{summary[0].upper()}{summary[1:]}."
        return groups[group].add_parser(name, help=summary, description=description, **settings)

    for words, command in COMMANDS.items():
        group, _, name = words.rpartition(" ")
        if group not in groups:
            summary, metavar = GROUPS[group]
            groups[group] = add("", group, summary).add_subparsers(required=True, metavar=metavar)
        # No character begins an option of `train` and `prepare` here: all are the training's.
        settings = {"add_help": False, "prefix_chars": "\0"} if group in ("train", "prepare") else {}
        of_command = add(group, name, command.summary, **settings)
        of_command.set_defaults(_command=command)
        for add_option in command.options:
            add_option(of_command)
    return parser


IMPORT = arg(
    "--import",
    "Python file that defines the model's own coefficients and schemes; may be repeated",
    dest="import_schemes",
    metavar="FILE",
    action="append",
)
OUTPUT_DIR = arg("--output_dir", "folder to write; it must be empty or new", required=True, type=Path)

# Training

HELP_TEXTS = Path(__file__).parent / "training" / "help_texts"
# What `prepare` prepares, of the tasks of `train`.
PREPARED = ("translation", "summarization", "correction", "language-model")


PREPARE_HELP = """\
usage: ode-transformer prepare {name} --train FILE --validation FILE --output_dir FOLDER [OPTIONS]

Cleans and encodes data once and writes them to --output_dir. The options, including --recipe,
are listed by: ode-transformer train {name} --help. To use the prepared data, train with the
same options and give that folder as --prepared_dir.
"""


def on_task(action: str, name: str, arguments: list[str]) -> None:
    """`train` or `prepare`, for a task."""
    if not {"-h", "--help"}.isdisjoint(arguments):
        text = PREPARE_HELP.format(name=name)
        print(text if action == "prepare" else (HELP_TEXTS / f"{name}.txt").read_text(encoding="utf-8"), end="")
        return
    if (recipe := recipe_of(arguments)[0]) is not None:
        read_json(recipe_file(recipe))
    from .training.run import prepare, run, run_process

    task = find_task(name)
    run_process(lambda: (prepare if action == "prepare" else run)(task, arguments))


ARGUMENTS = arg("arguments", "options of the training", nargs="*")
for name, summary in TASKS.items():
    command(f"train {name}", summary, ARGUMENTS)(partial(on_task, "train", name))
for name in PREPARED:
    summary = f"data for `train {name}`, with its options (see train {name} --help); writes to --output_dir"
    command(f"prepare {name}", summary, ARGUMENTS)(partial(on_task, "prepare", name))


# Checkpoints


@command(
    "average",
    "average the weights of checkpoints into a model folder",
    arg("folders", "output folder of one training run, or several model folders", nargs="+", type=Path),
    arg("--last", "number of last checkpoints of the training run to average; default: 5", type=int),
    arg("--output_dir", "folder to write; default: averaged_last_N in the folder of the run", type=Path),
    arg("--overwrite", "delete an --output_dir that is not empty first", action="store_true"),
    IMPORT,
    needs_models=True,
)
def average(folders: list[Path], last: int | None, output_dir: Path | None, overwrite: bool) -> None:
    from .training.average import average_checkpoints, last_checkpoints

    checkpoints = folders
    if len(folders) == 1:
        last = 5 if last is None else last
        checkpoints = last_checkpoints(folders[0], last)
        output_dir = output_dir or folders[0] / f"averaged_last_{last}"
    elif last is not None:
        raise ValueError(f"--last {last} needs one training run, but {len(folders)} folders are given: leave it out.")
    elif output_dir is None:
        raise ValueError(f"{len(folders)} folders are given: add --output_dir.")
    average_checkpoints(checkpoints, output_dir, overwrite)
    print(f"{output_dir}: the mean of {', '.join(path.name for path in checkpoints)}")


@command(
    "convert-fairseq",
    "convert a checkpoint of the original code (fairseq 0.6.2) to a model folder",
    arg("checkpoint", "the file; `average` takes the mean of several converted ones", type=Path),
    arg("--source_dict", "fairseq's dictionary for the source", required=True, type=Path),
    arg("--target_dict", "fairseq's dictionary for the target", required=True, type=Path),
    OUTPUT_DIR,
    arg("--bpe_codes", "BPE codes of subword-nmt or fastBPE; default: none, for texts split into pieces", type=Path),
    arg("--target_bpe_codes", "BPE codes for the target; default: --bpe_codes", type=Path),
    arg("--trust_file", "unpickle everything, which can run any code: only for files you trust", action="store_true"),
    needs_models=True,
)
def convert_fairseq(**options: Any) -> None:
    from .conversion.fairseq import convert_fairseq_checkpoint

    convert_fairseq_checkpoint(**options)


@command(
    "convert-successor",
    "convert a language model of PCformer or IIET, as their code saved it, to a model folder",
    arg("folder", "has config.json and model.safetensors or pytorch_model.bin", type=Path),
    OUTPUT_DIR,
    arg(
        "--corrector_iterations",
        "corrections of a layer, a constant of their code; default: 3 for IIET, 1 for PCformer, as released",
        type=int,
    ),
    needs_models=True,
)
def convert_successor(folder: Path, output_dir: Path, corrector_iterations: int | None) -> None:
    from .depth.successors import convert_successor

    check_empty_folder(output_dir)
    convert_successor(folder, corrector_iterations).save_pretrained(output_dir)
    for path in chain(folder.glob("*token*"), folder.glob("vocab*"), folder.glob("merges.txt")):
        copyfile(path, output_dir / path.name)  # the tokenizer, where there is one


@command(
    "export-onnx",
    "export an encoder-decoder to ONNX, with its tokenizer and generation configuration",
    arg("name", "model folder or Hub name", metavar="MODEL"),
    OUTPUT_DIR,
    arg("--trust_remote_code", "run modeling code stored with the model; default: false", default=False, **FLAG),
    IMPORT,
    needs_models=True,
)
def export_onnx(**options: Any) -> None:
    from .conversion.onnx import export_onnx

    export_onnx(**options)


# Generation


@command(
    "generate",
    "translate, summarize or correct texts with an encoder-decoder, or with an ensemble of several",
    arg(
        "recipe",
        "JSON file with options by name; it must be the first argument, and the command line overrides it",
        nargs="?",
        metavar="RECIPE.json",
    ),
    partial(add_options, owner=GenerateArguments),
    IMPORT,
    needs_models=True,
)
def generate(recipe: str | None, **options: Any) -> None:
    from .inference.generate import run

    logging.basicConfig(format="%(levelname)s: %(message)s", stream=sys.stderr)
    run(GenerateArguments(**options))


@command(
    "serve",
    "serve an encoder-decoder, or an ensemble of several, over HTTP",
    arg(
        "model_name_or_path",
        "model folder or Hub name; with several, their probabilities are averaged (an ensemble)",
        metavar="MODEL",
        nargs="+",
    ),
    partial(add_options, owner=ServeArguments, without="model_name_or_path"),
    IMPORT,
    needs_models=True,
)
def serve(**options: Any) -> None:
    from .inference.serve import serve

    logging.basicConfig(format="%(levelname)s: %(message)s", stream=sys.stderr)
    serve(ServeArguments(**options))


# The Hub

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
CARD_OPTIONS = [
    arg("--task", "task of the model, such as translation; default: as recorded by its training run"),
    *(arg(f"--{name}", help, nargs="+" if name == "language" else None) for name, help in CARD_VALUES.items()),
]


def card_values(repo_id: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Takes the values of a record's `card` out of the options, and returns those that are given."""
    values = {"repo_id": repo_id} | {name: options.pop(name) for name in CARD_VALUES}
    return {name: value for name, value in values.items() if value is not None}


@command(
    "publish",
    "turn a training run into a Hub repository, test it without this package, and upload it",
    arg("run_folder", "output folder of a training run", metavar="RUN"),
    arg("--repo_id", "name of the repository, NAME or OWNER/NAME", required=True),
    arg(
        "--private",
        "make a new repository visible to its owner only; default: public, unless the owner's settings on the Hub "
        "make new repositories private",
        action="store_true",
    ),
    arg("--dry_run", "build and test the repository, but do not upload it", action="store_true"),
    arg("--output_dir", "also write the repository to this folder"),
    arg(
        "--dtype",
        "of the weights; bfloat16 and float16 take half the space of float32; default: as saved",
        choices=("float32", "bfloat16", "float16"),
        default="auto",
    ),
    arg("--update", "add a commit to a repository that already holds files", action="store_true"),
    *CARD_OPTIONS,
    needs_models=True,
)
def publish(
    run_folder: str, repo_id: str, task: str | None, output_dir: str | None, dry_run: bool, **options: Any
) -> None:
    from .hub.publish import publish

    commit = publish(run_folder, card_values(repo_id, options), task, output_dir, dry_run, **options)
    print(f"Uploaded: {commit.commit_url}" if commit else "Nothing was uploaded (--dry_run).")


@command(
    "card",
    "print the model card of a training run",
    arg("run_folder", "output folder of a training run, or a record of one (.json)", metavar="RUN"),
    arg("--repo_id", "name of the repository, NAME or OWNER/NAME; default: the record's"),
    arg("--record", "also write the record to this new file"),
    IMPORT,
    *CARD_OPTIONS,
    needs_models=True,
)
def card(run_folder: str, repo_id: str | None, record: str | None, task: str | None, **options: Any) -> None:
    from .hub.model_card import model_card, run_record

    if record:
        check_new_file("--record", record)
    values = read_json(run_folder) if run_folder.endswith(".json") else run_record(run_folder, task)
    values["card"] = values.get("card", {}) | card_values(repo_id, options)
    if "repo_id" not in values["card"]:
        raise ValueError("The card needs the repository's name: give --repo_id NAME or OWNER/NAME.")
    print(model_card(values).content)
    if record:
        Path(record).write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


# Metrics

SYSTEMS = arg(
    "--hypotheses",
    "file of hypotheses, one per line, UTF-8 (.gz accepted), or - for standard input; several systems give a table, "
    "with their differences from the first one by paired bootstrap",
    required=True,
    nargs="+",
)
HYPOTHESES = arg("--hypotheses", "file of hypotheses, one per line, UTF-8 (.gz accepted)", required=True)
REFERENCES = arg(
    "--references", "one or more files of references, line by line as the hypotheses", required=True, nargs="+"
)
BETA = arg("--beta", "weight of recall in F_beta", default=0.5)


def score(name: str, summary: str, *options: Callable, needs_models: bool = False) -> Callable:
    """Declares the function below it as `score NAME`. It returns scores by name, which are printed."""

    def declare(compute: Callable[..., Mapping[str, Any]]) -> Callable[..., Mapping[str, Any]]:
        def run(as_json: bool, **options: Any) -> None:
            scores = compute(**options)
            print(json.dumps(scores, ensure_ascii=False, indent=2) if as_json else as_text(scores))

        as_json = arg("--json", "print one JSON object with unrounded numbers", dest="as_json", action="store_true")
        command(f"score {name}", summary, as_json, *options, needs_models=needs_models)(run)
        return compute

    return declare


def as_text(scores: Mapping[str, Any]) -> str:
    """A line for each score, with four decimals; a table for several rows of scores."""
    lines = []
    for name, value in scores.items():
        if isinstance(value, dict):
            value = [{name: key} | row for key, row in value.items()]
        if isinstance(value, list) and all(isinstance(row, dict) for row in value):
            columns = list(dict.fromkeys(column for row in value for column in row))
            cells = [[format_value(row.get(column, "")) for column in columns] for row in value]
            lines += [f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *cells)]
        else:
            lines.append(f"{name} = {format_value(value)}")
    return "\n".join(lines)


def format_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, list):
        return " / ".join(map(format_value, value))
    return str(value)


def read_texts(systems: Sequence[str], references: Sequence[str]) -> tuple[list[list[str]], list[list[str]]]:
    """The lines of each system, and for each line its references, a line from each file."""
    columns = read_aligned_lines([*systems, *references])
    return columns[: len(systems)], [list(lines) for lines in zip(*columns[len(systems) :])]


def compare_files(metrics: Sequence[str], hypotheses: list[str], references: list[str], **options: Any) -> dict:
    """A table of several systems and their differences from the first one, and its signature, for each metric."""
    from .metrics.bootstrap import compare_all

    outputs, texts = read_texts(hypotheses, references)
    tables: dict[str, Any] = {}
    for metric in metrics:
        tables[metric], tables[f"{metric}_signature"] = compare_all(
            dict(zip(hypotheses, outputs)), texts, metric, **options
        )
    return tables


def check_new_file(option: str, path: str | Path) -> None:
    """Raises an error unless a file can be written there without replacing another one."""
    if not Path(path).parent.is_dir():
        raise FileNotFoundError(f"{option} {path}: there is no folder {Path(path).parent}.")
    if Path(path).exists():
        raise FileExistsError(f"{option} {path} exists: choose another one, or remove it.")


# Without defaults: only what is given is passed on, since not every metric of `score bootstrap` has these options.
BLEU_OPTIONS = [
    arg("--tokenize", "sacreBLEU's tokenizer, such as 13a, intl, zh or none; default: 13a", default=SUPPRESS),
    arg("--lowercase", "ignore case", action="store_true", default=SUPPRESS),
    arg(
        "--moses_language",
        "language code, such as de, for Moses' tokenizer, which splits plain text for tokenized and compound-split "
        "BLEU; default: none, for text that is already tokenized",
        default=SUPPRESS,
    ),
]


@score(
    "bleu",
    "BLEU by sacreBLEU; for tokenized text also tokenized BLEU (multi-bleu.perl) and compound-split BLEU",
    SYSTEMS,
    REFERENCES,
    *BLEU_OPTIONS,
    arg(
        "--tokenized",
        "also print tokenized and compound-split BLEU of text that is already tokenized, as --moses_language does of "
        "plain text",
        action="store_true",
    ),
)
def bleu(hypotheses: list[str], references: list[str], tokenized: bool, **options: Any) -> dict:
    from .metrics.bleu import CONVENTIONS, bleu
    from .metrics.bootstrap import BLEU

    number = 3 if tokenized or "moses_language" in options else 1
    if len(hypotheses) > 1:
        return compare_files(list(BLEU)[:number], hypotheses, references, **options)
    (predictions,), texts = read_texts(hypotheses, references)
    return bleu(predictions, texts, conventions=CONVENTIONS[:number], **options)


def corpus_score(metric: str, hypotheses: list[str], references: list[str]) -> dict:
    from .metrics.bleu import corpus_score

    if len(hypotheses) > 1:
        return compare_files([metric], hypotheses, references)
    (predictions,), texts = read_texts(hypotheses, references)
    return corpus_score(metric, predictions, texts)


for name, summary in (("chrf", "chrF by sacreBLEU"), ("ter", "translation edit rate (TER) by sacreBLEU")):
    score(name, summary, SYSTEMS, REFERENCES)(partial(corpus_score, name))


@score(
    "rouge",
    "ROUGE-1, ROUGE-2 and ROUGE-L (F1) of summaries, one per line",
    HYPOTHESES,
    REFERENCES,
    arg(
        "--sentences",
        "where sentences end: at each '. ' (period), or only at the end of the line (newline)",
        default="period",
        choices=("period", "newline"),
    ),
    arg("--no_stemmer", "compare words as they are, without stemming", action="store_true"),
)
def rouge(hypotheses: str, references: list[str], sentences: str, no_stemmer: bool) -> dict:
    from .metrics.rouge import rouge, script_problem

    (predictions,), texts = read_texts([hypotheses], references)
    if problem := script_problem(list(chain.from_iterable(texts))):
        raise ValueError(problem)
    return rouge(predictions, texts, sentences, not no_stemmer)


@score(
    "m2",
    "M2 score (MaxMatch) of corrections, computed like the official scorer",
    arg("--hypotheses", "file of corrected, tokenized sentences, one per line, UTF-8 (.gz accepted)", required=True),
    arg("--references", "M2 file of the same sentences, UTF-8 (.gz accepted)", required=True),
    BETA,
    arg("--max_unchanged_words", "maximum number of unchanged words within an edit", default=2),
)
def m2(hypotheses: str, references: str, **options: Any) -> dict:
    from .metrics.m2 import m2_score, read_m2

    return m2_score(read_lines(hypotheses), read_m2(references), **options)


@score(
    "gleu",
    "GLEU for grammatical error correction, as used for JFLEG",
    HYPOTHESES,
    REFERENCES,
    arg("--sources", "file of the uncorrected sentences, one per line, UTF-8 (.gz accepted)", required=True),
)
def gleu(hypotheses: str, references: list[str], sources: str) -> dict:
    from .metrics.gleu import gleu

    (predictions, texts), lists = read_texts([hypotheses, sources], references)
    return gleu(predictions, lists, texts)


@score(
    "errant",
    "ERRANT scores of an M2 file (made by `ode-transformer annotate`), with a table of error types",
    arg("--hypotheses", "M2 file of the system's corrections, UTF-8 (.gz accepted)", required=True),
    arg("--references", "M2 file of the reference corrections of the same sentences", required=True),
    BETA,
    arg(
        "--criterion",
        "what a correct edit shares with a reference edit: tokens and correction (cs), these and the type (cse), the "
        "tokens (ds), or each token by itself (dt)",
        default="cs",
        choices=("cs", "cse", "ds", "dt"),
    ),
    arg(
        "--types",
        "how finely to split error types: R (operation), NOUN (main) or R:NOUN (all)",
        default="all",
        choices=("operation", "main", "all"),
    ),
)
def errant(hypotheses: str, references: str, **options: Any) -> dict:
    from .metrics.errant import errant_score
    from .metrics.m2 import read_m2

    return errant_score(read_m2(hypotheses), read_m2(references), **options)


@score(
    "perplexity",
    "word perplexity and bits per byte of a causal language model",
    arg("--model", "folder or Hub name of the model and its tokenizer", required=True),
    arg("--texts", "file of sentences, one per line, UTF-8 (.gz accepted)", required=True),
    arg("--block_size", "tokens per block of running text, or 0 to score each line by itself", default=0),
    arg("--batch_size", "blocks per forward pass", default=8),
    arg(
        "--nll_file",
        "new file for the negative log-likelihood of each line in nats, for score bootstrap --metric perplexity",
        type=Path,
    ),
    IMPORT,
    needs_models=True,
)
def perplexity(model: str, texts: str, block_size: int, batch_size: int, nll_file: Path | None) -> dict:
    from .metrics.perplexity import load_model, score_lines, sum_lines

    if nll_file:
        check_new_file("--nll_file", nll_file)
    of_lines = score_lines(*load_model(model), read_lines(texts), block_size, batch_size)
    if nll_file:
        nll_file.write_text("".join(f"{nll}\n" for nll in of_lines["nll"].tolist()))
    return sum_lines(of_lines)


@command(
    "score likelihood",
    "log-probability of given outputs in nats, a line for each, by an encoder-decoder or a language model",
    arg("--model", "folder or Hub name of the model and its tokenizer", required=True),
    arg("--targets", "file of the outputs, one per line, UTF-8 (.gz accepted)", required=True),
    arg("--sources", "file of their sources, for an encoder-decoder"),
    arg(
        "--n_best",
        "the outputs are a list of `generate --num_return_sequences`: a line begins with the number of its source",
        action="store_true",
    ),
    arg("--tokens", "print JSON instead: the tokens of each output and their log-probabilities", action="store_true"),
    arg("--src_lang", "language of the sources, as named by a multilingual tokenizer; default: as saved with it"),
    arg("--tgt_lang", "language of the outputs, likewise"),
    arg("--batch_size", "outputs per forward pass", default=32),
    IMPORT,
    needs_models=True,
)
def likelihood(**options: Any) -> None:
    from .metrics.likelihood import score_files

    for line in score_files(**options):
        print(line)


SYSTEM = "file of the system's outputs, one per line, UTF-8 (.gz accepted), or one such file per seed"


@score(
    "bootstrap",
    "paired bootstrap resampling between two systems",
    arg(
        "--metric",
        "score to compare: bleu (sacreBLEU), tokenized_bleu, compound_split_bleu, chrf, ter, m2 (F0.5), or "
        "perplexity, which takes files of `score perplexity --nll_file` as outputs and the text as references",
        default="bleu",
        choices=("bleu", "tokenized_bleu", "compound_split_bleu", "chrf", "ter", "m2", "perplexity"),
        metavar="METRIC",
    ),
    arg("--system_a", SYSTEM, required=True, nargs="+"),
    arg("--system_b", SYSTEM, required=True, nargs="+"),
    arg(
        "--references",
        "one or more files of references, line by line as the outputs; for m2, one M2 file",
        required=True,
        nargs="+",
    ),
    arg("--num_samples", "number of resamples", default=1000),
    arg("--seed", "seed of the resamples", default=12345),
    *BLEU_OPTIONS,
)
def bootstrap(metric: str, system_a: list[str], system_b: list[str], references: list[str], **options: Any) -> dict:
    from .metrics.bootstrap import compare
    from .metrics.m2 import read_m2

    is_m2, number = metric == "m2", len(system_a)
    if is_m2 and len(references) > 1:
        raise ValueError(f"One M2 file holds all annotators, but {len(references)} files are given.")
    outputs, texts = read_texts([*system_a, *system_b], [] if is_m2 else references)
    texts = read_m2(references[0]) if is_m2 else texts
    return compare(outputs[:number], outputs[number:], texts, metric, **options)


@command(
    "annotate",
    "make an M2 file from a text and its corrections with ERRANT",
    arg("--sources", "file of tokenized sentences, one per line, UTF-8 (.gz accepted)", required=True),
    arg(
        "--corrections",
        "the corrected sentences, line by line: a file for each annotator, or the output of a system",
        required=True,
        nargs="+",
    ),
    arg("--output", "M2 file to write; it must not exist", required=True),
    arg("--spacy_model", "spaCy model (python -m spacy download NAME installs it)", default="en_core_web_sm"),
)
def annotate(sources: str, corrections: list[str], output: str, spacy_model: str) -> None:
    from .metrics.errant import annotate, load_annotator
    from .metrics.m2 import write_m2

    check_new_file("--output", output)
    (texts,), lists = read_texts([sources], corrections)
    write_m2(output, annotate(texts, lists, load_annotator(spacy_model)))
