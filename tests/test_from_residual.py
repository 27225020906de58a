# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""examples/from_residual.py from end to end, on a few generated sentences."""

import gzip
import json
import random

import from_residual
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

import modeling_ode_transformer  # noqa: F401  (registers the model)


def test_both_models_go_on_from_the_same_one_for_as_many_updates(tmp_path, capsys):
    words = random.Random(0)
    for name, count in (("train", 40), ("val", 5), ("test_2016_flickr", 5)):
        for language in ("en", "de"):
            lines = [" ".join(words.choices("one two three four five six".split(), k=5)) for _ in range(count)]
            with gzip.open(tmp_path / f"{name}.{language}.gz", "wt", encoding="utf-8") as file:
                file.write("".join(f"{line}\n" for line in lines))
    arguments = ["--data_dir", str(tmp_path), "--output_dir", str(tmp_path / "out"), "--vocab_size", "282"]
    arguments += ["--epochs", "1", "--further_epochs", "2", "--max_tokens_per_batch", "500", "--bf16", "False"]
    arguments += ["--max_target_length", "12", "--disable_tqdm", "True"]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        from_residual.main([*arguments, "--data_dir", str(tmp_path / "nowhere")])
    from_residual.main(arguments)

    folders = ("residual", "residual_continued", "converted_continued")
    states = [json.loads((tmp_path / "out" / name / "trainer_state.json").read_text()) for name in folders]
    assert [state["global_step"] for state in states] == [2, 4, 4]
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert set(results) == {"residual", "residual, continued", "RK2, continued", "coefficients"}
    # Both started at one function.
    ids = torch.randint(4, 282, (2, 7))
    models = [AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out" / name) for name in ("residual", "converted")]
    logits = [model(input_ids=ids, decoder_input_ids=ids).logits for model in models]
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-4)
    assert results["coefficients"] != [1.0, 0.0]
    printed = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("| R") or line.startswith("| res") for line in printed) == 3

    before = (tmp_path / "out" / "residual" / "model.safetensors").stat().st_mtime_ns
    from_residual.main(arguments)
    assert (tmp_path / "out" / "residual" / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match=r"--num_train_epochs 1 .*, not --num_train_epochs 3"):
        from_residual.main([*arguments, "--epochs", "3"])
    with pytest.raises(
        ValueError, match=r"start was written with .* --vocab_size 282 --seed 1, not .* --vocab_size 283 --seed 1"
    ):
        from_residual.main([*arguments, "--vocab_size", "283"])

    # Stopped in the last evaluation: the run goes on with it.
    file = tmp_path / "out" / "converted_continued" / "all_results.json"
    whole = json.loads(file.read_text())
    file.write_text(json.dumps({name: value for name, value in whole.items() if not name.startswith("predict_")}))
    from_residual.main(arguments)
    assert json.loads(file.read_text())["predict_chrf"] == whole["predict_chrf"]

    # Evaluated on other sentences since: it is measured again on its own.
    noted = file.with_name("arguments.json")
    noted.write_text(json.dumps(json.loads(noted.read_text()) | {"evaluated": {"test": {}}}))
    file.write_text(json.dumps(whole | {"predict_chrf": -1.0}))
    from_residual.main(arguments)
    assert json.loads(file.read_text())["predict_chrf"] == whole["predict_chrf"]
    assert "evaluated" not in json.loads(noted.read_text())
