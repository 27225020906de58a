# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""A web page to try an encoder-decoder: it translates, summarizes or corrects a text with beam search. It also shows
the decoder's attention and the weights of the stages in the encoder's steps (the gate g, eqs. 25-26 of the paper).

    python app.py --model_name_or_path FOLDER_OR_NAME

opens it at http://127.0.0.1:7860. Without --model_name_or_path, it is the model in models/tatoeba_en_de beside this
file, if there is one. The page needs torch, transformers, gradio and matplotlib, but no other file of the project, and
no network except to download a model. Without the package modeling_ode_transformer, give --trust_remote_code: an ODE
Transformer then brings its own code. In a Hugging Face Space (SDK Gradio), this file is `app.py`, and
`requirements.txt` has the lines torch, transformers and matplotlib. The Space's variables are MODEL_NAME and, to run
the code stored with the model, TRUST_REMOTE_CODE=1.
"""

import math
import os
import re
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import gradio as gr
import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.utils import cached_file


try:
    from modeling_ode_transformer.inference.cpu import optimize_for_cpu  # importing it registers the models
except ImportError:  # without the package: --trust_remote_code
    optimize_for_cpu = None


TARGET_TOKENIZER = "target_tokenizer"  # subfolder of the model's folder with a separate target tokenizer
MAX_TOKENS = 1024  # per text or output; fewer if the model has fewer positions
# The end of a sentence before white space. The package's pipelines also know those of Chinese and Japanese.
SENTENCE_END = re.compile(r"(?<=[.!?…。！？])\s+|(?<=[.!?…][\"'”»)\]])\s+")
MAX_BEAMS = 16
MAX_LENGTH_PENALTY = 3.0


@dataclass(frozen=True)
class Output:
    """An output of a search: its text, its score and its tokens. The score is the log-probability divided by
    `length ** length_penalty`. The tokens exclude the start token and include the end token; `length` counts both."""

    text: str
    score: float
    token_ids: list[int]


@dataclass(frozen=True)
class Explanation:
    """What the model did on the way from a source to an output.

    Args:
        source: the S pieces of the source.
        target: the T pieces of the output.
        attentions: weights of the cross-attention, (layers, heads, T, S); in a block with several stages, those of the
            first stage. Row t belongs to the step that predicts piece t.
        coefficients: weights of the stages in the encoder's steps, layer by layer: (steps, stages, S) if they depend
            on the token, else (steps, stages). Weights per channel are averaged. None: the encoder has no stage
            weights.
    """

    source: list[str]
    target: list[str]
    attentions: np.ndarray
    coefficients: np.ndarray | None


@contextmanager
def record_coefficients(encoder: torch.nn.Module) -> Iterator[list[np.ndarray]]:
    """Lists the stage weights of the encoder's steps while it processes one source: for each step, an array (stages,)
    or (stages, tokens)."""
    steps = []

    def record(module, args, weights):
        weights = [torch.as_tensor(weight).float() for weight in weights]  # (1, tokens, 1), (channels,) or ()
        weights = [weight[0, :, 0] if weight.ndim == 3 else weight.mean() for weight in weights]
        steps.append(torch.stack(weights).numpy(force=True))

    owners = (encoder, *getattr(encoder, "layers", ()))  # the stack or each layer has such a module
    modules = [module for owner in owners if (module := getattr(owner, "solver_coefficients", None)) is not None]
    hooks = [module.register_forward_hook(record) for module in modules]
    try:
        yield steps
    finally:
        for hook in hooks:
            hook.remove()


class TextModel:
    """An encoder-decoder with its tokenizers, from a folder or the Hub.

    Args:
        weights: as in the package's `optimize_for_cpu`: "keep", "packed" or "int8".

    Raises:
        ValueError: the model is a language model, or lacks the tokenizer for a separate target vocabulary; its weights
            cannot be packed here.
        OSError: the model does not exist, or its weights are not in safetensors format.
    """

    def __init__(self, name: str, trust_remote_code: bool = False, weights: str = "keep"):
        if weights != "keep" and (optimize_for_cpu is None or torch.cuda.is_available()):
            raise ValueError(f"--{weights} needs a CPU and the package modeling_ode_transformer: leave it out.")
        config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
        if not config.is_encoder_decoder:
            raise ValueError(f"{name} is a language model ({config.model_type}): give an encoder-decoder.")
        # Only eager attention returns its weights.
        self.model = AutoModelForSeq2SeqLM.from_pretrained(
            name, trust_remote_code=trust_remote_code, use_safetensors=True, attn_implementation="eager"
        )
        self.model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        if optimize_for_cpu is not None and not torch.cuda.is_available():
            optimize_for_cpu(self.model, weights)
        self.tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code)
        try:
            cached_file(name, f"{TARGET_TOKENIZER}/tokenizer_config.json")
        except OSError as error:
            # Like the package's `check_target_tokenizer`; this file runs without the package.
            is_shared = getattr(config, "share_encoder_decoder_embeddings", True)
            knows_both = getattr(self.tokenizer, "separate_vocabs", False)
            if getattr(config, "decoder_vocab_size", None) and not is_shared and not knows_both:
                raise ValueError(
                    f"{name} has its own vocabulary for the target, but no folder {TARGET_TOKENIZER}: save the "
                    "target's tokenizer there."
                ) from error
            self.target_tokenizer = self.tokenizer
        else:
            self.target_tokenizer = AutoTokenizer.from_pretrained(
                name, subfolder=TARGET_TOKENIZER, trust_remote_code=trust_remote_code
            )
        self.max_tokens = MAX_TOKENS
        if getattr(config, "position_embedding_type", "learned") in ("learned", "absolute"):
            self.max_tokens = min(MAX_TOKENS, getattr(config, "max_position_embeddings", MAX_TOKENS))

    def split(self, text: str) -> list[str]:
        """The sentences of a text, if it is longer than the longest training text or the model's limit; else the text
        itself."""
        longest = min(self.max_tokens, getattr(self.model.config, "trained_source_length", None) or self.max_tokens)
        is_long = len(self.tokenizer(text, verbose=False)["input_ids"]) > longest
        return SENTENCE_END.split(text.strip()) if is_long else [text]

    def encode(self, text: str) -> list[int]:
        """The tokens of a text; raises a ValueError if it is empty or too long."""
        if not text.strip():
            raise ValueError("There is no text: enter one first.")
        token_ids = self.tokenizer(text, verbose=False)["input_ids"]
        if len(token_ids) > self.max_tokens:
            raise ValueError(f"The text has {len(token_ids)} tokens, but the limit is {self.max_tokens}: shorten it.")
        return token_ids

    @torch.inference_mode()
    def search(
        self, source_ids: list[int], num_beams: int, number: int, length_penalty: float, max_new_tokens: int
    ) -> list[Output]:
        """The `number` best outputs of a beam search, the best first; raises a ValueError if there are fewer beams.
        Other options come from the model's generation configuration. Scores equal the package's `n_best`. They are
        computed in a separate pass, since this file runs without the package."""
        if number > num_beams:
            raise ValueError(
                f"{number} outputs need at least as many beams, not {num_beams}: choose more beams or fewer outputs."
            )
        inputs = self._inputs(source_ids)
        sequences = self.model.generate(
            **inputs,
            do_sample=False,
            num_beams=num_beams,
            num_return_sequences=number,
            length_penalty=length_penalty,
            max_new_tokens=max_new_tokens,
            max_length=None,
        )
        tokens = sequences[:, 1:]
        end = self.model.generation_config.eos_token_id
        ends = torch.isin(tokens, torch.tensor([] if end is None else end).to(tokens))
        counts = ends.cumsum(1) - ends.long() == 0  # after the end token there is only padding
        inputs = {name: value.expand(number, -1) for name, value in inputs.items()}
        logits = self.model(**inputs, decoder_input_ids=sequences[:, :-1], use_cache=False).logits
        log_probabilities = logits.float().log_softmax(-1).gather(2, tokens.unsqueeze(2)).squeeze(2)
        scores = log_probabilities.where(counts, 0).sum(1) / counts.sum(1) ** length_penalty
        texts = self.target_tokenizer.batch_decode(sequences, skip_special_tokens=True)
        return [
            Output(text.strip(), score, ids[count].tolist())
            for text, score, ids, count in zip(texts, scores.tolist(), tokens, counts, strict=True)
        ]

    @torch.inference_mode()
    def explain(self, source_ids: list[int], output: Output) -> Explanation:
        """Runs the model once on a source and one of its outputs, and records its attention and stage weights."""
        start = self.model.generation_config.decoder_start_token_id
        decoder_input_ids = torch.tensor([[start, *output.token_ids[:-1]]], device=self.model.device)
        with record_coefficients(self.model.get_encoder()) as coefficients:
            outputs = self.model(
                **self._inputs(source_ids),
                decoder_input_ids=decoder_input_ids,
                use_cache=False,
                output_attentions=True,
            )
        return Explanation(
            source=self.tokenizer.convert_ids_to_tokens(source_ids),
            target=self.target_tokenizer.convert_ids_to_tokens(output.token_ids),
            attentions=torch.cat(outputs.cross_attentions).float().numpy(force=True),
            coefficients=np.stack(coefficients) if coefficients else None,
        )

    def _inputs(self, source_ids: list[int]) -> dict[str, torch.Tensor]:
        input_ids = torch.tensor([source_ids], device=self.model.device)
        return {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}


def heatmaps(
    maps: dict[str, np.ndarray],
    rows: list[str],
    columns: list[str],
    limits: tuple[float | None, float | None],
    colors: str,
    with_numbers: bool = False,
) -> str:
    """Draws titled arrays (rows, columns), one below the other; returns an SVG image in HTML."""
    cell = 0.32 if with_numbers else 0.27  # inches
    width, height = max(len(columns), 4) * cell, max(len(rows), 2) * 0.27
    figure = Figure(figsize=(width, height * len(maps)))
    grid = figure.subplots(len(maps), squeeze=False, sharex=True)[:, 0]
    figure.subplots_adjust(0, 0, 1, 1, hspace=0.3)
    for axes, (title, values) in zip(grid, maps.items()):
        image = axes.imshow(values, aspect="auto", interpolation="none", cmap=colors, vmin=limits[0], vmax=limits[1])
        axes.set_title(title, loc="left", fontsize=9)
        # A piece may be "$".
        axes.set_yticks(range(len(rows)), rows, parse_math=False)
        axes.set_xticks(range(len(columns)), columns, rotation=90, parse_math=False)
        axes.tick_params(length=0, labelsize=9)
        axes.spines[:].set_visible(False)
        scale = axes.inset_axes((1 + 0.15 / width, 0, 0.12 / width, 1))
        figure.colorbar(image, cax=scale).outline.set_visible(False)
        scale.tick_params(labelsize=8)
        if with_numbers:
            for (row, column), value in np.ndenumerate(values):
                red, green, blue, _ = image.cmap(image.norm(value))
                color = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
                axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=color)
    # Text stays text in a font of the browser, so that it can be copied.
    with matplotlib.rc_context({"svg.fonttype": "none"}), StringIO() as file:
        figure.savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None})
        svg = file.getvalue()
    return f'<div style="overflow-x: auto">{svg[svg.index("<svg") :]}</div>'


def attention_map(explanation: Explanation, layer: int, head: int | None) -> str:
    """The cross-attention of a layer and a head, both counted from 0, as an image. None: the mean over the heads."""
    weights = explanation.attentions[layer]
    weights = weights.mean(0) if head is None else weights[head]
    name = "mean over the heads" if head is None else f"head {head + 1}"
    title = f"attention of layer {layer + 1}, {name}"
    return heatmaps({title: weights}, explanation.target, explanation.source, (0, None), "Blues")


def coefficient_map(explanation: Explanation, num_layers: int, kind: str) -> str:
    """The stage weights in the encoder's layers, as a text and an image. `kind` is the configuration's
    `encoder_coefficients`."""
    values = explanation.coefficients
    if values is None:
        return "Each block of this encoder has one stage, so there are no stage weights."
    steps = len(values) // num_layers
    rows = [f"layer {i // steps + 1}" + (f", step {i % steps + 1}" if steps > 1 else "") for i in range(len(values))]
    stages = [f"F{i + 1}" for i in range(values.shape[1])]
    if values.ndim == 2:
        text = f"A step adds the sum of its stages with these weights ({kind}), the same for every token."
        return text + heatmaps({"weights": values}, rows, stages, (None, None), "cividis", True)
    if kind == "gate":
        text = "A step adds g F1 + (1 - g) F2, with a gate g for each piece of the source."
        maps = {"gate g": values[:, 0]}
    else:
        text = f"A step adds the sum of its stages with weights ({kind}) for each piece of the source."
        maps = {f"weight of {stage}": values[:, i] for i, stage in enumerate(stages)}
    limits = (-1, 1) if kind == "tanh" else (0, 1)
    return text + heatmaps(maps, rows, explanation.source, limits, "coolwarm_r", len(explanation.source) <= 64)


def size_of(config, stack: str, what: str) -> int:
    """The number of layers or attention_heads of a stack; the name of this field differs between configurations."""
    names = (f"{stack}_{what}", f"num_{stack}_{what}", f"num_{what}")
    return next(getattr(config, name) for name in names if hasattr(config, name))


def describe(model: torch.nn.Module) -> str:
    """A line about a model: its size, its layers and, for an ODE Transformer, its solvers."""
    config = model.config
    facts = [f"{config.model_type}, {model.num_parameters() / 1e6:.1f}M parameters"]
    for stack in ("encoder", "decoder"):
        solver = getattr(config, f"{stack}_solver", None)
        facts.append(f"{stack} of {size_of(config, stack, 'layers')} layers")
        if solver is not None:
            coefficients = getattr(config, f"{stack}_coefficients")
            facts[-1] += f", solver {solver if isinstance(solver, str) else 'of its own'} ({coefficients})"
    return f"{'; '.join(facts)}."


def build_page(text_model: TextModel, title: str, text: str = "") -> gr.Blocks:
    """The page of a model. If `text` is given, the page opens with it and its output.

    Raises:
        ValueError: the text is too long.
    """
    config, saved = text_model.model.config, text_model.model.generation_config
    layers = [(f"layer {i + 1}", i) for i in range(size_of(config, "decoder", "layers"))]
    heads = [("mean", -1)] + [(f"head {i + 1}", i) for i in range(size_of(config, "decoder", "attention_heads"))]

    def search(text, split, beams, number, *options):
        """Pairs of a source and an output, and their joined text. A single text gives its best outputs and None: the
        chosen output's text is shown. Several sentences give the best output of each."""
        parts = [text_model.encode(part) for part in (text_model.split(text) if split else [text])]
        number = number if len(parts) == 1 else 1
        pairs = [(ids, output) for ids in parts for output in text_model.search(ids, beams, number, *options)]
        return pairs, None if len(parts) == 1 else " ".join(output.text for _, output in pairs)

    def choices(found):
        return [(f"{output.score:.3f}\u2002{output.text}", i) for i, (_, output) in enumerate(found[0])]

    def explain(found, index, layer, head):
        pairs, joined = found
        source_ids, output = pairs[index]
        explanation = text_model.explain(source_ids, output)
        kind = getattr(config, "encoder_coefficients", "")
        weights = coefficient_map(explanation, size_of(config, "encoder", "layers"), kind)
        text = output.text if joined is None else joined
        return text, attention_map(explanation, layer, None if head < 0 else head), weights

    def on_search(text, beams, outputs, length_penalty, max_new_tokens, layer, head, split_sentences):
        try:
            found = search(text, split_sentences, beams, outputs, length_penalty, max_new_tokens)
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False) from None
        length = max(len(source_ids) for source_ids, _ in found[0])
        if length > (longest := getattr(config, "trained_source_length", None) or math.inf):
            what = "The text" if found[1] is None else "A sentence"
            gr.Warning(f"{what} has {length} tokens, but the longest one in training had {longest}.")
        return found, gr.Radio(choices(found), value=0), *explain(found, 0, layer, head)

    def on_explain(found, output, layer, head):
        # After a click during a search, the index belongs to the previous outputs, possibly a longer list.
        is_there = found and type(output) is int and 0 <= output < len(found[0])
        return explain(found, output, layer, head) if is_there else [gr.skip()] * 3

    num_beams = min(saved.num_beams or 4, MAX_BEAMS)
    length_penalty = 1.0 if saved.length_penalty is None else min(max(saved.length_penalty, 0), MAX_LENGTH_PENALTY)
    max_new_tokens = saved.max_new_tokens or (saved.max_length or 257) - 1  # max_length counts the start token
    options = (num_beams, min(num_beams, 3), length_penalty, min(max_new_tokens, text_model.max_tokens))
    found = search(text, False, *options) if text else None
    shown = explain(found, 0, layers[-1][1], -1) if found else [""] * 3

    with gr.Blocks(title=title, analytics_enabled=False) as page:
        state = gr.State(found)
        gr.Markdown(f"# {title}\n{describe(text_model.model)}")
        with gr.Row():
            with gr.Column():
                source = gr.Textbox(text, label="Text", lines=3)
                with gr.Row():
                    beams = gr.Slider(1, MAX_BEAMS, options[0], step=1, precision=0, label="Beams")
                    number = gr.Slider(1, MAX_BEAMS, options[1], step=1, precision=0, label="Outputs")
                with gr.Row():
                    penalty = gr.Slider(0, MAX_LENGTH_PENALTY, options[2], step=0.1, label="Length penalty")
                    longest = gr.Slider(
                        1, text_model.max_tokens, options[3], step=1, precision=0, label="Longest output (tokens)"
                    )
                split = gr.Checkbox(
                    label="Split sentences",
                    info="If the text is longer than any in training, generate the best output of each sentence by "
                    "itself.",
                )
                button = gr.Button("Generate", variant="primary")
            with gr.Column():
                output = gr.Textbox(shown[0], label="Output", lines=3, buttons=["copy"])
                chosen = gr.Radio(
                    choices(found) if found else [],
                    value=0 if found else None,
                    label="Best outputs",
                    info="Score (log-probability / tokens ^ length penalty) and text, of split sentences the best of "
                    "each; the chosen one is shown below.",
                )
        with gr.Row():
            with gr.Column():
                gr.Markdown("### Attention\nFrom each piece of the output (rows) to those of the source (columns).")
                with gr.Row():
                    layer = gr.Dropdown(layers, value=layers[-1][1], label="Decoder layer")
                    head = gr.Dropdown(heads, value=-1, label="Head")
                attention = gr.HTML(shown[1], elem_id="attention", padding=False)
            with gr.Column():
                gr.Markdown("### Weights of the stages")
                coefficients = gr.HTML(shown[2], elem_id="coefficients", padding=False)

        # One event at a time, since the model records what it computes.
        event = {"concurrency_id": "model", "concurrency_limit": 1}
        views = [output, attention, coefficients]
        inputs = [source, beams, number, penalty, longest, layer, head, split]
        outputs = [state, chosen, *views]
        gr.on([button.click, source.submit], on_search, inputs, outputs, **event, api_name="generate")
        inputs = [state, chosen, layer, head]
        changes = [chosen.input, layer.input, head.input]
        gr.on(changes, on_explain, inputs, views, **event, trigger_mode="always_last", api_name="explain")
    return page


def main(argv: list[str] | None = None) -> None:
    """Runs the page with the given arguments (default: the command line's) until it is interrupted."""
    parser = ArgumentParser(description=__doc__.partition("\n\n")[0], formatter_class=ArgumentDefaultsHelpFormatter)
    beside = Path(__file__).parent / "models" / "tatoeba_en_de"
    name = os.environ.get("MODEL_NAME") or (str(beside) if beside.is_dir() else None)
    parser.add_argument("--model_name_or_path", default=name, required=not name, help="model folder or Hub name")
    parser.add_argument(
        "--trust_remote_code",
        action="store_true",
        default=os.environ.get("TRUST_REMOTE_CODE") == "1",
        help="run modeling code stored with the model",
    )
    parser.add_argument(
        "--port", type=int, help="port of the page; None: $GRADIO_SERVER_PORT, or the first free one from 7860"
    )
    parser.add_argument(
        "--host", help="address to listen on, or 0.0.0.0 for all; None: $GRADIO_SERVER_NAME, or 127.0.0.1"
    )
    parser.add_argument(
        "--packed", action="store_true", help="on a CPU, store the weights in the layout its matrix products need"
    )
    parser.add_argument(
        "--int8",
        action="store_true",
        help="on a CPU, round the packed weights to 8 bits; this is faster, but outputs may change",
    )
    parser.add_argument("--text", default="", help="text to show with its output when the page opens")
    args = parser.parse_args(argv)
    name = args.model_name_or_path
    title = Path(name).absolute().name if Path(name).is_dir() else name
    weights = "int8" if args.int8 else "packed" if args.packed else "keep"
    page = build_page(TextModel(name, args.trust_remote_code, weights), title, args.text)
    page.launch(server_name=args.host, server_port=args.port, share=False, ssr_mode=False, footer_links=[])


if __name__ == "__main__":
    main()
