# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""SentencePiece tokenizer (BPE or unigram) of the ODE Transformer, saved as one `tokenizer.json`."""

import copy
import io
import json
import os
import re
from collections.abc import Iterable
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram
from transformers import TokenizersBackend


SPACE = "▁"  # U+2581, how SentencePiece writes a space inside a piece
BYTE_PIECES = frozenset(f"<0x{byte:02X}>" for byte in range(256))
RESERVED_SCORE = -1e4  # unigram score of special and byte pieces, below that of any text in character pieces
SPECIAL_IDS = {"bos": 0, "pad": 1, "eos": 2, "unk": 3}
MODEL_TYPES = ("bpe", "unigram")


def _merges(pieces: list[str]) -> list[tuple[str, str]]:
    """All pairs that form a piece, best piece first. SentencePiece merges any pair that forms a piece."""
    known = set(pieces)
    return [
        (piece[:cut], piece[cut:])
        for piece in pieces
        for cut in range(1, len(piece))
        if piece[:cut] in known and piece[cut:] in known
    ]


def _literal_guard(pieces: set[str], reserved: Iterable[str]) -> list[pre_tokenizers.PreTokenizer]:
    """
    Splits the text inside the spelling of a special or byte piece, next to a character that is not a piece.

    The unigram model of `tokenizers` would match such a spelling as the piece itself; SentencePiece never does.
    `RESERVED_SCORE` prevents this, unless the spelling has an unknown character, which scores even lower. No piece has
    that character, so the cut changes nothing else.
    """
    following: dict[tuple[str, str], list[str]] = {}
    for literal in sorted(set(reserved)):
        known = [character in pieces for character in literal]
        if not all(known):
            cut = next((i for i in range(1, len(literal)) if known[i - 1] != known[i]), 1)
            following.setdefault((literal[: cut - 1], literal[cut - 1]), []).append(re.escape(literal[cut:]))
    patterns = [
        (f"(?<={re.escape(before)})" if before else "") + f"{re.escape(character)}(?={'|'.join(rests)})"
        for (before, character), rests in following.items()
    ]
    return [pre_tokenizers.Split(Regex("|".join(patterns)), behavior="merged_with_previous")] if patterns else []


def _decoder(prefix: bool) -> decoders.Decoder:
    """The decoder; `prefix` says whether texts begin with a space that decoding removes."""
    steps = [decoders.ByteFallback(), decoders.Fuse(), decoders.Replace(SPACE, " ")]
    return decoders.Sequence(steps + [decoders.Strip(" ", left=1)] if prefix else steps)


def text_normalizer(names: str) -> normalizers.Normalizer:
    """What `nfc`, `nfkc` and `moses_LANGUAGE`, several separated by commas, do with a text, in their order.

    `moses_en` normalizes punctuation and spaces as `sacremoses.MosesPunctNormalizer("en", norm_quote_commas=False)`
    does, and other languages likewise.

    Raises:
        ValueError: a normalization is unknown.
    """
    known: dict[str, Any] = {"nfc": normalizers.NFC, "nfkc": normalizers.NFKC}
    steps = []
    for name in names.split(","):
        if name in known:
            steps.append(known[name]())
        elif re.fullmatch("moses_[a-z]{2}", name):
            from sacremoses import MosesPunctNormalizer

            for pattern, content in MosesPunctNormalizer(name[6:], norm_quote_commas=False).substitutions:
                # Groups hold what stays, before and after what is replaced.
                group = r"\((\[[^]]*]|\\d)\)"
                pattern = re.sub(f"{group}$", r"(?=\1)", re.sub(f"^{group}", r"(?<=\1)", pattern))
                steps.append(normalizers.Replace(Regex(pattern), re.sub(r"\\g<\d>", "", content)))
            steps.append(normalizers.Strip())
        else:
            raise ValueError(f"Unknown normalization {name!r}: give nfc, nfkc or moses_LANGUAGE, such as moses_en.")
    return normalizers.Sequence(steps)


def _normalizer(
    charsmap: bytes | None, remove_extra_whitespaces: bool, first: normalizers.Normalizer | None
) -> normalizers.Normalizer | None:
    steps: list[normalizers.Normalizer] = [] if first is None else [first]
    steps += [normalizers.Precompiled(charsmap)] if charsmap else []
    if remove_extra_whitespaces:
        steps += [
            normalizers.Replace(Regex(rf"\A +|[ {SPACE}]+\z"), ""),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    return normalizers.Sequence(steps) if steps else None


def _has_prefix(backend: Tokenizer) -> bool:
    return backend.pre_tokenizer is not None and backend.pre_tokenizer.pre_tokenize_str("a")[0][0].startswith(SPACE)


def _build_backend(
    vocab: list[tuple[str, float]],
    merges: list[tuple[str, str]] | None,
    unk_token: str,
    special_pieces: list[str],
    prefix: bool,
    normalizer: normalizers.Normalizer | None,
) -> Tokenizer:
    """The backend of pieces and their scores: BPE with merges, otherwise unigram. It writes spaces as U+2581 and, with
    `prefix`, another one in front of the text."""
    ids = {piece: i for i, (piece, _) in enumerate(vocab)}
    reserved = BYTE_PIECES.union(special_pieces)
    pieces = ids.keys() - reserved
    steps: list = []
    if prefix:
        # Unlike SentencePiece, `Metaspace` adds no prefix to a text that starts with its own mark. So the prefix is
        # first written as a plain space, when the text has none left. "first" skips the text after a special token,
        # but uses positions in the original text, where a normalizer may have deleted something.
        scheme = "first" if normalizer is None else "always"
        steps.append(pre_tokenizers.Metaspace(SPACE, prepend_scheme="never", split=False))
        steps.append(pre_tokenizers.Metaspace(" ", prepend_scheme=scheme, split=False))
    if merges is not None:
        model = BPE(ids, merges, unk_token=unk_token, fuse_unk=True, byte_fallback=True)
    else:
        vocab = [(piece, RESERVED_SCORE if piece in reserved else score) for piece, score in vocab]
        model = Unigram(vocab, ids.get(unk_token), byte_fallback=True)
        steps += _literal_guard(pieces, reserved)
    at_spaces = not any(SPACE in piece[1:] for piece in pieces)
    steps.append(pre_tokenizers.Metaspace(SPACE, prepend_scheme="never", split=at_spaces))
    backend = Tokenizer(model)
    backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = _decoder(prefix)
    return backend


def _read_sentencepiece(
    model: str | os.PathLike | bytes, normalizer: normalizers.Normalizer | None = None
) -> dict[str, Any]:
    """The arguments of `OdeTransformerTokenizer` for a SentencePiece model that reads what `normalizer` makes of a
    text; see `from_sentencepiece`."""
    from sentencepiece import sentencepiece_model_pb2

    if not isinstance(model, bytes):
        with open(model, "rb") as file:
            model = file.read()
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    trainer, normalization = proto.trainer_spec, proto.normalizer_spec
    found = {token: getattr(trainer, f"{token}_id") for token in SPECIAL_IDS}
    if found != SPECIAL_IDS:
        raise ValueError(f"The model has the special ids {found}, but must have {SPECIAL_IDS}: train it with these.")
    type_name = trainer.ModelType.Name(trainer.model_type).lower()
    if type_name not in MODEL_TYPES:
        raise ValueError(f"The model has the type {type_name!r}, but must have one of {MODEL_TYPES}.")
    by_type = {name: [] for name in proto.SentencePiece.Type.keys()}
    for piece in proto.pieces:
        by_type[proto.SentencePiece.Type.Name(piece.type)].append(piece)
    if by_type["USER_DEFINED"] or by_type["UNUSED"] or trainer.treat_whitespace_as_suffix:
        raise ValueError(
            "The model has user_defined_symbols, unused pieces or treat_whitespace_as_suffix, which a `tokenizers` "
            "tokenizer cannot reproduce. Use control_symbols, or add_tokens afterwards."
        )
    specials = {f"{token}_token": proto.pieces[i].piece for token, i in SPECIAL_IDS.items()}
    special_pieces = [piece.piece for piece in by_type["UNKNOWN"] + by_type["CONTROL"]]
    vocab = [(piece.piece, piece.score) for piece in proto.pieces]
    merges = None
    if type_name == "bpe":
        merges = _merges([piece.piece for piece in sorted(by_type["NORMAL"], key=lambda piece: -piece.score)])
    backend = _build_backend(
        vocab,
        merges,
        specials["unk_token"],
        special_pieces,
        normalization.add_dummy_prefix,
        _normalizer(normalization.precompiled_charsmap, normalization.remove_extra_whitespaces, normalizer),
    )
    extra = [piece for piece in special_pieces if piece not in specials.values()]
    return {"tokenizer_object": backend, **specials, **({"extra_special_tokens": extra} if extra else {})}


class OdeTransformerTokenizer(TokenizersBackend):
    """
    Tokenizer of the ODE Transformer: a SentencePiece model, BPE or unigram, run by the `tokenizers` library.

    Special tokens are `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3. Encoding appends `</s>`: `A </s>`, and for a pair
    `A </s> B </s>`. The other ids are SentencePiece's. With byte fallback (the default of [`~train`]) any Unicode text
    comes back unchanged from `decode(ids, skip_special_tokens=True)`, with these limits:

    - SentencePiece writes spaces as U+2581, so that character itself comes back as a space.
    - The spelling of a special token inside a text, such as `"</s>"`, is read as that token. Encode text that you do
      not control with `split_special_tokens=True`, which reads it as plain text.
    - A unigram model may have two equally good ways to cut a text, mostly in a run of one repeated character. The ids
      can then differ from SentencePiece's, which adds up the scores in single precision.
    - A model with normalization (`normalization`, `normalization_rule_name` other than `"identity"`,
      `remove_extra_whitespaces`) returns the normalized text. A rule of `normalization_rule_name` may join characters
      (decomposed accents, half-width katakana, Hangul jamo). There `tokenizers` applies the rules differently from
      SentencePiece, and the ids can differ.

    `save_pretrained` writes a `tokenizer.json` that `AutoTokenizer.from_pretrained` loads as a plain
    `TokenizersBackend`, without this package and without remote code.

    Args:
        tokenizer_object, tokenizer_file: As of `TokenizersBackend`; one of them is needed. Most users want [`~train`],
            [`~from_sentencepiece`] or `from_pretrained` instead.
        bos_token (`str`, *optional*, defaults to `"<s>"`): Beginning of sequence; not added by default.
        eos_token (`str`, *optional*, defaults to `"</s>"`): End of sequence, added to each text.
        unk_token (`str`, *optional*, defaults to `"<unk>"`): The unknown, in a model without byte fallback.
        pad_token (`str`, *optional*, defaults to `"<pad>"`): Padding.
        add_bos_token (`bool`, *optional*): Whether to put `bos_token` in front. By default as saved, else False.
        add_eos_token (`bool`, *optional*): Whether to append `eos_token`. By default as saved, else True. With
            `AutoTokenizer`, whose class is transformers' own, name both: if one is left out, it becomes False. A text
            is read as if a space came before it (unless SentencePiece was trained with `add_dummy_prefix=False`).
            Decoding removes that space, except with `add_eos_token=False`: it may then continue a prompt.

    Example:

    ```python
    >>> tokenizer = OdeTransformerTokenizer.train(texts, vocab_size=8000)
    >>> tokenizer.decode(tokenizer("Ein Haus.").input_ids, skip_special_tokens=True)
    'Ein Haus.'
    ```
    """

    vocab_files_names = {"tokenizer_file": "tokenizer.json"}
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(
        self,
        bos_token: str = "<s>",
        eos_token: str = "</s>",
        unk_token: str = "<unk>",
        pad_token: str = "<pad>",
        add_bos_token: bool | None = None,
        add_eos_token: bool | None = None,
        **kwargs: Any,
    ):
        backend, file = kwargs.pop("tokenizer_object", None), kwargs.pop("tokenizer_file", None)
        self._tokenizer = Tokenizer.from_file(file) if backend is None else copy.deepcopy(backend)
        # transformers saves neither of the two settings.
        saved = None if self._tokenizer.post_processor is None else self._tokenizer.encode("").ids
        if add_bos_token is None:
            add_bos_token = saved is not None and self._tokenizer.token_to_id(str(bos_token)) in saved
        if add_eos_token is None:
            add_eos_token = saved is None or self._tokenizer.token_to_id(str(eos_token)) in saved
        if _has_prefix(self._tokenizer):
            self._tokenizer.decoder = _decoder(add_eos_token)
        super().__init__(
            bos_token=bos_token,
            eos_token=eos_token,
            unk_token=unk_token,
            pad_token=pad_token,
            add_bos_token=add_bos_token,
            add_eos_token=add_eos_token,
            **kwargs,
        )

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocab_size: int,
        model_type: str = "bpe",
        normalization: str | None = None,
        **sentencepiece_options: Any,
    ) -> "OdeTransformerTokenizer":
        """
        Trains SentencePiece on texts, in memory; the same texts and options give the same tokenizer.

        Args:
            texts (`Iterable[str]`): The training texts. They are read once.
            vocab_size (`int`): Number of pieces, the 4 special and 256 byte pieces included.
            model_type (`str`, *optional*, defaults to `"bpe"`): `"bpe"` or `"unigram"`.
            normalization (`str`, *optional*): Normalizations of all texts, also of those that the tokenizer encodes
                later, such as `"nfkc"` or `"moses_en,nfc"`; see `text_normalizer`.
            sentencepiece_options: Options of `sentencepiece.SentencePieceTrainer`. Unlike SentencePiece's, the
                defaults lose no information: `byte_fallback=True`, `normalization_rule_name="identity"`,
                `remove_extra_whitespaces=False`, `character_coverage=1.0`, and no limit on text length.

        Returns:
            [`OdeTransformerTokenizer`]: a tokenizer with `vocab_size` pieces, or fewer if the texts give fewer and
            `hard_vocab_limit=False` allows it.

        Raises:
            ImportError: if sentencepiece or protobuf is not installed.
            TypeError: if `texts` is a single text, such as the name of a file.
            ValueError: if `vocab_size` does not fit the texts, or an option is unknown or cannot be expressed.
        """
        if isinstance(texts, str):
            raise TypeError(f"texts is the text {texts[:40]!r}: give a list of texts, or an open file.")
        import sentencepiece

        normalizer = None if normalization is None else text_normalizer(normalization)
        options = {
            "byte_fallback": True,
            "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False,
            "character_coverage": 1.0,
            "max_sentence_length": 2**30,
            "minloglevel": 2,
            **{f"{token}_id": i for token, i in SPECIAL_IDS.items()},
            "pad_piece": "<pad>",
            **sentencepiece_options,
        }
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=(
                    text.encode() if normalizer is None else normalizer.normalize_str(text).encode() for text in texts
                ),
                model_writer=model,
                vocab_size=vocab_size,
                model_type=model_type,
                **options,
            )
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"vocab_size={vocab_size}: SentencePiece cannot train on these texts: {error}") from error
        return cls(**_read_sentencepiece(model.getvalue(), normalizer))

    @classmethod
    def from_sentencepiece(cls, model: str | os.PathLike | bytes) -> "OdeTransformerTokenizer":
        """
        The tokenizer of a trained SentencePiece model.

        Args:
            model (`str`, `os.PathLike` or `bytes`): a `.model` file, or its content.

        Raises:
            ImportError: if sentencepiece or protobuf is not installed.
            ValueError: if the model is neither BPE nor unigram, its special ids are not bos 0, pad 1, eos 2 and unk 3,
                or it uses a feature that `tokenizers` cannot reproduce, such as `user_defined_symbols`.
        """
        return cls(**_read_sentencepiece(model))

    @classmethod
    def convert_to_native_format(cls, trust_remote_code: bool = False, **kwargs: Any) -> dict[str, Any]:
        if kwargs.get("tokenizer_file") is None:
            raise OSError(f"{kwargs.get('name_or_path')} holds no tokenizer.json.")
        return kwargs  # `__init__` opens the file

    def _save_pretrained(
        self, save_directory: str | os.PathLike, file_names: tuple[str, ...], **kwargs: Any
    ) -> tuple[str, ...]:
        # The first file is tokenizer_config.json. tokenizer.json has everything that encoding needs, so a class of
        # transformers can load it, and the files need no other package.
        with open(file_names[0], encoding="utf-8") as file:
            config = json.load(file)
        config["tokenizer_class"] = TokenizersBackend.__name__
        # The truncation and padding of the last call do not belong to the tokenizer.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        with open(file_names[0], "w", encoding="utf-8") as file:
            file.write(json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
        return super()._save_pretrained(save_directory, file_names, **kwargs)
