# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The trainer: checkpoints, losses, evaluations, values that are not finite."""

import itertools
import json
import os
import re
import shutil
import signal
from functools import partial
from types import SimpleNamespace

import datasets
import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.fsdp import StateDictType
from transformers import (
    DataCollatorForSeq2Seq,
    EarlyStoppingCallback,
    GenerationConfig,
    Seq2SeqTrainingArguments,
)
from transformers.generation import configuration_utils
from transformers.utils import logging

from modeling_ode_transformer import OdeTransformerForConditionalGeneration
from modeling_ode_transformer.integration_ode_transformer import StageCoefficients
from modeling_ode_transformer.training.checkpoints import note_checksums, numbered_checkpoints, rotate_checkpoints
from modeling_ode_transformer.training.tasks import seq2seq, translation
from modeling_ode_transformer.training.trainer import TokenSeq2SeqTrainer, TokenSeq2SeqTrainingArguments, score_of_kept

from ..conftest import files_of, killed_at_each_operation, randomize, tiny_config
from .runs import cut


MARKS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}


def pairs(count, start=100):
    generator = torch.Generator().manual_seed(0)
    draw = lambda: torch.randint(4, 20, (5,), generator=generator).tolist()  # noqa: E731
    return [{"input_ids": draw(), "labels": draw(), "index": start + number} for number in range(count)]


class Tokenizer:
    """What the collator needs of a tokenizer."""

    padding_side = "right"

    def pad(self, features, return_tensors=None, **kwargs):
        return {name: torch.tensor([feature[name] for feature in features]) for name in features[0]}

    def save_pretrained(self, folder):
        pass


STREAM = datasets.Dataset.from_list(pairs(6)).to_iterable_dataset()


def trainer_for(tmp_path, model, data=None, processing_class=None, **values):
    defaults = {"max_steps": 3, "per_device_train_batch_size": 2, "save_strategy": "no", "report_to": "none"}
    arguments = TokenSeq2SeqTrainingArguments(str(tmp_path), use_cpu=True, **(defaults | values))
    return TokenSeq2SeqTrainer(
        model=model,
        args=arguments,
        data_collator=DataCollatorForSeq2Seq(processing_class or Tokenizer()),
        train_dataset=pairs(6) if data is None else data,
        eval_dataset=pairs(4),
        processing_class=processing_class,
    )


def new_model(**config):
    torch.manual_seed(0)
    return OdeTransformerForConditionalGeneration(tiny_config(**config))


def loss_history(trainer):
    names = ("step", "loss", "grad_norm", "learning_rate", "eval_loss")
    log = [entry for entry in trainer.state.log_history if "train_runtime" not in entry]
    return [{name: entry[name] for name in names if name in entry} for entry in log]


@pytest.fixture
def transformers_log(caplog):
    """What is logged, with the warnings of transformers, also those given before."""
    logging.enable_propagation()
    logging.get_logger("transformers.trainer_utils").warning_once.cache_clear()
    yield caplog
    logging.disable_propagation()


RESUMED = {
    "the end in the middle of an epoch": {},
    "logs and evaluations at the ends of epochs": {
        "logging_strategy": "epoch",
        "eval_strategy": "epoch",
        "max_steps": 6,
    },
    "an evaluation before the first update": {"eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True},
    "Muon": {"optim": "muon", "gradient_accumulation_steps": 2, "weight_decay": 0.1, "max_steps": 4},
    "an average of the weights": {"weight_ema": 0.9, "max_steps": 4},
    "persistent workers": {
        "dataloader_num_workers": 1,
        "dataloader_persistent_workers": True,
        "max_tokens_per_batch": 10,
    },
    "a stream": {"data": STREAM},
}


@pytest.mark.parametrize("case", RESUMED)
def test_a_resumed_run_is_the_uninterrupted_one(case, tmp_path):
    """Logs, with the sums of losses between them, and weights: from within an epoch, an epoch's end, the run's end."""
    values = {"max_steps": 5, "logging_steps": 2, "save_strategy": "steps", "save_steps": 1} | RESUMED[case]
    whole = trainer_for(tmp_path / "whole", new_model(), **values)
    whole.train()
    for number in (1, 3, values["max_steps"]):
        resumed = trainer_for(tmp_path / str(number), new_model(), **values)
        resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{number}"))
        assert loss_history(resumed) == loss_history(whole), number
        for name, tensor in resumed.model.state_dict().items():
            assert torch.equal(tensor, whole.model.state_dict()[name]), (number, name)


@pytest.mark.parametrize("update", [2, 3])
def test_a_training_that_is_asked_to_stop_saves_its_update_and_goes_on_as_uninterrupted(update, tmp_path, caplog):
    """SIGTERM comes between backward pass and step: within an epoch, and at its end, which is evaluated first."""
    values = {"max_steps": 5, "logging_steps": 2, "eval_strategy": "epoch", "enable_jit_checkpoint": True}
    whole = trainer_for(tmp_path / "whole", new_model(), **values)
    whole.train()
    stopped, handler = trainer_for(tmp_path / "stopped", new_model(), **values), signal.getsignal(signal.SIGTERM)
    step = stopped.training_step

    def terminated_step(*args, **kwargs):
        loss = step(*args, **kwargs)
        if stopped.state.global_step + 1 == update:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss

    stopped.training_step = terminated_step
    with pytest.raises(SystemExit) as exit:
        stopped.train()
    assert exit.value.code == 128 + signal.SIGTERM
    assert f"SIGTERM: stopped after update {update}, of which checkpoint-{update} was saved" in caplog.text
    assert [path.name for path in numbered_checkpoints(tmp_path / "stopped")] == [f"checkpoint-{update}"]
    assert signal.getsignal(signal.SIGTERM) == handler
    resumed = trainer_for(tmp_path / "stopped", new_model(), **values)
    resumed.train(resume_from_checkpoint=True)
    assert loss_history(resumed) == loss_history(whole)
    for name, tensor in resumed.model.state_dict().items():
        assert torch.equal(tensor, whole.model.state_dict()[name]), name


def test_train_itself_leaves_out_half_written_checkpoints(tmp_path):
    values = {"max_steps": 4, "logging_steps": 1, "save_strategy": "steps", "save_steps": 1}
    whole = trainer_for(tmp_path, new_model(), **values)
    with pytest.raises(ValueError, match=r"no complete checkpoint in .* to resume from"):
        whole.train(resume_from_checkpoint=True)
    with pytest.raises(FileNotFoundError, match=r"The checkpoint .*typo does not exist: give"):
        whole.train(resume_from_checkpoint=str(tmp_path / "typo"))
    whole.train()
    (tmp_path / "checkpoint-4" / "trainer_state.json").unlink()
    cut(tmp_path / "checkpoint-3" / "optimizer.pt")
    with pytest.raises(ValueError, match=r"checkpoint-3: optimizer\.pt is damaged.* Choose an earlier checkpoint"):
        trainer_for(tmp_path, new_model(), **values).train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    resumed = trainer_for(tmp_path, new_model(), **values)
    resumed.train(resume_from_checkpoint=True)
    assert loss_history(resumed) == loss_history(whole)


@pytest.mark.parametrize("is_best, kept", [(False, [1, 3, 4]), (True, [2, 3, 4])])
def test_what_a_kill_left_is_no_checkpoint_to_keep(is_best, kept, tmp_path):
    """A file of the second checkpoint is gone; if it is the best, it stays, as its weights may be all that is asked
    for. Others are removed by their updates, not by when their folders were changed."""
    values = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1}
    trainer_for(tmp_path, new_model(), **values).train()
    shutil.rmtree(tmp_path / "checkpoint-4")
    (tmp_path / "checkpoint-2" / "optimizer.pt").unlink()
    for number, time in ((2, 3000), (3, 1000), (1, 2000)):
        os.utime(tmp_path / f"checkpoint-{number}", (time, time))
    trainer = trainer_for(tmp_path, new_model(), **values, save_total_limit=3)
    if is_best:
        state = tmp_path / "checkpoint-3" / "trainer_state.json"
        noted = json.loads(state.read_text()) | {"best_model_checkpoint": str(tmp_path / "checkpoint-2")}
        state.write_text(json.dumps(noted))
        note_checksums(state.parent)
    trainer.train(resume_from_checkpoint=True)
    assert [path.name for path in numbered_checkpoints(tmp_path)] == [f"checkpoint-{number}" for number in kept]


@pytest.mark.parametrize(
    "limit, best, current, kept",
    [
        (None, None, 8, [2, 4, 6, 8, 10]),
        (0, None, 8, [2, 4, 6, 8, 10]),
        (2, None, 10, [8, 10]),
        (2, 2, 10, [2, 10]),
        (1, 4, 10, [4, 10]),
        (3, 10, 10, [6, 8, 10]),
        (9, None, 10, [2, 4, 6, 8, 10]),
        (2, None, 4, [2, 4]),  # those behind it are of a training that was continued from checkpoint-2
        (2, 8, 6, [6, 8]),
    ],
)
def test_the_current_and_the_best_checkpoint_are_kept(limit, best, current, kept, tmp_path):
    for number in (2, 4, 6, 8, 10):
        (tmp_path / f"checkpoint-{number}").mkdir()
    rotate_checkpoints(tmp_path, limit, best and f"{tmp_path}/checkpoint-{best}", tmp_path / f"checkpoint-{current}")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"checkpoint-{number}" for number in kept)


def test_a_kill_while_checkpoints_are_removed_leaves_none_that_lacks_files(tmp_path):
    folder = tmp_path / "run"
    for number in (4, 8, 10):
        (folder / f"checkpoint-{number}" / "target_tokenizer").mkdir(parents=True)
        for name in ("model.safetensors", "trainer_state.json", "target_tokenizer/tokenizer.json"):
            (folder / f"checkpoint-{number}" / name).write_text(f"{number} {name}")
    before = files_of(folder)

    def rotate():
        rotate_checkpoints(folder, 1, None, folder / "checkpoint-10")

    for number in killed_at_each_operation(rotate, folder):
        for checkpoint in numbered_checkpoints(folder):
            start = f"{checkpoint.name}/"
            whole = {path.removeprefix(start): data for path, data in before.items() if path.startswith(start)}
            assert files_of(checkpoint) == whole, number
        rotate()
        assert [path.name for path in folder.iterdir()] == ["checkpoint-10"], number


def test_what_a_killed_removal_left_is_deleted_when_a_training_starts(tmp_path):
    (tmp_path / "_temporary_checkpoint-4").mkdir(parents=True)
    trainer_for(tmp_path, new_model()).train()
    assert not list(tmp_path.glob("_temporary*"))


def test_an_upload_of_a_sharded_model_saves_it_whole(tmp_path, monkeypatch):
    """`push_to_hub` saves as a checkpoint does, but without a folder: in the output folder, to be opened there."""
    trainer = trainer_for(tmp_path, new_model())
    plugin = SimpleNamespace(state_dict_type=StateDictType.SHARDED_STATE_DICT)
    monkeypatch.setitem(trainer.accelerator.state._shared_state, "fsdp_plugin", plugin)
    trainer.is_fsdp_enabled = True
    for is_upload in (True, False):
        trainer.save_model(_internal_call=is_upload)
        saved = type(trainer.model).from_pretrained(tmp_path).state_dict()
        assert all(torch.equal(value, saved[name]) for name, value in trainer.model.state_dict().items())
        (tmp_path / "model.safetensors").unlink()
    monkeypatch.setattr(trainer.progress, "state_dict", dict)
    trainer.save_model(str(tmp_path / "checkpoint-1"), _internal_call=True)
    assert (tmp_path / "checkpoint-1" / "config.json").is_file()
    assert not list(tmp_path.glob("**/model.safetensors"))  # its weights are written with the optimizer's state


def with_losses(trainer, losses):
    """A trainer whose evaluations have these losses, by update."""
    loop = trainer.evaluation_loop

    def evaluation_loop(*args, **kwargs):
        output = loop(*args, **kwargs)
        output.metrics["eval_loss"] = losses[trainer.state.global_step]
        return output

    trainer.evaluation_loop = evaluation_loop
    return trainer


@pytest.mark.parametrize("losses", [{1: 1, 2: 4, 3: 5, 4: 6}, {1: 6, 2: 4, 3: 1, 4: 5}], ids=["none saved", "second"])
def test_a_run_whose_best_update_was_not_saved_is_resumed(losses, tmp_path):
    """Its final model is the uninterrupted run's, also in a folder that was moved: the best one that was saved, or the
    last one; and its score is that of this model, not that of the best evaluation."""
    values = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 1}
    values |= {"metric_for_best_model": "loss", "load_best_model_at_end": True}
    whole = with_losses(trainer_for(tmp_path / "whole", new_model(), **values), losses)
    whole.train()
    kept = 2 if losses[1] == 6 else 4
    expected = load_file(tmp_path / "whole" / f"checkpoint-{kept}" / "model.safetensors")
    assert whole.state.best_metric == 1 and score_of_kept(whole.state, "eval_loss") == losses[kept]
    for number in (2, 4):
        folder = tmp_path / f"{number}"
        shutil.copytree(tmp_path / "whole" / "checkpoint-2", folder / "checkpoint-2")
        shutil.copytree(
            tmp_path / "whole" / f"checkpoint-{number}", folder / f"checkpoint-{number}", dirs_exist_ok=True
        )
        resumed = with_losses(trainer_for(folder, new_model(), **values), losses)
        resumed.train(resume_from_checkpoint=str(folder / f"checkpoint-{number}"))
        best = resumed.state.best_model_checkpoint
        assert best == (str(folder / "checkpoint-2") if kept == 2 else None)
        assert score_of_kept(resumed.state, "eval_loss") == losses[kept]
        weights = resumed.model.state_dict()
        assert all(weights[name].equal(tensor) for name, tensor in expected.items())


def test_the_latest_of_equal_checkpoints_is_the_best_and_no_improvement(tmp_path):
    """As in fairseq. For early stopping equal scores do not count as better ones; later evaluations change nothing."""
    values = {"max_steps": 6, "save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
    values |= {"metric_for_best_model": "loss", "load_best_model_at_end": True}
    for losses, patience, best, last in (
        ({1: 5, 2: 4, 3: 4, 4: 6, 5: 4, 6: 5}, 9, 5, 6),
        (dict.fromkeys(range(1, 7), 5), 2, 3, 3),
    ):
        trainer = trainer_for(tmp_path / f"{patience}", new_model(), **values)
        trainer.add_callback(EarlyStoppingCallback(patience))
        with_losses(trainer, losses).train()
        assert (trainer.state.best_global_step, trainer.state.global_step) == (best, last)
        trainer.state.global_step = best
        assert trainer.evaluate()["eval_loss"] == trainer.state.best_metric == losses[best]


@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("is_optimized", [True, False])
def test_attention_is_trained_in_float32_on_a_cpu(is_optimized, checkpointing, tmp_path, monkeypatch):
    """Also where a backward pass computes it again."""
    found, attend = [], torch.nn.functional.scaled_dot_product_attention

    def record(query, *args, **kwargs):
        found.append((query.dtype, torch.is_autocast_enabled("cpu")))
        return attend(query, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", record)
    values = {"optimize_for_cpu": is_optimized, "gradient_checkpointing": checkpointing, "max_steps": 1}
    model = new_model(attention_dropout=0.0, max_relative_position=0)
    trainer_for(tmp_path, model, bf16=True, **values).train()
    assert set(found) == {(torch.float32, False) if is_optimized else (torch.bfloat16, True)}


def test_greedy_searches_have_no_options_of_beams(monkeypatch, tmp_path):
    """Of which transformers would warn: neither the final search nor that of evaluations, beside the model's own."""
    monkeypatch.setattr(configuration_utils.logger, "warning_once", pytest.fail)
    data_args = translation.DataArguments(num_beams=1, length_penalty=0.6)
    args = TokenSeq2SeqTrainingArguments(str(tmp_path), generation_num_beams=1)
    seq2seq.set_generation_options(config := GenerationConfig(), data_args, args)
    assert config.length_penalty is None and config.early_stopping is None
    data_args.num_beams, model = 4, new_model()
    seq2seq.set_generation_options(model.generation_config, data_args, args)
    assert (model.generation_config.length_penalty, model.generation_config.early_stopping) == (0.6, True)
    search = seq2seq.search_of_evaluations(model.generation_config, args)
    model.generate(torch.tensor([[4, 5, 2]]), generation_config=search, max_length=4)


@pytest.mark.parametrize(
    "values, error, message",
    [
        ({"args": {"bf16_full_eval": True}}, ValueError, r"--bf16_full_eval casts the model for good, .* leave it"),
        ({"args": {"max_tokens_per_batch": 9}, "train_dataset": STREAM}, ValueError, "a length, not IterableDataset"),
        ({"compute_metrics": len}, ValueError, "compute_metrics needs generated tokens: give predict_with_generate"),
        ({"compute_loss_func": len}, ValueError, r"computes the loss, .*leave out compute_loss_func"),
        ({"args": Seq2SeqTrainingArguments}, TypeError, "needs TokenSeq2SeqTrainingArguments as args, not Seq2SeqTr"),
        ({"args": None}, TypeError, "needs TokenSeq2SeqTrainingArguments as args, not None"),
    ],
)
def test_what_a_trainer_cannot_take_is_refused(values, error, message, tmp_path):
    given = values.get("args", {})
    if isinstance(given, dict):
        given = TokenSeq2SeqTrainingArguments(str(tmp_path), use_cpu=True, report_to="none", max_steps=1, **given)
    elif given is not None:
        given = given(str(tmp_path), use_cpu=True, report_to="none")
    with pytest.raises(error, match=message):
        TokenSeq2SeqTrainer(**{"model": new_model(), "train_dataset": pairs(2)} | values | {"args": given})


@pytest.mark.parametrize("loads_best", [True, False])
def test_the_last_checkpoint_stays_beside_the_best_one_and_says_that_the_training_has_ended(
    loads_best, tmp_path, monkeypatch
):
    values = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
    values |= {"metric_for_best_model": "loss", "load_best_model_at_end": loads_best, "save_total_limit": 1}
    values |= {"greater_is_better": True, "logging_steps": 2}
    trainer = trainer_for(tmp_path, new_model(), **values)
    trainer.train()
    assert [path.name for path in numbered_checkpoints(tmp_path)] == ["checkpoint-1", "checkpoint-3"]
    assert trainer.args.save_total_limit == 1
    monkeypatch.setattr(TokenSeq2SeqTrainer, "training_step", None)
    again = trainer_for(tmp_path, new_model(), **values)
    again.train(resume_from_checkpoint=True)
    assert loss_history(again) == loss_history(trainer) and again.state.global_step == 3
    for name, tensor in again.model.state_dict().items():
        assert tensor.equal(trainer.model.state_dict()[name]), name


@pytest.mark.parametrize("is_share", [False, True])
def test_a_resumed_run_logs_and_saves_at_the_steps_of_its_own_arguments(is_share, tmp_path, transformers_log):
    """Of which Trainer does not warn."""
    steps = dict.fromkeys(("logging_steps", "save_steps", "eval_steps"), 1 / 6 if is_share else 1)
    values = {"max_steps": 6, "save_strategy": "steps", "eval_strategy": "steps"}
    trainer_for(tmp_path, new_model(), **values, **steps).train()
    for number in (3, 4, 5, 6):
        shutil.rmtree(tmp_path / f"checkpoint-{number}")
    asked = steps if is_share else dict.fromkeys(steps, 3)
    resumed = trainer_for(tmp_path, new_model(), **values, **asked)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    expected = [1, 2, 3, 4, 5, 6] if is_share else [1, 2, 3, 6]
    for name in ("loss", "eval_loss"):
        assert [each["step"] for each in resumed.state.log_history if name in each] == expected
    assert [path.name for path in numbered_checkpoints(tmp_path)] == [f"checkpoint-{step}" for step in expected]
    assert resumed.args.logging_steps == asked["logging_steps"] and "do not match" not in transformers_log.text


@pytest.mark.parametrize("writers", [1, 2])
def test_another_number_of_processes_goes_on_with_the_mean_loss(writers, tmp_path, monkeypatch, caplog):
    """Of processes with unequal losses since the last log: the next log is that of an uninterrupted run."""
    values = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "logging_steps": 3}
    whole = trainer_for(tmp_path, new_model(), **values)
    whole.train()
    checkpoint = tmp_path / "checkpoint-2"
    written = json.loads((checkpoint / "progress.json").read_text())
    (own,) = (each["loss_since_last_log"] for each in written["by_process"])
    shares = [own] if writers == 1 else [own + 1, own - 1]
    (checkpoint / "progress.json").write_text(
        json.dumps(written | {"by_process": [{"loss_since_last_log": share} for share in shares]})
    )
    note_checksums(checkpoint)
    resumed = trainer_for(tmp_path, new_model(), **values)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert loss_history(resumed) == loss_history(whole)
    assert ("checkpoint-2 was written by 2 processes, and 1 continue it" in caplog.text) == (writers == 2)


@pytest.mark.parametrize("is_given", [False, True])
def test_evaluations_leave_the_search_of_the_model_as_it_is(is_given, tmp_path):
    """Seq2SeqTrainer fills it with defaults, of which a length of 20 would cut the outputs of all later batches."""
    model = new_model()
    search = GenerationConfig(max_len_a=0, max_len_b=30, min_length=29, num_beams=1, **MARKS)
    model.generation_config = search
    before = search.to_dict()
    trainer = trainer_for(tmp_path, model, predict_with_generate=True, per_device_eval_batch_size=1)
    trainer.eval_generation_config = search if is_given else None
    output = trainer.predict(pairs(3))
    assert ((output.predictions != MARKS["pad_token_id"]) & (output.predictions >= 0)).sum(1).min() >= 29
    assert model.generation_config is search and search.to_dict() == before


def test_options_of_a_prediction_change_its_search(tmp_path, monkeypatch):
    model, asked = new_model(), []
    generate = model.generate

    def recorded(*args, generation_config, **options):
        asked.append((generation_config.num_beams, generation_config.max_length))
        return generate(*args, generation_config=generation_config, **options)

    monkeypatch.setattr(model, "generate", recorded)
    trainer = trainer_for(tmp_path, model, predict_with_generate=True, generation_num_beams=3)
    trainer.eval_generation_config = GenerationConfig(max_length=7, num_beams=4, **MARKS)
    trainer.compute_metrics = lambda evaluation: {}
    for options in ({}, {"num_beams": 2}, {"max_length": 5}):
        trainer.predict(pairs(1), **options)
        trainer.evaluate(**options)
    assert asked[::2] == asked[1::2] == [(4, 7), (2, 7), (4, 5)]


@pytest.mark.parametrize("values", [{"max_tokens_per_batch": 10}, {"train_sampling_strategy": "group_by_length"}])
def test_batches_come_from_the_seed_of_the_data_where_there_is_one(values, tmp_path):
    def order(**seeds):
        trainer = trainer_for(tmp_path, new_model(), **values, **seeds)
        return [batch["index"].tolist() for batch in trainer.get_train_dataloader()]

    assert order(seed=1, data_seed=5) == order(seed=2, data_seed=5) == order(seed=5)
    assert order(seed=1, data_seed=6) != order(seed=1, data_seed=5) != order(seed=1)


def test_batches_keep_the_budget_where_the_collator_pads_to_a_multiple(tmp_path):
    """Six pairs of five tokens, of which a budget of 20 takes two as padded to eight."""
    trainer = trainer_for(tmp_path, new_model(), max_tokens_per_batch=20)
    trainer.data_collator = DataCollatorForSeq2Seq(Tokenizer(), pad_to_multiple_of=8)
    assert [tuple(batch["labels"].shape) for batch in trainer.get_train_dataloader()] == [(2, 8)] * 3


def test_grouping_by_length_counts_tokens_where_no_column_has_the_lengths(tmp_path):
    """Of examples with classes, those of their texts."""
    trainer = trainer_for(tmp_path, new_model(), train_sampling_strategy="group_by_length")
    trainer.train_dataset = [{"input_ids": [5] * size, "labels": [6] * size} for size in (1, 4, 2, 3)]
    assert trainer._get_train_sampler().lengths.tolist() == [2, 8, 4, 6]
    trainer.train_dataset = [{"input_ids": [5] * size, "label": 1} for size in (1, 4, 2)]
    lengths = trainer._get_train_sampler().lengths.tolist()
    assert [length - lengths[0] for length in lengths] == [0, 3, 1]


def test_a_token_that_pads_must_be_one_of_the_model(tmp_path):
    """Trainer puts the tokenizer's into the configuration, which could be saved, but not be opened."""
    trainer = trainer_for(tmp_path, new_model(decoder_vocab_size=50, share_encoder_decoder_embeddings=False))
    for token, size in ((61, "vocab_size=61"), (55, "decoder_vocab_size=50")):
        trainer.processing_class = SimpleNamespace(pad_token_id=token)
        with pytest.raises(ValueError, match=f"pads with the token {token}, but the model has {size}"):
            trainer.train()


@pytest.mark.parametrize("scale, stops", [(1.0, False), (1e-5, True)])
def test_gradients_that_overflow_stop_the_run_only_at_a_very_small_loss_scale(scale, stops, tmp_path, monkeypatch):
    """Nor does a norm stop it that is not computed, as by DeepSpeed."""
    model = new_model()
    model.model.encoder.layers[0].fc2.bias.register_hook(lambda gradient: gradient * torch.inf)
    trainer = trainer_for(tmp_path, model)
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    before = model.lm_head.weight.clone()
    if stops:
        with pytest.raises(FloatingPointError, match="The gradient norm of update 1 is "):
            trainer.train()
        monkeypatch.setattr(trainer.accelerator, "clip_grad_norm_", lambda *args: None)
    assert trainer.train().global_step == 3
    assert trainer.accelerator.scaler.get_scale() == pytest.approx(scale / 2**3, rel=1e-6)
    assert torch.equal(model.lm_head.weight, before)


@pytest.mark.parametrize("what", ["loss", "gradient norm"])
def test_what_is_not_finite_names_update_examples_and_parameter(what, tmp_path):
    """A weight becomes NaN in the second update; or, of a finite loss, the gradient of a parameter does in the second
    of two accumulated batches."""
    model, calls = new_model(), []

    def spoil(*args):
        calls.append(args)
        if len(calls) == 2:
            with torch.no_grad():
                model.model.decoder.layers[0].fc1.weight[0, 0] = float("nan")

    def overflow(gradient):
        calls.append(gradient)
        return gradient * float("inf") if len(calls) == 2 else gradient

    if what == "loss":
        model.register_forward_pre_hook(spoil)
        update, examples, parameter = 2, 2, "weights of 1 of .* (model.decoder.layers.0.fc1.weight"
    else:
        model.model.encoder.layers[1].fc2.bias.register_hook(overflow)
        update, examples, parameter = 1, 4, "gradients of 1 of .* (model.encoder.layers.1.fc2.bias"
    with pytest.raises(FloatingPointError) as error:
        trainer_for(tmp_path, model, gradient_accumulation_steps=examples // 2).train()
    message = str(error.value)
    assert message.startswith(f"The {what} of update {update} is ")
    shown = message.partition("Examples of the update (column 'index' of the training data): ")[2]
    shown = json.loads(shown.partition("]")[0] + "]")
    assert len(shown) == examples and set(shown) <= set(range(100, 106))
    assert re.search(parameter.replace("(", r"\("), message)
    assert (" weights of" in message) == (what == "loss")


def test_half_precision_trains_24_layers_of_rk4():
    """No overflow in forward or backward, in float16 at the paper's width; the losses follow those of float32."""
    sizes = {"encoder_layers": 24, "d_model": 512, "encoder_attention_heads": 8, "encoder_ffn_dim": 256}
    fields = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0) | sizes
    batch = DataCollatorForSeq2Seq(Tokenizer())(pairs(4))
    del batch["index"]
    losses = {}
    for dtype in (torch.float32, torch.float16):
        model = new_model(encoder_solver="rk4", coefficients="fixed", **fields)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.997))
        scaler = torch.amp.GradScaler("cpu", enabled=dtype is torch.float16)
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is torch.float16):
                loss = model(**batch).loss
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
            assert norm.isfinite(), dtype
            scaler.step(optimizer)
            scaler.update()
            losses.setdefault(dtype, []).append(loss.item())
        assert scaler.get_scale() in (1.0, 2.0**16)
    assert losses[torch.float32][1] < losses[torch.float32][0]
    assert losses[torch.float16] == pytest.approx(losses[torch.float32], rel=0.05)


@pytest.mark.parametrize(
    "schedule, warmup, expected",
    [
        ("inverse_sqrt", 4, [0, 1 / 4, 2 / 4, 3 / 4, *((4 / n) ** 0.5 for n in range(4, 10))]),
        ("warmup_stable_decay", 2, [0, 1 / 2, *[1] * 7, 1 / 2]),
    ],
)
def test_schedules_are_the_papers_and_one_that_falls_in_the_last_fifth(schedule, warmup, expected, tmp_path):
    """Linear to the peak, then peak * sqrt(warm-up / update), as fairseq's with the default settings; or stable
    without further numbers. The rate of update n is that of n - 1 finished updates."""
    values = {"lr_scheduler_type": schedule, "warmup_steps": warmup, "learning_rate": 0.002, "logging_steps": 1}
    trainer = trainer_for(tmp_path, new_model(), max_steps=10, **values)
    trainer.train()
    rates = [entry["learning_rate"] for entry in loss_history(trainer)]
    assert rates == pytest.approx([0.002 * rate for rate in expected])


@pytest.mark.parametrize(
    "kind, sharing, generates",
    [("gate", "stack", True), ("gate", "layer", False), ("learned", "layer", True), ("fixed", "stack", False)],
)
def test_mean_coefficients_are_over_tokens_and_not_over_what_is_generated(kind, sharing, generates, tmp_path):
    """Of each layer: in batches of three and one pair those of all four in one forward pass; nothing of fixed ones."""
    solvers = {"encoder_solver": "rk2", "decoder_solver": "rk2", "coefficients": kind, "coefficient_sharing": sharing}
    model, expected = randomize(new_model(**solvers, encoder_layers=2, decoder_layers=2)), {}

    def record(stack, layers, module, args, weights):
        layer = next(layers)
        for i, each in enumerate(weights, 1):
            expected[f"eval_coefficient_{stack}_{layer}_stage_{i}"] = float(each.mean())

    hooks = []
    for stack in ("encoder", "decoder"):
        modules = [each for each in getattr(model.model, stack).modules() if isinstance(each, StageCoefficients)]
        modules, layers = [each for each in modules if list(each.parameters())], itertools.count()
        hooks += [each.register_forward_hook(partial(record, stack, layers)) for each in modules]
    with torch.no_grad():
        model(**{name: torch.tensor([pair[name] for pair in pairs(4)]) for name in ("input_ids", "labels")})
    for hook in hooks:
        hook.remove()
    assert len(set(expected.values())) == (0 if kind == "fixed" else 8)
    values = {"predict_with_generate": generates, "generation_max_length": 9, "per_device_eval_batch_size": 3}
    for asks in (True, False):
        trainer = trainer_for(tmp_path, model, log_coefficients=asks, **values)
        trainer.compute_metrics = lambda evaluation: {}  # without it, nothing is generated
        for _ in range(2):  # nothing of an evaluation is left over
            metrics = trainer.evaluate()
        found = {name: metrics[name] for name in metrics if "coefficient" in name}
        assert found == pytest.approx(expected if asks else {}, abs=1e-6)


def test_linked_checkpoints_are_removed_and_what_they_link_to_stays(tmp_path):
    """Moved to another disk, say; also where a removal was interrupted."""
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    for path in (folder, elsewhere / "2", elsewhere / "4"):
        path.mkdir(parents=True)
    (folder / "checkpoint-2").symlink_to(elsewhere / "2")
    (folder / "_temporary_checkpoint-4").symlink_to(elsewhere / "4")
    (folder / "checkpoint-6").mkdir()
    rotate_checkpoints(folder, 1, None, folder / "checkpoint-6")
    assert [path.name for path in folder.iterdir()] == ["checkpoint-6"]
    assert sorted(path.name for path in elsewhere.iterdir()) == ["2", "4"]


def test_no_example_of_an_evaluation_is_dropped(tmp_path):
    """Four examples in batches of three."""
    values = {"per_device_eval_batch_size": 3, "dataloader_drop_last": True, "max_steps": 1}
    trainer = trainer_for(tmp_path, new_model(dropout=0.0, attention_dropout=0.0, activation_dropout=0.0), **values)
    assert len(trainer.get_train_dataloader()) == 3 and trainer.args.dataloader_drop_last
    expected = trainer_for(tmp_path, trainer.model, max_steps=1, per_device_eval_batch_size=4).evaluate()["eval_loss"]
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-6)
    assert len(trainer.predict(trainer.eval_dataset).label_ids) == 4
