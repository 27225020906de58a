# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
import pytest
import torch
from accelerate.optimizer import AcceleratedOptimizer
from safetensors.torch import load_file

from .test_trainer import new_model, trainer_for


VALUES = {"max_steps": 6, "save_strategy": "steps", "save_steps": 1, "learning_rate": 0.05, "logging_steps": 1}


@pytest.mark.parametrize("optim", ["adamw_torch_fused", "muon", "adafactor"])
def test_a_training_ends_with_the_average_of_the_weights_of_its_updates(optim, tmp_path):
    """In float64, from the checkpoints' weights. The decay of update t is min(0.4, (1 + t) / (10 + t))."""
    trainer = trainer_for(tmp_path, new_model(), optim=optim, weight_ema=0.4, **VALUES)
    trainer.train()
    weights = [load_file(tmp_path / f"checkpoint-{update}" / "model.safetensors") for update in range(1, 7)]
    for name, actual in trainer.model.state_dict().items():
        if name not in weights[0]:  # tied
            continue
        mean = weights[0][name].double()
        for update, saved in enumerate(weights[1:], 2):
            decay = min(0.4, (1 + update) / (10 + update))
            mean = decay * mean + (1 - decay) * saved[name]
        torch.testing.assert_close(actual.double(), mean, rtol=1e-5, atol=1e-6)
        assert not torch.equal(actual, weights[-1][name]) or torch.equal(weights[0][name], weights[-1][name])


@pytest.mark.parametrize("optim", ["adamw_torch", "muon"])
def test_a_first_step_that_a_loss_scale_skips_is_no_update(optim, tmp_path, monkeypatch):
    """Its gradients overflowed: the optimizer has no state yet, and makes it in the second step."""
    step, calls = AcceleratedOptimizer.step, []

    def skip_first(self, closure=None):
        calls.append(self)
        self._is_overflow = len(calls) == 1
        if not self._is_overflow:
            step(self, closure)

    monkeypatch.setattr(AcceleratedOptimizer, "step", skip_first)
    trainer = trainer_for(tmp_path, new_model(), optim=optim, weight_ema=0.4, **VALUES)
    trainer.train()
    second, last = (load_file(tmp_path / f"checkpoint-{update}" / "model.safetensors") for update in (2, 6))
    assert len(calls) == 6
    averages = trainer.model.state_dict()
    assert any(averages[name].ne(last[name]).any() and averages[name].ne(second[name]).any() for name in last)


@pytest.mark.parametrize("is_better", [True, False])
def test_the_average_is_kept_if_it_is_better_than_the_best_checkpoint(is_better, tmp_path, caplog, monkeypatch):
    values = VALUES | {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}
    trainer = trainer_for(tmp_path, new_model(), weight_ema=0.4, metric_for_best_model="loss", **values)
    predict = trainer.predict

    def predict_with_loss(*args, **kwargs):
        output = predict(*args, **kwargs)
        output.metrics["average_loss"] = 0.0 if is_better else 1e9
        return output

    monkeypatch.setattr(trainer, "predict", predict_with_loss)
    with caplog.at_level("INFO"):
        trainer.train()
    assert f"kept {'the moving average' if is_better else 'the best checkpoint'}" in caplog.text
    best = load_file(f"{trainer.state.best_model_checkpoint}/model.safetensors")
    assert all(torch.equal(tensor, trainer.model.state_dict()[name]) for name, tensor in best.items()) != is_better


def test_updates_without_averages_cannot_end_with_one(tmp_path):
    trainer_for(tmp_path, new_model(), **VALUES).train()
    resumed = trainer_for(tmp_path, new_model(), weight_ema=0.4, **VALUES)
    with pytest.raises(ValueError, match="trained without weight_ema"):
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
