# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Whether models compute what they did at an older commit: numbers, gradients and generated tokens, side by side.

    python -m tests.compare_commits ab40ceb
    python -m tests.compare_commits ab40ceb --only "^recurrence" --new another/checkout

The older code makes the models of `compare_cases`, moves every parameter off its default and saves them. Then one
process of each code opens them with the Auto classes and records the same things. The model is compared as it is
("plain"), also in float64, and after `optimize_for_cpu` ("cpu"), also in training and with packed and 8-bit weights.

Differences are relative to the largest entry of a tensor, or to `FLOOR` of the largest of its kind if that is more. In
float64 they may be 1e-12, in float32 1e-6, or four times what the older code differs by from itself in float64, where
that is more: both codes round, in the gradients of keys' biases nothing else is left. The exit status is 1 if one is
more, if a token differs (but for ties: other outputs of the same score), if a search fails with one code only, or if
the names of parameters differ in another way than `RENAMES` says.
"""

import argparse
import io
import json
import math
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
import zlib
from collections import Counter
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file, save_file


ROOT = Path(__file__).resolve().parent.parent
# What parameters are called now: a pattern of older names and what takes its place, each with its reason beside it.
RENAMES: tuple[tuple[str, str], ...] = ()
LIMIT, LIMIT_FLOAT64, TIE, FLOOR = 1e-6, 1e-12, 1e-6, 1e-3
VARIANTS = ("plain", "cpu")


# What a process of either code does. It imports the package as PYTHONPATH says, and nothing else of this repository.


class Recorder(dict):
    """Tensors by "kind/name"."""

    def add(self, kind: str, values: dict):
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                self[f"{kind}/{name}"] = value.detach().clone().contiguous()
            elif isinstance(value, tuple):
                self.add(kind, {f"{name}.{i}": each for i, each in enumerate(value)})


def checksum(name: str) -> int:
    return zlib.crc32(name.encode()) % 2**20


def make(name: str, case: dict, folder: Path) -> dict[str, str]:
    """Saves a model of random numbers; returns its fields."""
    import transformers

    import modeling_ode_transformer as package

    torch.manual_seed(checksum(name))
    config_class = getattr(package, case["config_class"])
    if unknown := case["fields"].keys() - {*dir(config_class)}:
        raise ValueError(f"there are no fields {', '.join(sorted(unknown))}")
    model = getattr(transformers, case["auto_class"]).from_config(config_class.from_dict(case["fields"]))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
            # Outputs that depend on their source, repeat no token for ever, and end soon or late:
            if re.search(r"(decoder|model)\.layer_norm\.weight$", key):
                parameter.mul_(4 * torch.randn_like(parameter))
            if re.search(r"(q|k|v|out)_proj\.weight$", key):
                parameter *= 1.5
            if re.search(r"(shared|embed_tokens|lm_head)\.weight$", key) and case["config_class"] != "CsaOdeConfig":
                parameter *= 0.4
                parameter[model.config.eos_token_id] *= 2
    for key, value in case["generation"].items():
        setattr(model.generation_config, key, value)
    model.save_pretrained(folder)
    names = [
        name
        for each in config_class.mro()
        for name in vars(each).get("__annotations__", ())
        if each.__module__.startswith(package.__name__)
    ]
    return {f"{case['config_class']}.{field}": str(getattr(model.config, field, None)) for field in names}


def make_inputs(model, seed: int, sources: int = 4) -> dict[str, torch.Tensor]:
    """Right-padded sources of several lengths, and labels."""
    config, generator = model.config, torch.Generator().manual_seed(seed)

    def draw(size, length, padding):
        lengths = torch.randint(3, length + 1, (sources, 1), generator=generator)
        lengths[0], lengths[-1] = length, min(length, 2 + seed % 4)
        is_token = torch.arange(length) < lengths
        return torch.randint(8, size, (sources, length), generator=generator).where(is_token, padding), is_token

    ids, mask = draw(config.vocab_size, 9, config.pad_token_id)
    inputs = {"input_ids": ids, "attention_mask": mask.long()}
    if config.model_type == "csa_ode":
        labels = torch.arange(sources) % 3
        if config.num_sentences == 2:
            inputs["token_type_ids"] = (torch.arange(9) >= 1 + torch.arange(sources).remainder(2)[:, None]).long()
        return inputs | {"labels": labels.float() if config.num_labels == 1 else labels}
    if not config.is_encoder_decoder:
        return inputs | {"labels": ids.where(mask, -100)}
    return inputs | {"labels": draw(config.get_text_config(decoder=True).vocab_size, 7, -100)[0]}


def record_gradients(model, inputs: dict, parameters: dict, recorder: Recorder, kind: str, gradient: str, **options):
    """Records the outputs, if they have a `kind`, and the gradient of each parameter."""
    if not hasattr(model, "lm_head") and not hasattr(model, "classifier"):  # a base model has no loss
        inputs = {key: value for key, value in inputs.items() if key != "labels"}
        if model.config.model_type != "csa_ode":
            inputs["decoder_input_ids"] = inputs["input_ids"][:, :5]
    torch.manual_seed(11)
    outputs = model(**inputs, **options)
    loss = outputs.loss if "loss" in outputs else outputs.last_hidden_state.pow(3).mean()
    if kind:
        recorder.add(kind, {"loss": loss, **outputs})
    for parameter in parameters.values():
        parameter.grad = None
    loss.backward()
    recorder.add(gradient, {name: parameter.grad for name, parameter in parameters.items()})


def decode_in_steps(model, inputs: dict) -> torch.Tensor:
    """The logits of a given target from a cache: first of two tokens, then one by one."""
    mask, past, steps = inputs["attention_mask"], None, []
    if model.config.is_encoder_decoder:
        target, name = model.prepare_decoder_input_ids_from_labels(inputs["labels"]), "decoder_input_ids"
        others = {"encoder_outputs": model.get_encoder()(input_ids=inputs["input_ids"], attention_mask=mask)}
    else:
        target, name, others = inputs["input_ids"], "input_ids", {}
    for start, end in ((0, 2), *((i, i + 1) for i in range(2, target.shape[1]))):
        step = {name: target[:, start:end], "attention_mask": mask if others else mask[:, :end]}
        outputs = model(**step, **others, past_key_values=past, use_cache=True)
        past, steps = outputs.past_key_values, [*steps, outputs.logits]
    return torch.cat(steps, dim=1)


def likelihoods(model, inputs: dict, sequences: torch.Tensor, start: int, length_penalty: float) -> torch.Tensor:
    """Scores of outputs, which tell ties: the log-probability from `start` on, by length ** length_penalty."""
    if model.config.is_encoder_decoder:
        repeats = len(sequences) // len(inputs["input_ids"])
        sources = {key: value.repeat_interleave(repeats, dim=0) for key, value in inputs.items()}
        logits = model(**sources, decoder_input_ids=sequences[:, :-1]).logits[:, start - 1 :]
    else:
        logits = model(sequences[:, :-1]).logits[:, start - 1 :]
    tokens = sequences[:, start:]
    is_end = torch.isin(tokens, torch.tensor(model.config.eos_token_id))
    counts = (is_end.cumsum(1) - is_end.long() == 0).double()
    chosen = logits.double().log_softmax(-1).gather(2, tokens.unsqueeze(2).clamp(max=logits.shape[-1] - 1))
    return (chosen.squeeze(2) * counts).sum(1) / counts.sum(1) ** length_penalty


def search(model, name: str, options: dict, seed: int, recorder: Recorder):
    """Generates for sources of its own, and records tokens and scores."""
    from modeling_ode_transformer.texts_ode_transformer import generate_with_scores

    own = {key: value for key, value in options.items() if key.startswith("_")}
    options = {key: value for key, value in options.items() if key not in own}
    if not {"_as_saved", "max_len_a", "max_len_b"} & {*own, *options}:
        options.setdefault("max_new_tokens", 9)
    config, inputs = model.config, make_inputs(model, seed, own.get("_sources", 4))
    inputs = {key: value for key, value in inputs.items() if key not in ("labels", *own.get("_without", ()))}
    if not config.is_encoder_decoder:  # prompts, padded on the left
        inputs = {key: value.flip(1)[:, 2:] for key, value in inputs.items()}
    prompts, start = {}, 1 if config.is_encoder_decoder else inputs["input_ids"].shape[1]
    if "_prompt" in own:
        start = 4
        ids = torch.arange(16).view(4, 4) + 20
        ids[0, 0] = ids[1:, 1] = config.decoder_start_token_id
        ids[1:, 0] = config.pad_token_id
        prompts = {"decoder_input_ids": ids, "decoder_attention_mask": (ids != config.pad_token_id).long()}
    torch.manual_seed(seed)
    if "_scored" in own:
        sequences, scores = generate_with_scores(model, inputs, **options)
        recorder.add("scores", {name: scores})
    else:
        sequences = model.generate(**inputs, **prompts, **options)
    if options.get("return_dict_in_generate"):
        recorder.add("scores", {f"{name} {key}": sequences[key] for key in ("sequences_scores", "scores")})
        recorder.add("tokens", {f"{name} beam_indices": sequences.beam_indices})
        sequences = sequences.sequences
    recorder.add("tokens", {name: sequences})
    if not options.get("do_sample"):
        length_penalty = options.get("length_penalty", model.generation_config.length_penalty or 1.0)
        recorder.add("likelihood", {name: likelihoods(model, inputs, sequences, start, length_penalty)})


def record(name: str, case: dict, folder: Path, variant: str) -> tuple[Recorder, dict]:
    """What a variant of the model in `folder` computes."""
    import transformers

    from modeling_ode_transformer.inference.cpu import optimize_for_cpu

    def load(**options):
        return getattr(transformers, case["auto_class"]).from_pretrained(folder, **case["options"], **options)

    seed, recorder, errors = checksum(name), Recorder(), {}
    model, report = load(output_loading_info=True)
    parameters, is_csa = dict(model.named_parameters()), model.config.model_type == "csa_ode"
    if variant == "cpu" and not is_csa:
        optimize_for_cpu(model)
    inputs, has_head = make_inputs(model, seed), hasattr(model, "lm_head")
    everything = {"output_hidden_states": True}
    if is_csa or case["options"]["attn_implementation"] == "eager":
        everything["output_attentions"] = True
    record_gradients(model, inputs, parameters, recorder, "eval", "gradient", **everything)
    with torch.no_grad():
        if has_head:
            ids, others = inputs["input_ids"], {key: inputs[key] for key in ("attention_mask", "labels")}
            embeddings = model.get_input_embeddings()(ids)
            recorder.add("eval", {"without mask": model(input_ids=ids, labels=inputs["labels"]).logits})
            recorder.add("eval", {"sum": model(**inputs, num_items_in_batch=7).loss})
            recorder.add("eval", {"embedded": model(inputs_embeds=embeddings, **others).logits})
            recorder.add("cached", {"logits": decode_in_steps(model, inputs)})
            for number, (each, options) in enumerate(case["searches"].items(), 1):
                try:
                    search(model, each, options, seed + number, recorder)
                except Exception as error:
                    errors[each] = f"{type(error).__name__}: {error}"
        if has_head and variant == "cpu":
            for kind in ("packed", "int8"):
                packed = optimize_for_cpu(load(), weights=kind)
                recorder.add(kind, {"logits": packed(**inputs).logits})
    if variant == "cpu":
        record_gradients(model.train(), inputs, parameters, recorder, "train", "train_gradient")
        if not is_csa:  # recomputed for the gradient
            # The older name is that of transformers before 5.23.
            name = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
            getattr(model, f"{name}_checkpointing_enable")()
            record_gradients(model, inputs, parameters, recorder, "", "blocks_gradient")
    if variant == "plain":
        model = load().double()
        record_gradients(model, inputs, dict(model.named_parameters()), recorder, "eval64", "gradient64", **everything)
    shapes = {key: list(parameter.shape) for key, parameter in parameters.items()}
    loaded = {key: sorted(map(str, report[key])) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    return recorder, {"shapes": shapes, "errors": errors, "loaded": loaded, "pad": model.config.pad_token_id}


def work(role: str, code: str, folder: str):
    """One process, with the folder of its code: it makes the models, or records what they compute."""
    # An editable installation would lend this code the modules that it lacks.
    sys.meta_path[:] = [
        finder for finder in sys.meta_path if not getattr(finder, "__module__", "").startswith("__editable__")
    ]

    from transformers.utils import logging

    import modeling_ode_transformer as package

    assert Path(package.__file__).is_relative_to(code), package.__file__
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    folder = Path(folder)
    cases = json.loads((folder / "cases.json").read_text())
    if role == "make":
        values, refused = set(), {}
        for name, case in cases.items():
            try:
                values.update(make(name, case, folder / name).items())
            except (ValueError, StrictDataclassError) as error:  # newer than this code
                refused[name] = str(error).splitlines()[-1].strip()
        seen = Counter(field for field, _ in values)
        (folder / "cases.json").write_text(json.dumps({name: cases[name] for name in cases if name not in refused}))
        print(*(f"The older code has no model {name!r}: {error}" for name, error in refused.items()), sep="\n")
        print("Fields with one value in all of these models:", ", ".join(f for f in seen if seen[f] == 1) or "none")
        return
    for name, variant in ((name, variant) for name in cases for variant in VARIANTS):
        output = folder / role / variant
        output.mkdir(parents=True, exist_ok=True)
        try:
            recorder, facts = record(name, cases[name], folder / name, variant)
        except Exception:
            recorder, facts = {}, {"crash": traceback.format_exc(limit=-3)}
        save_file(recorder, output / f"{name}.safetensors")
        (output / f"{name}.json").write_text(json.dumps(facts))
    modules = [module for name, module in sys.modules.items() if name.startswith(package.__name__)]
    assert all(Path(module.__file__).is_relative_to(code) for module in modules), modules


def renamed(name: str) -> str:
    for pattern, replacement in RENAMES:
        name = re.sub(pattern, replacement, name)
    return name


def largest(tensor: torch.Tensor) -> float:
    finite = tensor[tensor.isfinite()]
    return finite.abs().max().item() if len(finite) else 0.0


def difference(old: torch.Tensor, new: torch.Tensor) -> float:
    """The largest difference; infinity if shapes differ, or entries that are infinite or no numbers."""
    if old.shape != new.shape or old.dtype != new.dtype:
        return math.inf
    finite = old.isfinite()
    if not torch.equal(finite, new.isfinite()):
        return math.inf
    if not torch.equal(old[~finite].nan_to_num(0.5), new[~finite].nan_to_num(0.5)):
        return math.inf
    return largest((old.double() - new.double())[finite])


def compare_tokens(old: dict, new: dict, name: str, pad: int) -> str:
    """ "same", "tie" or "other"."""
    codes = (old, new)
    if torch.equal(*(each[f"tokens/{name}"] for each in codes)):
        return "same"
    scores = [each.get(f"likelihood/{name}") for each in codes]
    if scores[0] is None or scores[1] is None or scores[0].shape != scores[1].shape:
        return "other"
    texts = [[" ".join(map(str, row)) for row in each[f"tokens/{name}"].tolist()] for each in codes]
    texts = [[re.sub(rf"( {pad})+$", "", text) for text in each] for each in texts]
    is_close = (scores[0] - scores[1]).abs() <= TIE * scores[0].abs().clamp(min=1)
    changed = [close for left, right, close in zip(*texts, is_close.tolist()) if left != right]
    return "tie" if changed and all(changed) else "other"


def compare_names(facts: list[dict]) -> list[str]:
    old = {renamed(key): shape for key, shape in facts[0]["shapes"].items()}
    new = facts[1]["shapes"]
    wrong = [f"parameter {key}: {old.get(key)} -> {new.get(key)}" for key in old | new if old.get(key) != new.get(key)]
    return wrong + [f"{key}: {', '.join(values)}" for key, values in facts[1]["loaded"].items() if values]


def compare(name: str, folder: Path, variant: str) -> tuple[Counter, list[str]]:
    """The largest difference of each kind and the number of searches and ties; and what is wrong."""
    paths = [folder / code / variant / name for code in ("old", "new")]
    facts = [json.loads(Path(f"{path}.json").read_text()) for path in paths]
    if crashes := [
        f"{path.parent.parent.name}: {each['crash']}" for path, each in zip(paths, facts) if "crash" in each
    ]:
        return Counter(), crashes
    old, new = (load_file(f"{path}.safetensors") for path in paths)
    found, wrong, scales, errors = Counter(), compare_names(facts), Counter(), [each["errors"] for each in facts]
    for each in errors[0] | errors[1]:
        messages = [every.get(each, "no error") for every in errors]
        if len({message.split(":")[0] for message in messages}) > 1:
            wrong.append(f"{each}: {' -> '.join(messages)}")
    for key, value in old.items():
        scales[key.split("/")[0]] = max(scales[key.split("/")[0]], largest(value))
    rounding = {"eval": LIMIT, "gradient": LIMIT}  # four times the older code's own, where it is more
    for key, value in old.items():
        kind, rest = key.split("/", 1)
        if (exact := old.get(f"{kind}64/{rest}")) is not None:
            scale = max(largest(exact), FLOOR * scales[kind]) or 1.0
            rounding[kind] = max(rounding[kind], 4 * difference(exact, value.to(exact.dtype)) / scale)
    for key, value in old.items():
        kind, rest = key.split("/", 1)
        other = f"{kind}/{renamed(rest)}" if "gradient" in kind else key
        if rest in errors[1] and kind in ("tokens", "scores", "likelihood"):
            continue
        if other not in new:
            wrong.append(f"{other} is missing")
        elif kind == "tokens":
            verdict = compare_tokens(old, new, rest, facts[0]["pad"])
            found["searches"] += 1
            found["ties"] += verdict == "tie"
            wrong += [f"{key} differ"] if verdict == "other" else []
        elif kind != "likelihood" or torch.equal(old[f"tokens/{rest}"], new[f"tokens/{rest}"]):
            relative = difference(value, new[other]) / (max(largest(value), FLOOR * scales[kind]) or 1.0)
            found[kind] = max(found[kind], relative)
            limit = rounding["gradient" if "gradient" in kind else "eval"]
            if kind.endswith("64"):
                limit = LIMIT_FLOAT64 if value.dtype == torch.float64 else LIMIT  # losses are in float32
            wrong += [] if relative <= limit else [f"{key}: {relative:.1e}, and not at most {limit:.1e}"]
    return found, wrong


def in_words(found: Counter) -> str:
    kinds = [kind for kind in found if kind not in ("searches", "ties")]
    parts = [f"{kind} {found[kind]:.1e}" for kind in kinds if found[kind]]
    equal = [kind for kind in kinds if not found[kind]]
    parts += [f"bitwise: {', '.join(equal)}" if parts else "all bitwise"] if equal else []
    parts += [f"{found['searches']} searches"] if found["searches"] else []
    return "; ".join([*parts, f"{found['ties']} ties"] if found["ties"] else parts)


def start(role: str, code: Path, folder: Path) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(code), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONFAULTHANDLER": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-P", __file__, "--worker", role, str(code), str(folder)]
    with open(folder / f"{role}.log", "w") as log:
        return subprocess.Popen(command, env=environment, cwd=folder, stderr=log)


def wait(folder: Path, processes: dict[str, subprocess.Popen]):
    for role, process in processes.items():
        if status := process.wait():
            for other in processes.values():
                other.kill()
                other.wait()
            log = (folder / f"{role}.log").read_text()[-3000:]
            raise SystemExit(f"{log}\nThe process {role!r} ended with {status}.")


def main() -> int:
    from .compare_cases import CASES

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="the older commit")
    parser.add_argument("--only", default="", metavar="PATTERN", help="compare only the models of these names")
    parser.add_argument("--new", type=Path, default=ROOT, metavar="FOLDER", help="where the newer code is")
    options = parser.parse_args()
    cases = {name: case for name, case in CASES.items() if re.search(options.only, name)}
    began, failures, total, refused = time.time(), 0, Counter(), {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        codes = {"old": folder / "code", "new": options.new.resolve()}
        (folder / "cases.json").write_text(json.dumps(cases))
        archive = ["git", "-C", ROOT, "archive", options.commit, "modeling_ode_transformer"]
        archive = subprocess.run(archive, check=True, stdout=subprocess.PIPE).stdout
        tarfile.open(fileobj=io.BytesIO(archive)).extractall(codes["old"], filter="data")
        wait(folder, {"make": start("make", codes["old"], folder)})
        cases = json.loads((folder / "cases.json").read_text())
        wait(folder, {role: start(role, code, folder) for role, code in codes.items()})
        for name, variant in ((name, variant) for name in cases for variant in VARIANTS):
            found, wrong = compare(name, folder, variant)
            print(f"{name} ({variant}): {in_words(found)}", *wrong, sep="\n    WRONG ", flush=True)
            failures += bool(wrong)
            for kind, value in found.items():
                total[kind] = total[kind] + value if kind in ("searches", "ties") else max(total[kind], value)
        for path in (folder / "old").glob("*/*.json"):
            refused |= {
                f"{name}: {error}": 0 for name, error in json.loads(path.read_text()).get("errors", {}).items()
            }
    print(*(f"The older code refuses a search, {each}" for each in refused), sep="\n")
    print(f"{len(cases)} models in {time.time() - began:.0f} s; largest differences: {in_words(total)}.")
    print(f"{failures} comparisons FAILED." if failures else "Nothing has changed.")
    return 1 if failures else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(*sys.argv[2:])
    else:
        sys.exit(main())
