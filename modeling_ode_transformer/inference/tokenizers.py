# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The source and target tokenizers of an encoder-decoder, and the languages of multilingual ones."""

from transformers import AutoTokenizer

from ..texts_ode_transformer import cut_texts, load_target_tokenizer


def load_tokenizers(
    name: str,
    target_name: str | None = None,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    **hub_options,
):
    """Opens the source and target tokenizers from folders or the Hub; they may be the same.

    Args:
        name: Folder or name of the source tokenizer.
        target_name: Folder or name of the target tokenizer; None: the folder `TARGET_TOKENIZER` inside the first one,
            if any.
        src_lang, tgt_lang: The languages of a multilingual tokenizer; None: as saved with it.
        hub_options: Options for `AutoTokenizer.from_pretrained`.

    Raises:
        OSError: a tokenizer does not exist or cannot be read.
        ValueError: the tokenizer does not know a language or has no language marks; or there are two tokenizers and
            one is multilingual.
    """
    tokenizer = AutoTokenizer.from_pretrained(name, **hub_options)
    if target_name is not None:
        target_tokenizer = AutoTokenizer.from_pretrained(target_name, **hub_options)
    else:
        target_tokenizer = load_target_tokenizer(name, **hub_options)
    if target_tokenizer is None:
        target_tokenizer = tokenizer
    elif marks_languages(tokenizer) or marks_languages(target_tokenizer):
        raise ValueError(f"{name}: a multilingual tokenizer is for both sides, but the target has another tokenizer.")
    for argument, language in (("src_lang", src_lang), ("tgt_lang", tgt_lang)):
        if language is not None:
            set_language(tokenizer, argument, language)
    return tokenizer, target_tokenizer


def encode_texts(
    texts: list[str], tokenizer, max_length: int | None, side: str = "text"
) -> tuple[list[list[int]], int]:
    """Returns the token ids of texts, cut to `max_length` tokens with the end mark (None: not cut), and the number
    cut.

    `side` is the tokenizer's argument for the texts: `text`, or `text_target` for the target side.
    """
    encoded = tokenizer(**{side: texts}, verbose=False, return_attention_mask=False)["input_ids"]
    return cut_texts(encoded, texts, tokenizer, max_length, side)


def marks_languages(tokenizer) -> bool:
    """Whether a tokenizer adds a language mark to texts, like those of M2M100, NLLB and mBART."""
    return hasattr(tokenizer, "set_tgt_lang_special_tokens")


def set_language(tokenizer, argument: str, language: str) -> None:
    """Sets the `src_lang` or `tgt_lang` of a multilingual tokenizer, which saves it with its files."""
    kind = f"{type(tokenizer).__name__} ({tokenizer.name_or_path})"
    if not marks_languages(tokenizer):
        raise ValueError(f"--{argument} {language}: {kind} does not mark languages. Leave it out.")
    known = getattr(tokenizer, "lang_code_to_id", None) or tokenizer.extra_special_tokens
    if language not in map(str, known):
        raise ValueError(f"--{argument} {language}: {kind} only knows {', '.join(map(str, known))}.")
    setattr(tokenizer, argument, language)


def begin_with_language(model, tokenizer) -> None:
    """Makes a model's outputs begin with the target language's mark: after the start token, or as the start token if
    targets end with the mark (mBART)."""
    marks = tokenizer(text_target="")["input_ids"]
    if len(marks) != 2:
        raise ValueError(
            f"{type(tokenizer).__name__} adds {tokenizer.convert_ids_to_tokens(marks)} to a target, not a "
            "language mark and an end mark."
        )
    if marks[1] == tokenizer.eos_token_id:
        model.generation_config.forced_bos_token_id = marks[0]
    else:
        model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = marks[1]
