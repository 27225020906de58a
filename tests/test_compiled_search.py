# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""`cache_implementation="static"`: a beam search whose steps are compiled, against the search that is not."""

import copy
import random
from types import SimpleNamespace

import pytest
import torch
from transformers import CompileConfig, LogitsProcessor, LogitsProcessorList

from modeling_ode_transformer.inference import compiled_search, cpu
from modeling_ode_transformer.inference.beam_search import beam_search, searches_beams
from modeling_ode_transformer.inference.cpu import FastLinear, PackedLinear, optimize_for_cpu
from modeling_ode_transformer.texts_ode_transformer import generate_with_scores

from .test_beam_search import CONFIGS, RK2, draw_options, draw_source, lively


def trace():
    """Options of a compiled search whose graphs are run as they are, in PyTorch, and the graphs."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    config = CompileConfig(fullgraph=True, dynamic=True, backend=backend, mode="default")
    return SimpleNamespace(options={"cache_implementation": "static", "compile_config": config}, graphs=graphs)


def small(**fields):
    """A model of one layer a stack, which is soon traced."""
    return lively(**{"encoder_layers": 1, "decoder_layers": 1, **fields})


@pytest.fixture
def tracing():
    """Without a graph from before."""
    return trace()


@pytest.fixture(scope="module")
def shared_tracing():
    """A model of the same form finds the graphs of those before it."""
    return trace()


@pytest.fixture
def recording(monkeypatch):
    """What is done for graphs of kernels, done on the CPU."""
    monkeypatch.setattr(compiled_search, "RECORDING_DEVICES", {"cpu"})


@pytest.mark.parametrize("name", ["learned positions", "iiet repeated"])
def test_compiled_searches_find_what_others_find(name, tracing):
    """Tokens and scores of a search with options, sources and prompts drawn at random."""
    model = small(**CONFIGS[name])
    rng, generator = random.Random(f"compiled {name}"), torch.Generator().manual_seed(0)
    inputs, options = draw_source(rng, generator), draw_options(rng)
    options.pop("forced_bos_token_id", None)
    assert searches_beams(model, **inputs, **options, **tracing.options)
    expected, scores = generate_with_scores(model, inputs, **options)
    tokens, others = generate_with_scores(model, inputs, **options, **tracing.options)
    assert torch.equal(tokens, expected)
    torch.testing.assert_close(others, scores, rtol=1e-5, atol=1e-5)
    assert tracing.graphs


def test_what_graphs_of_kernels_need_changes_no_token(source, tracing, recording):
    """Batches of powers of two, sources padded to multiples of 8, and tensors that searches share. After the first
    searches nothing is compiled, and their tensors stay where they are."""
    model, smaller = small(**RK2), {key: each[:3] for key, each in source.items()}
    options, noted = {"num_beams": 3, "no_repeat_ngram_size": 2, "repetition_penalty": 1.3, "max_new_tokens": 70}, []
    for inputs in (source, smaller, source, source):
        expected = model.generate(**inputs, **options)
        assert torch.equal(model.generate(**inputs, **options, **tracing.options), expected)
        own = vars(model)["compiled_steps"]
        noted.append((len(tracing.graphs), {key: each.data_ptr() for key, each in own.buffers.items()}))
    assert noted[0][0] and noted[3] == noted[2]
    assert {shape[0] for name, shape, *_ in own.buffers if name == "running"} >= {8, 4}
    assert {shape[2] for name, shape, *_ in own.buffers if name == "cross 0 keys"} == {16}


def test_what_inductor_makes_finds_the_same(source):
    """With a limit for each source."""
    torch.compiler.reset()
    model = small(layer_history="none", max_relative_position=0)
    options = {"num_beams": 3, "max_len_a": 0.5, "max_len_b": 3, "max_new_tokens": None}
    expected, scores = generate_with_scores(model, source, **options)
    tokens, others = generate_with_scores(model, source, cache_implementation="static", **options)
    assert torch.equal(tokens, expected)
    torch.testing.assert_close(others, scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weights, product", [("keep", "fast_linear"), ("int8", "packed_linear")])
def test_faster_products_are_in_the_graph(weights, product, source, tracing):
    model = optimize_for_cpu(small(tie_word_embeddings=True), weights)
    if not any(isinstance(module, (FastLinear, PackedLinear)) for module in model.modules()):
        pytest.skip("oneDNN's products are not used on this machine")
    expected, scores = generate_with_scores(model, source, num_beams=4)
    tokens, others = generate_with_scores(model, source, num_beams=4, **tracing.options)
    assert torch.equal(tokens, expected)
    torch.testing.assert_close(others, scores, rtol=1e-5, atol=1e-5)
    called = [str(node.target) for node in tracing.graphs[0].graph.nodes]
    assert sum(f"ode_transformer.{product}" in name for name in called) > 4
    assert not any(name.endswith("linear") and "ode_transformer" not in name for name in called)


def copying_model(dtype, **fields):
    """A model on a CPU whose compiled searches multiply by packed copies of its weights."""
    model = optimize_for_cpu(small(**RK2, **fields).to(dtype))
    layers = [module for module in model.modules() if isinstance(module, FastLinear)]
    if not layers or cpu.packed_class(model, int8=False)[0] is None:
        pytest.skip("weights cannot be packed on this machine")
    return model


@pytest.fixture
def copying():
    return copying_model(torch.float32)


def copies_of(model):
    return {name: vars(module)["kept"][1] for name, module in model.named_modules() if hasattr(module, "packed_copy")}


def check_search(model, inputs, tracing):
    """A compiled search finds what an eager one finds, up to the rounding of bfloat16."""
    tokens, scores = generate_with_scores(model, inputs, num_beams=4, max_new_tokens=8, **tracing.options)
    expected, others = generate_with_scores(model, inputs, num_beams=4, max_new_tokens=8)
    if model.dtype == torch.float32:
        assert torch.equal(tokens, expected)
        torch.testing.assert_close(scores, others, rtol=1e-5, atol=1e-5)


# Ways to change a weight, in place or not.
CHANGES = {
    "an update": lambda weight: weight.add_(0.5 * torch.randn_like(weight)),
    "signs": lambda weight: weight[:, 1::2].mul_(-1),
    "memory": lambda weight: setattr(weight, "data", weight.data.flip(0).clone()),
}


@pytest.mark.parametrize("way", CHANGES)
def test_copies_follow_their_weights(way, copying, source, shared_tracing):
    """Copies that no longer fit are made anew, others are kept."""
    check_search(copying, source, shared_tracing)
    before = copies_of(copying)
    check_search(copying, source, shared_tracing)
    assert all(copy is before[name] for name, copy in copies_of(copying).items())
    changed = {"lm_head", "model.decoder.layers.0.self_attn.k_proj", "model.encoder.layers.0.fc1"}
    with torch.no_grad():
        for name in changed:
            CHANGES[way](copying.get_submodule(name).weight)
    check_search(copying, source, shared_tracing)
    assert {name for name, copy in copies_of(copying).items() if copy is not before[name]} == changed


def test_copies_serve_searches_only(source, tracing):
    """Code that a user compiles, also with other parameters, and a copy of the model compute with the weights."""
    copying = copying_model(torch.bfloat16)
    check_search(copying, source, tracing)
    inputs = {"input_ids": source["input_ids"], "decoder_input_ids": source["input_ids"], "use_cache": False}
    compiled = torch.compile(copying.forward, backend="eager")
    called = lambda values: torch.func.functional_call(copying, values, (), inputs, tie_weights=False)  # noqa: E731
    called = torch.compile(called, backend="eager")
    assert not [module for module in copy.deepcopy(copying).modules() if "kept" in vars(module)]
    for factor in (2, -1):
        with torch.no_grad():
            copying.lm_head.weight.mul_(factor)
            expected = copying(**inputs).logits
            largest = 0.2 * expected.abs().max()
            assert (compiled(**inputs).logits - expected).abs().max() < largest
            half = {name: each / 2 if name == "lm_head.weight" else each for name, each in copying.named_parameters()}
            assert (2 * called(half).logits - expected).abs().max() < largest
    assert not cpu.COPIES.of_weights


def replaced_forward(model):
    layer = model.model.decoder.layers[0].self_attn.v_proj
    forward = layer.forward
    layer.forward = lambda x: -3 * forward(x)


def adapter(model):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False, r=4, lora_alpha=16)
    peft.inject_adapter_in_model(config, model)


@pytest.mark.parametrize("change", [replaced_forward, adapter], ids=lambda each: each.__name__)
def test_changed_layers_are_searched_with(change, copying, source, shared_tracing):
    check_search(copying, source, shared_tracing)
    change(copying)
    check_search(copying, source, shared_tracing)


def test_models_of_one_form_share_a_graph_and_options_reach_the_search(source, tracing):
    for seed in range(2):
        check_search(copying_model(torch.float32, seed=seed), source, tracing)
    assert len(tracing.graphs) == 2  # the encoder's and the step's
    calls = []
    processors = LogitsProcessorList([lambda input_ids, scores: calls.append(1) or scores])
    options = {"custom_generate": beam_search, "num_beams": 4, "max_new_tokens": 8}
    copying_model(torch.float32).generate(source["input_ids"], None, processors, **options, **tracing.options)
    assert calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [100, 4096, 5000])
def test_the_best_of_many_logits_are_those_of_all(size, dtype):
    """Also of logits that are mostly impossible, as in a search with a constraint, and of a last part that is cut.
    Equal logits, of which there are many in bfloat16, may be chosen in another order."""
    logits = 3 * torch.randn(6, size, generator=torch.Generator().manual_seed(0))
    logits[1, 3:] = -torch.inf
    logits[2, -9:] += 20
    logits = logits.to(dtype)
    found, tokens = compiled_search.top_log_probs(logits, 8)
    log_probs = logits.double().log_softmax(-1)
    torch.testing.assert_close(found.double(), log_probs.topk(8).values, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(log_probs.gather(1, tokens), found.double(), rtol=1e-6, atol=1e-6)
    assert all(max(row) < size and (len(set(row)) == 8 or i == 1) for i, row in enumerate(tokens.tolist()))


def test_one_graph_serves_all_steps_lengths_and_batches(source, tracing):
    """Bookkeeping included, and one the encoder; a single source has graphs of its own."""
    model = small(**RK2)
    for rows, length, steps, graphs in ((6, 9, 40, 2), (6, 9, 90, 2), (3, 5, 12, 2), (2, 7, 12, 2), (1, 9, 40, 4)):
        inputs = {name: each[:rows, :length] for name, each in source.items()}
        options = {"num_beams": 4, "max_new_tokens": steps, "eos_token_id": None}
        expected = model.generate(**inputs, **options)
        assert torch.equal(model.generate(**inputs, **options, **tracing.options), expected)
        assert len(tracing.graphs) == graphs


def test_searches_beyond_the_most_graphs_run_uncompiled(source, tracing, monkeypatch, caplog):
    """Those that have a graph go on with it."""
    monkeypatch.setattr(compiled_search, "MOST_GRAPHS", 1)
    compiled_search.logger.warning_once.__func__.cache_clear()
    model, graphs = small(), []
    for num_beams in (4, 3, 5, 4):
        options = {"num_beams": num_beams, "max_new_tokens": 8}
        expected = model.generate(**source, **options)
        assert torch.equal(model.generate(**source, **options, **tracing.options), expected)
        graphs.append(len(tracing.graphs))
    assert graphs == [2] * 4  # the encoder's and the step's
    assert sum("Other searches run uncompiled" in message for message in caplog.messages) == 1


def test_changed_weights_and_copies_are_searched_with(source, tracing):
    """As by a training between two evaluations."""
    model = small()
    model.generate(**source, num_beams=4, **tracing.options)
    graphs = len(tracing.graphs)
    other = small(seed=1)
    model.load_state_dict(other.state_dict())
    expected = other.generate(**source, num_beams=4)
    assert torch.equal(model.generate(**source, num_beams=4, **tracing.options), expected)
    assert len(tracing.graphs) == graphs
    copied = copy.deepcopy(model)
    assert vars(copied)["compiled_steps"].steps == {}
    assert torch.equal(copied.generate(**source, num_beams=4, **tracing.options), expected)


def test_hooks_run_in_every_step_and_change_what_is_found(source, tracing):
    """Also those added to a model that has searched."""
    model, calls = small(), torch.zeros(2)  # a list of another length would be traced again
    options = {**source, "num_beams": 4, "max_new_tokens": 10, "eos_token_id": None}
    assert torch.equal(model.generate(**options, **tracing.options), model.generate(**options))
    for stack, number in zip(("encoder", "decoder"), calls):
        layer = model.get_submodule(f"model.{stack}.layers.0")
        layer.register_forward_hook(lambda module, inputs, output: (-output[0], *output[1:]))
        layer.register_forward_hook(lambda module, inputs, output, number=number: [number.add_(1)] and output)
    expected = model.generate(**options)
    assert calls.tolist() == [1, 10]
    assert torch.equal(model.generate(**options, **tracing.options), expected)
    assert calls.tolist() == [2, 20]


def test_inputs_with_and_without_a_mask(source, tracing, recording):
    """As without compiling: generate() makes no mask for the sources, even if they are padded."""
    model, ids, mask = small(), source["input_ids"], source["attention_mask"]
    options = {"num_beams": 4, "max_new_tokens": 6}
    penalty = {"encoder_repetition_penalty": 1.5, "pad_token_id": 17, "attention_mask": torch.ones_like(ids)}
    for args, inputs in (
        ((ids,), {}),
        ((), {"input_ids": ids, "max_len_a": 0.5, "max_len_b": 1, "max_new_tokens": None}),
        ((), {"inputs": ids, "attention_mask": mask.bool()}),
        ((), {"input_ids": ids, "attention_mask": 0.5 * mask}),
        ((), {"input_ids": ids.clamp(min=20), **penalty}),
    ):
        given = {name: each for name, each in {**options, **inputs}.items() if each is not None}
        given |= {"custom_generate": beam_search, "return_scores": True}
        expected, scores = model.generate(*args, **given)
        tokens, others = model.generate(*args, **given, **tracing.options)
        assert torch.equal(tokens, expected)
        torch.testing.assert_close(others, scores, rtol=1e-5, atol=1e-5)


def test_inputs_that_the_compiled_encoder_does_not_take(source, tracing):
    """States, embeddings; ids given twice, and too many, are refused as by the uncompiled search."""
    model = small(position_embedding_type="learned", max_position_embeddings=9)
    options = {"num_beams": 4, "max_new_tokens": 6}
    ids, mask = source["input_ids"], source["attention_mask"]
    states = model.get_encoder()(**source)
    embeds = model.get_input_embeddings()(ids)
    for inputs in ({"encoder_outputs": states}, {"inputs_embeds": embeds}):
        tracing.graphs.clear()
        expected = model.generate(**inputs, attention_mask=mask, **options)
        assert torch.equal(model.generate(**inputs, attention_mask=mask, **options, **tracing.options), expected)
        assert len(tracing.graphs) <= 1
    longer = torch.cat([ids, ids], dim=1).clamp(min=9)
    with pytest.raises(ValueError, match="A sequence of 18 tokens is longer than max_position_embeddings=9"):
        model.generate(longer, **options, **tracing.options)
    with pytest.raises(ValueError, match="`inputs`"):
        model.generate(ids, input_ids=ids, **options, **tracing.options)


def test_searches_at_the_same_time_have_tensors_of_their_own(source, tracing, recording):
    """A search inside of a search, and two threads."""
    model = small()
    expected = model.generate(**source, num_beams=4)
    found = []

    class Nested(LogitsProcessor):
        def __call__(self, input_ids, scores):
            found.append(model.generate(**source, num_beams=4, **tracing.options))
            return scores

    nested = LogitsProcessorList([Nested()])
    options = {"num_beams": 4, "max_new_tokens": 4}
    alone = model.generate(**source, **options)
    assert torch.equal(model.generate(**source, **options, logits_processor=nested, **tracing.options), alone)
    assert found and all(torch.equal(each, expected) for each in found)
