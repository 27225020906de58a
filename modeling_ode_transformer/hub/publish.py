# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Makes a complete Hub repository from a training run, tests it without this package, and uploads it.

    ode-transformer publish OUTPUT_DIR --repo_id me/model --language en de --dry_run
    ode-transformer publish OUTPUT_DIR --repo_id me/model --language en de --private

The repository holds the weights (safetensors), the code, the configuration, the tokenizer or tokenizers, the
generation configuration and the model card. The configuration names the code for every Auto class and pipeline.
Before the upload, a process that cannot import this package opens the repository with `trust_remote_code=True`. It
must give the same token ids, logits and text or label. It runs only code that this package wrote, unless
`--trust_remote_code` is given. The upload is one commit: all or nothing.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from glob import escape
from hashlib import sha256
from pathlib import Path

import torch
import transformers
from huggingface_hub import CommitInfo, HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError, HTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils import validate_repo_id
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel

from ..depth_ode_transformer import DepthConfig
from ..generation_ode_transformer import position_limit
from ..model_folders import open_model
from ..pipeline_ode_transformer import CUSTOM_PIPELINES, add_pipeline, save_pipeline_code
from ..text_files import reading
from ..texts_ode_transformer import TARGET_TOKENIZER, without_truncation
from .model_card import CLASSIFIER, TASKS, auto_classes, model_card, run_record


# The files of a new, empty repository.
EMPTY_REPOSITORY = {".gitattributes"}
# Files in the top folder that opening a repository reads. An update deletes those that it does not replace.
LOADED_FILES = (
    *("*.safetensors", "*.safetensors.index.json", "adapter_config.json"),
    *("*tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt"),
)
SAMPLE, SECOND_SAMPLE = "Two dogs are running through the snow.", "Animals are outdoors."


class PublishError(ValueError):
    """The run, its repository or the Hub has an error; nothing was uploaded."""


def prepare_repository(
    output_dir: str | Path, folder: str | Path, card: dict, task: str | None = None, dtype: str = "auto"
) -> dict:
    """Writes a complete repository of a trained model to a folder.

    Args:
        output_dir: Folder of a training run, or any folder with a saved model and its tokenizer.
        folder: The folder to write, new or empty.
        card: Values for `model_card`: repo_id, and any of `cli.CARD_VALUES`.
        task: One of `TASKS`; None: the task recorded by the run's script.
        dtype: Of the weights that are written, such as "bfloat16"; "auto": as saved.

    Returns:
        The record from which the card was made.

    Raises:
        PublishError: there is no model of this package in safetensors, or no tokenizer; `folder` is not empty.
        ValueError: the task is not known.
    """
    output_dir, folder = Path(output_dir), Path(folder)
    if not (output_dir / "config.json").is_file():
        raise PublishError(
            f"{output_dir} holds no saved model (no config.json): give the output folder of a training run."
        )
    if not any(output_dir.glob("*.safetensors")):
        raise PublishError(
            f"{output_dir} holds no safetensors weights. Open older files with from_pretrained, then save the model "
            "with save_pretrained."
        )
    if folder.is_dir() and any(folder.iterdir()):
        raise PublishError(f"{folder} is not empty: choose another folder.")
    with reading(output_dir):
        record = run_record(output_dir, task) | {"card": card}
    readme = model_card(record).content + "\n"
    try:
        model = load_model(output_dir, dtype)
    except SafetensorError as error:
        raise PublishError(
            f"{output_dir}: its weights are cut off or damaged ({error}): save the model again."
        ) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(output_dir)
    except (OSError, ValueError) as error:
        raise PublishError(f"{output_dir} holds no tokenizer: save it there with save_pretrained.") from error
    if record["task"] in CUSTOM_PIPELINES:
        add_pipeline(model.config, record["task"])
    model.save_pretrained(folder)
    if isinstance(model.config, DepthConfig):
        save_pipeline_code(model.config, folder)
    without_truncation(tokenizer).save_pretrained(folder)
    if (output_dir / TARGET_TOKENIZER).is_dir():
        target_tokenizer = AutoTokenizer.from_pretrained(output_dir / TARGET_TOKENIZER)
        without_truncation(target_tokenizer).save_pretrained(folder / TARGET_TOKENIZER)
    (folder / "README.md").write_text(readme, encoding="utf-8")
    return record


def load_model(folder: str | Path, dtype: str = "auto") -> PreTrainedModel:
    auto_class, *_ = auto_classes(AutoConfig.from_pretrained(folder))
    return open_model(getattr(transformers, auto_class), folder, dtype=dtype)


# The status of the check's process if it ended before code that the package did not write.
UNTRUSTED = 3
# Run by a process that cannot import the package. Its arguments: the repository's folder, and the files of expected
# results and of tensors (inputs, and outputs by Auto class).
CHECK = """
import json, os, sys
from hashlib import sha256
from pathlib import Path
sys.modules["modeling_ode_transformer"] = None
import torch, transformers
from safetensors.torch import load_file
repository, expected = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
tensors = load_file(sys.argv[3])
packages = (*filter(None, sys.path), *torch.__path__, *transformers.__path__)
def check_code(event, args):
    if event == "exec" and os.path.isfile(file := args[0].co_filename) and not file.startswith(packages):
        if sha256(Path(file).read_bytes()).hexdigest() not in expected["trusted"]:
            print(file, file=sys.stderr, flush=True)
            os._exit(expected["untrusted"])
if not expected["trusts_all"]:
    sys.addaudithook(check_code)
def load(name):
    loaded = getattr(transformers, name).from_pretrained(repository, trust_remote_code=True)
    if not type(loaded).__module__.startswith("transformers_modules."):
        raise AssertionError(f"{name} took {type(loaded)}, which is not the repository's code")
    return loaded
load("AutoConfig")
for name, folder in expected["tokenizers"].items():
    tokenizer = transformers.AutoTokenizer.from_pretrained(repository / folder, trust_remote_code=True)
    if tokenizer(*expected["texts"])["input_ids"] != expected["input_ids"][name]:
        raise AssertionError(f"the {name} tokenizer gives other ids")
for name, inputs in expected["models"].items():
    with torch.no_grad():
        output = load(name).eval()(**{key: tensors[key] for key in inputs})
    torch.testing.assert_close(output[0], tensors[name], msg=lambda text: f"{name} gives other numbers: {text}")
if expected["output"] is not None:
    pipeline = transformers.pipeline(expected["task"], model=str(repository), trust_remote_code=True, device="cpu")
    (output,) = pipeline(expected["pipeline_input"], truncation=True, **expected["generation"])
    if output[expected["output_key"]] != expected["output"]:
        raise AssertionError(f"the pipeline gives {output}, not {expected['output']!r}")
"""


def own_hashes() -> list[str]:
    """Hashes of the code that the package writes beside models: its modules, and empty packages."""
    modules = [path.read_bytes() for path in Path(__file__).parents[1].glob("*.py")]
    return [sha256(code).hexdigest() for code in (b"", *modules)]


def check_repository(
    folder: str | Path, output_dir: str | Path, task: str, trust_remote_code: bool = False, dtype: str = "auto"
) -> None:
    """Opens a repository in a process without this package and without network, and compares it with the run's model.

    It compares the ids of every tokenizer, the outputs of the Auto class with the model's head and of AutoModel, and
    the text or label from the task's pipeline, if there is one.

    Args:
        folder: The repository.
        output_dir: The folder of the run.
        task: One of `TASKS`.
        trust_remote_code: Whether the process may run code that this package did not write.
        dtype: Of the repository's weights, as in `prepare_repository`.

    Raises:
        PublishError: the repository does not load, its results differ, or it has such code.
    """
    folder, output_dir = Path(folder).resolve(), Path(output_dir)
    model = load_model(output_dir, dtype)
    # AutoModel opens the model without its head, which some classes do not have apart.
    models = dict(
        zip(auto_classes(model.config), [model, *([model.base_model] if model.base_model is not model else [])])
    )
    is_pair = getattr(model.config, "num_sentences", 1) == 2
    texts = [SAMPLE, SECOND_SAMPLE] if is_pair else [SAMPLE]
    tokenizers = {"source": ""}
    if (output_dir / TARGET_TOKENIZER).is_dir():
        tokenizers["target"] = TARGET_TOKENIZER
    loaded = {name: AutoTokenizer.from_pretrained(output_dir / path) for name, path in tokenizers.items()}
    limit = min(loaded["source"].model_max_length, position_limit(model.config) or 1024)
    source = loaded["source"](*texts, truncation=True, max_length=limit, return_tensors="pt")
    inputs = {name: source[name] for name in ("input_ids", *(["token_type_ids"] if is_pair else []))}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.tensor([[model.config.decoder_start_token_id, model.config.eos_token_id]])
    pipeline_input, generation, output = SAMPLE, {}, None
    read = {name: list(inputs) for name in models}
    if is_pair:
        read["AutoModel"].remove("token_type_ids")  # it encodes single texts
    with torch.no_grad():
        tensors = {name: models[name](**{key: inputs[key] for key in keys})[0] for name, keys in read.items()}
        if CLASSIFIER in models:
            pipeline_input = [{"text": SAMPLE, "text_pair": SECOND_SAMPLE} if is_pair else SAMPLE]
            output = model.config.id2label[int(tensors[CLASSIFIER].argmax())]
        elif TASKS[task].output_key:
            generation = {"max_new_tokens": 8, "do_sample": False, "num_return_sequences": 1}
            ids = model.generate(inputs["input_ids"], **generation)[0]
            output = loaded.get("target", loaded["source"]).decode(ids, skip_special_tokens=True).strip()
    expected = {
        "task": task,
        "texts": texts,
        "pipeline_input": pipeline_input,
        "tokenizers": tokenizers,
        "input_ids": {name: tokenizer(*texts)["input_ids"] for name, tokenizer in loaded.items()},
        "models": read,
        "generation": generation,
        "output_key": TASKS[task].output_key,
        "output": output,
        "trusted": own_hashes(),
        "trusts_all": trust_remote_code,
        "untrusted": UNTRUSTED,
    }
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary).resolve()
        files = [work / "expected.json", work / "tensors.safetensors"]
        files[0].write_text(json.dumps(expected), encoding="utf-8")
        save_file({name: value.contiguous() for name, value in (inputs | tensors).items()}, files[1])
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(work / "modules")}
        result = subprocess.run(
            [sys.executable, "-c", CHECK, folder, *files],
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
        )
    if result.returncode == UNTRUSTED:
        raise PublishError(
            f"{output_dir} names code, {Path(result.stderr.splitlines()[-1]).name}, which this package did not write: "
            "read it and, if you trust it, give --trust_remote_code."
        )
    if result.returncode:
        raise PublishError(
            f"The repository does not work without this package, so nothing was uploaded:\n{result.stderr[-3000:]}"
        )


def upload_repository(
    folder: str | Path,
    repo_id: str,
    private: bool = False,
    update: bool = False,
    revision: str = "main",
    commit_message: str = "Upload model",
    token: str | None = None,
) -> CommitInfo:
    """Uploads a folder as one commit to a repository of the Hub, which is created if necessary.

    Args:
        folder: The folder to upload.
        repo_id: NAME or OWNER/NAME.
        private: Whether only its owner may see a new repository. Otherwise the owner's settings on the Hub decide:
            public, unless an organization makes new repositories private.
        update: Whether the repository may hold files already. The commit deletes those that opening it would read and
            that are not in `folder`; other files are kept or replaced.
        revision: An existing branch.
        commit_message: Message of the commit.
        token: A token that can write; None: that of `hf auth login` or of HF_TOKEN.

    Raises:
        PublishError: there is no token, or it cannot write; the repository holds files already, is not private, or
            has no such branch; or the upload was interrupted. The repository is then unchanged, or new and empty. If
            only the answer was lost, the commit was made.
    """
    repo_id, api = full_repo_id(repo_id, token), HfApi(token=token)
    with errors_of_the_hub(repo_id):
        try:
            repository = api.model_info(repo_id, revision=revision)
        except RevisionNotFoundError as error:
            raise PublishError(
                f"{repo_id} has no branch {revision!r}: create it with `hf repos branch create {repo_id} {revision}`, "
                "or leave out --revision."
            ) from error
        except RepositoryNotFoundError as error:
            if error.response.status_code == 401:
                raise
            repository = None
        held = set()
        if repository is None:
            if revision != "main":
                raise PublishError(f"{repo_id} is new, so it has no branch {revision!r}: leave out --revision.")
            # None leaves it to the owner: an organization may make new repositories private.
            api.create_repo(repo_id, private=private or None)
        else:
            held = {file.rfilename for file in repository.siblings} - EMPTY_REPOSITORY
            if held and not update:
                raise PublishError(
                    f"{repo_id} already holds {len(held)} files: give --update to add a commit to them, or "
                    "choose another --repo_id."
                )
            if private and not repository.private:
                raise PublishError(f"{repo_id} is public: make it private in its settings, or leave out --private.")
        return api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            revision=revision,
            commit_message=commit_message,
            parent_commit=repository.sha if repository else None,
            delete_patterns=[escape(name) for name in held if is_loaded(name)] or None,
        )


def is_loaded(name: str) -> bool:
    """Whether opening a repository reads the file."""
    folder, _, file = name.rpartition("/")
    return folder == TARGET_TOKENIZER or (not folder and any(fnmatch(file, pattern) for pattern in LOADED_FILES))


def full_repo_id(repo_id: str, token: str | None = None) -> str:
    """Returns OWNER/NAME of a repository; a NAME alone belongs to the owner of the token.

    Raises:
        PublishError: there is no token, or the Hub does not know it, or cannot be reached.
    """
    validate_repo_id(repo_id)
    if not (token or get_token()):
        raise PublishError("There is no access token for the Hub: log in with `hf auth login`, or set HF_TOKEN.")
    if "/" in repo_id:
        return repo_id
    try:
        return f"{HfApi(token=token).whoami()['name']}/{repo_id}"
    except (HfHubHTTPError, HTTPError, OSError) as error:
        raise PublishError(
            f"{constants.ENDPOINT} does not say who owns the token, so the owner of {repo_id} is unknown ({error}): "
            "log in with `hf auth login`, or give OWNER/NAME."
        ) from error


@contextmanager
def errors_of_the_hub(repo_id: str) -> Iterator[None]:
    """Turns errors of the Hub into `PublishError`."""
    try:
        yield
    except PublishError:
        raise
    except (HTTPError, OSError, RuntimeError) as error:
        if getattr(getattr(error, "response", None), "status_code", None) in (401, 403):
            raise PublishError(
                f"The Hub does not let this token write to {repo_id} ({error}): log in with `hf auth login` as "
                "a user with access, with a token that can write."
            ) from error
        raise PublishError(
            f"The upload to {repo_id} on {constants.ENDPOINT} was interrupted ({error}). Either its files are "
            "unchanged, or all new files are there and only the answer was lost. Check the repository, then repeat "
            "the command, with another --output_dir if you gave one."
        ) from error


def publish(
    output_dir: str | Path,
    card: dict,
    task: str | None = None,
    folder: str | Path | None = None,
    dry_run: bool = False,
    trust_remote_code: bool = False,
    dtype: str = "auto",
    **upload_options,
) -> CommitInfo | None:
    """Runs `prepare_repository`, `check_repository` and, unless `dry_run`, `upload_repository`.

    Args:
        output_dir: Folder of a training run.
        card: Values for `model_card`: repo_id, and any of `cli.CARD_VALUES`.
        task: One of `TASKS`; None: the task recorded by the run's script.
        folder: A folder that keeps the repository; None: a temporary one.
        dry_run: Whether to skip the upload.
        trust_remote_code: As in `check_repository`.
        dtype: As in `prepare_repository`.
        upload_options: Options of `upload_repository`.

    Raises:
        PublishError, ValueError: as these.
    """
    if not dry_run:
        card = card | {"repo_id": full_repo_id(card["repo_id"], upload_options.get("token"))}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(folder or Path(temporary) / "repository")
        record = prepare_repository(output_dir, folder, card, task, dtype)
        check_repository(folder, output_dir, record["task"], trust_remote_code, dtype)
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            print(f"{path.stat().st_size:>14,}  {path.relative_to(folder)}")
        print("It loads without this package and computes the same.")
        if dry_run:
            return None
        return upload_repository(folder, card["repo_id"], **upload_options)
