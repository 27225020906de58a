# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Makes a complete Hub repository from a training run, tests it without this package, and uploads it.

    ode-transformer publish OUTPUT_DIR --repo_id me/model --language en de --dry_run
    ode-transformer publish OUTPUT_DIR --repo_id me/model --language en de --private

The repository holds the weights (safetensors), the code, the configuration, the tokenizer or tokenizers, the
generation configuration and the model card. The configuration names the code for every Auto class and pipeline.
Before the upload, a process that cannot import this package opens the repository with `trust_remote_code=True`. It
must give the same token ids, logits and text or label. The upload is one commit: all or nothing.
"""

import json
import os
import subprocess
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path

import torch
import transformers
from huggingface_hub import CommitInfo, HfApi
from huggingface_hub.utils import validate_repo_id
from safetensors.torch import save_file
from transformers import AutoTokenizer
from transformers.utils import CONFIG_NAME

from ..depth_ode_transformer import DepthConfig
from ..generation_ode_transformer import position_limit
from ..model_folders import open_model
from ..pipeline_ode_transformer import CUSTOM_PIPELINES, add_pipeline, save_pipeline_code
from ..text_files import check_empty_folder, read_json
from ..texts_ode_transformer import TARGET_TOKENIZER, without_truncation
from .model_card import CLASSIFIER, TASKS, model_card, run_record


# Files in the top folder that opening a repository reads. An update deletes those that it does not replace.
LOADED_FILES = (
    *("*.safetensors", "*.safetensors.index.json", "adapter_config.json"),
    *("*tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt"),
)
SAMPLE, SECOND_SAMPLE = "Two dogs are running through the snow.", "Animals are outdoors."


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
        OSError: there is no model with weights in safetensors, or no tokenizer.
        ValueError: the model is not one of this package's, or has classes of a user's file; the task is not known; or
            `folder` is not empty.
    """
    output_dir, folder = Path(output_dir), Path(folder)
    check_empty_folder(folder)
    config = output_dir / CONFIG_NAME
    if own := config.is_file() and read_json(config).get("own_schemes"):
        raise ValueError(
            f"{output_dir} has {', '.join(own)} of {', '.join(sorted({*own.values()}))}, a file without which nobody "
            "opens it: upload it with model.push_to_hub, and let its card say what to import."
        )
    record = run_record(output_dir, task) | {"card": card}
    auto_class = getattr(transformers, TASKS[record["task"]].auto_class)
    model, tokenizer = open_model(auto_class, output_dir, dtype=dtype), AutoTokenizer.from_pretrained(output_dir)
    if record["task"] in CUSTOM_PIPELINES:
        add_pipeline(model.config, record["task"])
    model.save_pretrained(folder)
    if isinstance(model.config, DepthConfig):
        save_pipeline_code(model.config, folder)
    without_truncation(tokenizer).save_pretrained(folder)
    if (output_dir / TARGET_TOKENIZER).is_dir():
        target_tokenizer = AutoTokenizer.from_pretrained(output_dir / TARGET_TOKENIZER)
        without_truncation(target_tokenizer).save_pretrained(folder / TARGET_TOKENIZER)
    (folder / "README.md").write_text(model_card(record).content + "\n", encoding="utf-8")
    return record


# Run by a process that cannot import the package. Its arguments: the repository's folder, and the files of expected
# results and of tensors (inputs, and the output).
CHECK = """
import json, sys
from pathlib import Path
sys.modules["modeling_ode_transformer"] = None
import torch, transformers
from safetensors.torch import load_file
repository, expected = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
tensors = load_file(sys.argv[3])
model = getattr(transformers, expected["auto_class"]).from_pretrained(repository, trust_remote_code=True).eval()
if not type(model).__module__.startswith("transformers_modules."):
    raise AssertionError(f"{type(model)} is not the repository's code")
for name, folder in expected["tokenizers"].items():
    tokenizer = transformers.AutoTokenizer.from_pretrained(repository / folder, trust_remote_code=True)
    if tokenizer(*expected["texts"])["input_ids"] != expected["input_ids"][name]:
        raise AssertionError(f"the {name} tokenizer gives other ids")
with torch.no_grad():
    output = model(**{name: tensors[name] for name in expected["inputs"]})[0]
torch.testing.assert_close(output, tensors["output"], msg=lambda text: f"the model gives other numbers: {text}")
if expected["output"] is not None:
    pipeline = transformers.pipeline(expected["task"], model=str(repository), trust_remote_code=True, device="cpu")
    (output,) = pipeline(expected["pipeline_input"], truncation=True, **expected["generation"])
    if output[expected["output_key"]] != expected["output"]:
        raise AssertionError(f"the pipeline gives {output}, not {expected['output']!r}")
"""


def check_repository(folder: str | Path, output_dir: str | Path, task: str, dtype: str = "auto") -> None:
    """Opens a repository in a process without this package and without network, and compares it with the run's model.

    It compares the ids of every tokenizer, the model's output, and the text or label from the task's pipeline, if
    there is one.

    Args:
        folder: The repository.
        output_dir: The folder of the run.
        task: One of `TASKS`.
        dtype: Of the repository's weights, as in `prepare_repository`.

    Raises:
        ValueError: the repository does not load, or its results differ.
    """
    folder, output_dir = Path(folder).resolve(), Path(output_dir)
    auto_class = TASKS[task].auto_class
    model = open_model(getattr(transformers, auto_class), output_dir, dtype=dtype)
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
    with torch.no_grad():
        tensors = inputs | {"output": model(**inputs)[0].contiguous()}
        if auto_class == CLASSIFIER:
            pipeline_input = [{"text": SAMPLE, "text_pair": SECOND_SAMPLE} if is_pair else SAMPLE]
            output = model.config.id2label[int(tensors["output"].argmax())]
        elif TASKS[task].output_key:
            generation = {"max_new_tokens": 8, "do_sample": False, "num_return_sequences": 1}
            ids = model.generate(inputs["input_ids"], **generation)[0]
            output = loaded.get("target", loaded["source"]).decode(ids, skip_special_tokens=True).strip()
    expected = {
        "task": task,
        "auto_class": auto_class,
        "texts": texts,
        "pipeline_input": pipeline_input,
        "tokenizers": tokenizers,
        "input_ids": {name: tokenizer(*texts)["input_ids"] for name, tokenizer in loaded.items()},
        "inputs": list(inputs),
        "generation": generation,
        "output_key": TASKS[task].output_key,
        "output": output,
    }
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary).resolve()
        files = [work / "expected.json", work / "tensors.safetensors"]
        files[0].write_text(json.dumps(expected), encoding="utf-8")
        save_file(tensors, files[1])
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(work / "modules")}
        result = subprocess.run(
            [sys.executable, "-c", CHECK, folder, *files],
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
        )
    if result.returncode:
        raise ValueError(
            f"The repository does not work without this package, so nothing was uploaded:\n{result.stderr[-3000:]}"
        )


def upload_repository(folder: str | Path, repo_id: str, private: bool = False, update: bool = False) -> CommitInfo:
    """Uploads a folder as one commit to a repository of the Hub, which is created if necessary.

    Args:
        folder: The folder to upload.
        repo_id: NAME or OWNER/NAME.
        private: Whether only its owner may see a new repository. Otherwise the owner's settings on the Hub decide:
            public, unless an organization makes new repositories private.
        update: Whether the repository may hold files already. The commit deletes those that opening it would read and
            that are not in `folder`; other files are kept or replaced.

    Raises:
        ValueError: the repository holds files already, or is not private.
        OSError: the Hub refuses the upload; the repository is then unchanged, or new and empty.
    """
    api = HfApi()
    # None leaves it to the owner: an organization may make new repositories private.
    repo_id = api.create_repo(repo_id, private=private or None, exist_ok=True).repo_id
    repository = api.model_info(repo_id)
    held = [file.rfilename for file in repository.siblings if file.rfilename != ".gitattributes"]
    if held and not update:
        raise ValueError(
            f"{repo_id} already holds {len(held)} files: give --update to add a commit to them, or choose another "
            "--repo_id."
        )
    if private and not repository.private:
        raise ValueError(f"{repo_id} is public: make it private in its settings, or leave out --private.")
    return api.upload_folder(
        repo_id=repo_id,
        folder_path=folder,
        parent_commit=repository.sha,
        delete_patterns=[name for name in held if is_loaded(name)],
    )


def is_loaded(name: str) -> bool:
    """Whether opening a repository reads the file."""
    folder, _, file = name.rpartition("/")
    return folder == TARGET_TOKENIZER or (not folder and any(fnmatch(file, pattern) for pattern in LOADED_FILES))


def publish(
    output_dir: str | Path,
    card: dict,
    task: str | None = None,
    folder: str | Path | None = None,
    dry_run: bool = False,
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
        dtype: As in `prepare_repository`.
        upload_options: Options of `upload_repository`.

    Raises:
        ValueError, OSError: as these.
    """
    validate_repo_id(card["repo_id"])
    if not dry_run:  # without a login, this is an error before all the work; the card names the owner
        owner = HfApi().whoami()["name"]
        card = card | {"repo_id": card["repo_id"] if "/" in card["repo_id"] else f"{owner}/{card['repo_id']}"}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(folder or Path(temporary) / "repository")
        record = prepare_repository(output_dir, folder, card, task, dtype)
        check_repository(folder, output_dir, record["task"], dtype)
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            print(f"{path.stat().st_size:>14,}  {path.relative_to(folder)}")
        print("It loads without this package and computes the same.")
        return None if dry_run else upload_repository(folder, card["repo_id"], **upload_options)
