# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""What the tests share: tiny models, the table of tolerances, and no network."""

import atexit
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path


os.environ["HF_HUB_OFFLINE"] = "1"
# What tests prepare goes with their process, which shares it with those that it starts.
os.environ["HF_DATASETS_CACHE"] = tempfile.mkdtemp(prefix="datasets_cache_")

import datasets
import evaluate
import pytest
import torch
import transformers
from packaging.version import Version
from transformers import PreTrainedModel

from modeling_ode_transformer import (
    OdeTransformerConfig,
    OdeTransformerDecoderConfig,
    OdeTransformerForConditionalGeneration,
)
from modeling_ode_transformer.integration_ode_transformer import SCHEMES, ButcherTableau, resolve_scheme


# It waits for seconds after some readings, which is for processes that end.
datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0
atexit.register(shutil.rmtree, os.environ["HF_DATASETS_CACHE"], ignore_errors=True)

# The tests call these by their names since transformers 5.23.
if not hasattr(PreTrainedModel, "activation_checkpointing_enable"):
    for name in ("gradient_checkpointing_enable", "gradient_checkpointing_disable", "is_gradient_checkpointing"):
        setattr(PreTrainedModel, name.replace("gradient", "activation"), getattr(PreTrainedModel, name))

# Absolute tolerances of values of order 1, by dtype.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 5e-6, torch.float16: 1e-2, torch.bfloat16: 8e-2}

# The names of schemes by kind.
TABLEAUS = [name for name, scheme in SCHEMES.items() if isinstance(scheme, ButcherTableau)]
CORRECTORS = [name for name, scheme in SCHEMES.items() if isinstance(scheme, dict)]
MULTISTEPS = [name for name in SCHEMES if name not in (*TABLEAUS, *CORRECTORS)]

TINY = {"vocab_size": 61, "d_model": 32, "max_position_embeddings": 40}
TINY |= {"encoder_layers": 3, "encoder_attention_heads": 4, "encoder_ffn_dim": 48}
TINY |= {"decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 40}
WITHOUT_DROPOUT = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
# Marked `slow`: what starts processes, compiles or trains, and what repeats the core's tests on relatives and on
# converted models. Folders and files, the longest first: they run first, so that no process ends with a long file.
SLOW = (
    *("test_compiled_search", "training/test_torch_compile", "test_ecosystem", "test_depth_architectures"),
    *("training/test_recipes", "hub/test_publish", "training/test_resumption", "test_app", "training/test_trainer"),
    *("inference/test_generate", "test_multilingual", "training", "test_from_residual", "test_hub", "test_benchmarks"),
    *("conversion/test_residual", "test_recurrence_models", "test_recurrence_generation", "test_recurrence"),
    *("test_pipeline", "test_cli", "test_queue", "csa_ode", "conversion/test_fairseq_command", "test_collect_runs"),
    *("test_tensor_parallel", "test_plot_training", "test_own_schemes"),
)
# Tests that need a newer transformers than the oldest supported one, by version: what older ones lack or do wrong.
NEEDS_TRANSFORMERS = {
    "5.23": {
        "test_hidden_states_of_a_repeated_stack_are_counted_from_the_end": "negative indices",
        "test_other_tools_take_a_trained_folder_as_shown": "exports to ONNX",
        "test_tokenizers_and_a_greedy_configuration_are_beside_the_graphs": "exports to ONNX",
    },
}
# Long for their number of tests; they run before the others that are not slow.
LONG = ("test_pages", "test_beam_search", "modeling", "inference")
SLOW_NAMES = ("compile", "export", "saved_code", "flops", "trains", "transformers_search", "without_the_package")
EXAMPLES = Path(__file__).parent.parent / "examples"
SOLVERS = ("euler", "rk2", "midpoint", "ralston", "rk3", "rk4", "rk4_38")


def pytest_collection_modifyitems(items):
    def place(item) -> int:
        path = item.path.relative_to(Path(__file__).parent).with_suffix("").as_posix()
        early = enumerate((*SLOW, *LONG))
        return next((i for i, each in early if path == each or path.startswith(f"{each}/")), len(SLOW) + len(LONG))

    for item in items:
        if place(item) < len(SLOW) or any(name in item.originalname for name in SLOW_NAMES):
            item.add_marker("slow")
        for version, reasons in NEEDS_TRANSFORMERS.items():
            reason = reasons.get(item.name) or reasons.get(item.originalname)
            if reason and Version(transformers.__version__) < Version(version):
                item.add_marker(pytest.mark.skip(f"needs transformers {version}: {reason}"))
    items.sort(key=place)


def leave_to_stay():
    """What is there stays: full collections of garbage, as at the start of each training, need not go through it."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish():
    leave_to_stay()
    # Young objects are many in a training: by default they would be looked through at every few operators.
    gc.set_threshold(50_000)


def pytest_runtest_teardown(item, nextitem):
    """After each file, because compilers and exporters import and keep as much as all other tests."""
    if nextitem is not None and nextitem.path != item.path:
        leave_to_stay()


def tiny_config(
    coefficients: str | None = None, config_class: type[OdeTransformerDecoderConfig] = OdeTransformerConfig, **kwargs
) -> OdeTransformerDecoderConfig:
    """A tiny model's configuration. `coefficients` are those of every stack of several stages; None: a gate for two
    stages of a Runge-Kutta scheme, else the scheme's own. That of a language model leaves out what is an encoder's."""
    fields = {**TINY, **kwargs}
    if config_class is OdeTransformerDecoderConfig:
        fields = {name: value for name, value in fields.items() if not name.startswith("encoder_")}
    defaults = {"encoder": "rk2", "decoder": "euler"}
    for stack, default in ((stack, defaults[stack]) for stack in config_class.stacks):
        tableau = resolve_scheme(fields.get(f"{stack}_solver", default)).tableau
        own = "gate" if tableau.num_stages == 2 and tableau.is_runge_kutta else "fixed"
        if tableau.num_stages > 1:
            fields.setdefault(f"{stack}_coefficients", coefficients or own)
    return config_class(**fields)


def build(model_class=OdeTransformerForConditionalGeneration, **fields):
    """A tiny model, every parameter of which is off its default."""
    torch.manual_seed(0)
    return randomize(model_class(tiny_config(config_class=model_class.config_class, **fields)))


def randomize(model: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Moves every parameter, norms and coefficients included, off its default: none can be left out unnoticed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype))
    return model.eval()


def ids_of(tokenizer) -> dict[str, int]:
    """The fields of an encoder-decoder's configuration with the ids of a tokenizer's special tokens."""
    ids = {"bos_token_id": tokenizer.bos_token_id, "pad_token_id": tokenizer.pad_token_id}
    return ids | dict.fromkeys(("eos_token_id", "decoder_start_token_id"), tokenizer.eos_token_id)


def assert_close(actual: torch.Tensor, expected: torch.Tensor, scale: float = 1.0):
    """Compares with the tolerance of the dtype, times `scale` for values of another order than 1."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=scale * TOLERANCES[expected.dtype])


def files_of(folder: Path) -> dict[str, bytes | None]:
    """The bytes of all files below a folder, None for folders, by their paths in it."""
    paths = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}


# What Python tells its audit hooks of the operations that change files.
FILE_OPERATIONS = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir"}


def killed_at_each_operation(call: Callable[[], object], folder: Path) -> Iterator[int]:
    """Kills `call`, in a process of its own, just before its first operation on files, then before its second one, and
    so on until it comes to its end. Yields after each kill; then puts `folder` back as it was at the beginning."""
    original = folder.with_name(f"{folder.name}_original")
    shutil.copytree(folder, original, copy_function=shutil.copy2)
    for number in range(1, 1000):
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)
            left = number

            def count(event, args):
                nonlocal left
                left -= event in FILE_OPERATIONS
                if left == 0:
                    os._exit(9)

            sys.addaudithook(count)
            try:
                call()
            finally:
                os._exit(0 if sys.exception() is None else 1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, 9), "the call failed"
        if status == 0:
            assert number > 1
            return
        yield number
        shutil.rmtree(folder)
        shutil.copytree(original, folder)
    raise AssertionError("the call does not come to its end")


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    """Three right-padded sources of 9, 7 and 4 tokens, and decoder inputs of 6."""
    generator = torch.Generator().manual_seed(1)
    input_ids = torch.randint(4, 61, (3, 9), generator=generator)
    attention_mask = torch.arange(9) < torch.tensor([[9], [7], [4]])
    decoder_input_ids = torch.randint(4, 61, (3, 6), generator=generator)
    decoder_input_ids[:, 0] = 2
    source = {"input_ids": input_ids.masked_fill(~attention_mask, 1), "attention_mask": attention_mask.long()}
    return source | {"decoder_input_ids": decoder_input_ids}


@pytest.fixture
def full_batch(batch) -> dict[str, torch.Tensor]:
    """The batch without padding."""
    ids = torch.randint(4, 61, (3, 9), generator=torch.Generator().manual_seed(2))
    return {**batch, "input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.fixture
def source() -> dict[str, torch.Tensor]:
    """Six sources of 9 tokens, every other one padded on the right."""
    ids = torch.randint(9, 60, (6, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[::2, 6:] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 1), "attention_mask": mask}


@pytest.fixture(scope="session")
def evaluate_modules(tmp_path_factory):
    """A folder for what `evaluate` copies; one for the session, as Python keeps looking where it found the first. It
    comes before the folder in the cache of the Hub, which transformers adds and which may have such modules, too."""
    with pytest.MonkeyPatch.context() as patch:
        folder = str(tmp_path_factory.mktemp("evaluate"))
        patch.setattr(evaluate.config, "HF_MODULES_CACHE", folder)
        patch.syspath_prepend(folder)
        yield
