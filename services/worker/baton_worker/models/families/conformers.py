"""Audio encoders that are conformers: of Gemma 3n, Phi-4-multimodal and Granite Speech."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.clip import part_of
from baton_worker.models.families.common import Config, architecture, layer_norm
from baton_worker.models.families.vision_common import text_model, with_tower
from baton_worker.spec import (
    BiasedConformer,
    BlockConformer,
    ConformerTower,
    Decoder,
    Dense,
    LocalConformer,
    Mlp,
    Norm,
    QFormer,
    SoftTokens,
    Step,
)

_USM: dict[str, Any] = {
    "vocab_size": 128,
    "vocab_offset": 262_144 + 128,
    "input_feat_size": 128,
    "hidden_size": 1536,
    "rms_norm_eps": 1e-6,
    "gradient_clipping": 1e10,
    "conf_attention_context_left": 13,
    "conf_attention_context_right": 0,
    "conf_attention_logit_cap": 50.0,
    "conf_num_attention_heads": 8,
    "conf_num_hidden_layers": 12,
    "conf_conv_kernel_size": 5,
    "conf_reduction_factor": 4,
    "conf_residual_weight": 0.5,
    "sscp_conv_channel_size": (128, 32),
    "sscp_conv_group_norm_eps": 1e-3,
    "sscp_conv_kernel_size": ((3, 3), (3, 3)),
    "sscp_conv_stride_size": ((2, 2), (2, 2)),
}
_PHI4: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 1536,
    "num_blocks": 24,
    "num_attention_heads": 16,
    "activation": "swish",
    "chunk_size": -1,
    "ext_pw_out_channel": 1024,
    "depthwise_separable_out_channel": 1024,
    "depthwise_multiplier": 1,
    "kernel_size": 3,
    "conv_activation": "swish",
    "input_size": 80,
    "conv_glu_type": "swish",
    "time_reduction": 8,
    "bias_max_distance": 1000,
    "bias_symmetric": False,
    "nemo_activation": "relu",
    "nemo_conv_channels": 1024,
    "downsample_rate": 1,
    "audio_token_id": 200_011,
}
_PHI4_SPELLED = {
    "hidden_size": "attention_dim",
    "intermediate_size": "linear_units",
    "num_attention_heads": "attention_heads",
    "depthwise_separable_out_channel": "depthwise_seperable_out_channel",
}
"""Names of Microsoft's own code."""
_PHI4_LONGEST = 500
"""States that the encoder was trained on at one time."""
_GRANITE: dict[str, Any] = {
    "input_dim": 160,
    "num_layers": 10,
    "hidden_dim": 1024,
    "feedforward_mult": 4,
    "num_heads": 8,
    "dim_head": None,
    "output_dim": 42,
    "context_size": 200,
    "max_pos_emb": 512,
    "conv_kernel_size": 15,
    "conv_expansion_factor": 2,
}
_QFORMER: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "cross_attention_frequency": 2,
    "encoder_hidden_size": 1408,
}
"""Defaults of transformers."""
_RENAMES = (
    (r"^model\.(encoder|projector|language_model)\.", r"\1."),
    (r"^language_model\.(model|lm_head)\.", r"\1."),
    (r"^language_model\.", "model."),
)


def gemma3n_audio(c: Config, hidden: int) -> ConformerTower:
    """Gemma 3n's encoder."""
    a = part_of(c, "audio", _USM)
    end = getattr(c, "eoa_token_id", None) or a.vocab_offset
    if not 0 <= end - a.vocab_offset < a.vocab_size:
        raise AttributeError(
            f"eoa_token_id {end} is not among the {a.vocab_size} tokens from {a.vocab_offset} on"
        )
    last = part_of(c, "text", {"vocab_size": 262_400}).vocab_size - 1 - a.vocab_offset
    if not 0 <= last < a.vocab_size:
        raise AttributeError("the last token of the vocabulary is none of the audio_config's")
    return ConformerTower(
        encoder=_local(a),
        audio_token=getattr(c, "audio_token_id", None) or a.vocab_offset + 1,
        hidden=hidden,
        soft_tokens=SoftTokens(
            name="embed_audio",
            rows=a.vocab_size,
            eps=a.rms_norm_eps,
            count=getattr(c, "audio_soft_tokens_per_image", None) or 188,
            pad_row=last,
            end_row=end - a.vocab_offset,
            end_token=end,
        ),
    )


def _local(a: Any) -> LocalConformer:
    return LocalConformer(
        prefix="audio_tower",
        bins=a.input_feat_size,
        hidden=a.hidden_size,
        num_layers=a.conf_num_hidden_layers,
        num_heads=a.conf_num_attention_heads,
        intermediate=4 * a.hidden_size,
        kernel=a.conf_conv_kernel_size,
        norm=Norm(a.rms_norm_eps),
        channels=tuple(a.sscp_conv_channel_size),
        sizes=_pairs(a.sscp_conv_kernel_size),
        strides=_pairs(a.sscp_conv_stride_size),
        group_eps=a.sscp_conv_group_norm_eps,
        past=max(0, a.conf_attention_context_left - 1),
        future=a.conf_attention_context_right,
        softcap=a.conf_attention_logit_cap,
        limit=a.gradient_clipping,
        half=a.conf_residual_weight,
        reduction=a.conf_reduction_factor,
    )


def _pairs(pairs: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    (a, b), (c, d) = pairs
    return (a, b), (c, d)


def phi4_audio(c: Config, hidden: int, prefix: str) -> ConformerTower:
    """Phi-4-multimodal's encoder, for speech without images beside it."""
    a = _phi4(c)
    kinds = {a.activation, a.conv_activation, a.conv_glu_type}
    widths = {a.ext_pw_out_channel, a.depthwise_separable_out_channel, a.hidden_size}
    if len(kinds) > 1 or len(widths) > 1 or a.depthwise_multiplier != 1:
        raise AttributeError("audio_config has convolutions of several widths or activations")
    if a.chunk_size > 0 or a.nemo_activation != "relu" or a.downsample_rate != 1:
        raise AttributeError(
            "audio_config asks for chunk_size, nemo_activation or downsample_rate other than -1, "
            "relu and 1"
        )
    encoder = BiasedConformer(
        prefix=f"{prefix}.encoder",
        bins=a.input_size,
        hidden=a.hidden_size,
        num_layers=a.num_blocks,
        num_heads=a.num_attention_heads,
        intermediate=a.intermediate_size,
        kernel=a.kernel_size,
        norm=layer_norm(1e-5),
        activation=a.activation,
        channels=a.nemo_conv_channels,
        reduction=a.time_reduction,
        farthest=a.bias_max_distance,
        symmetric=a.bias_symmetric,
        longest=_PHI4_LONGEST,
    )
    steps = (
        Dense(f"{prefix}.up_proj_for_speech", a.hidden_size, hidden, activation="gelu"),
        Dense(f"{prefix}.down_proj_for_speech", hidden, hidden),
    )
    return ConformerTower(
        encoder=encoder, audio_token=a.audio_token_id, hidden=hidden, projector=steps
    )


def _phi4(c: Config) -> Any:
    """The encoder's part of a config, of transformers or of Microsoft's own code."""
    if getattr(c, "audio_config", None) is not None:
        return part_of(c, "audio", _PHI4)
    audio_config = vars(c.audio_processor.config)
    nested = {
        name: audio_config[theirs]
        for name, theirs in _PHI4_SPELLED.items()
        if theirs in audio_config
    }
    nested["nemo_conv_channels"] = audio_config["nemo_conv_settings"].conv_channels
    nested["bias_max_distance"] = audio_config["relative_attention_bias_args"].t5_bias_max_distance
    return SimpleNamespace(**_PHI4 | audio_config | nested)


@architecture("GraniteSpeechForConditionalGeneration")
def granite_speech(c: Config) -> Decoder:
    """Granite Speech (arXiv:2505.08699). Its adapter is for requests with sounds."""
    decoder, a = text_model(c, "granite", tied=True), part_of(c, "encoder", _GRANITE)
    tower = ConformerTower(
        encoder=_blocks(a),
        audio_token=_audio_token(c),
        hidden=decoder.hidden,
        projector=_qformer(c, a.hidden_dim, decoder.hidden),
        window=getattr(c, "window_size", 15),
    )
    unused = tuple(
        f"encoder.layers.{layer}.conv.batch_norm.num_batches_tracked"
        for layer in range(a.num_layers)
    )
    return with_tower(decoder, tower, _RENAMES, unused)


def _blocks(a: Any) -> BlockConformer:
    return BlockConformer(
        prefix="encoder",
        bins=a.input_dim,
        hidden=a.hidden_dim,
        num_layers=a.num_layers,
        num_heads=a.num_heads,
        head_dim=a.dim_head or a.hidden_dim // a.num_heads,
        intermediate=a.hidden_dim * a.feedforward_mult,
        kernel=a.conv_kernel_size,
        norm=layer_norm(1e-5),
        block=a.context_size,
        farthest=a.max_pos_emb,
        expansion=a.conv_expansion_factor,
        labels=a.output_dim,
    )


def _qformer(c: Config, inputs: int, hidden: int) -> tuple[Step, ...]:
    q = SimpleNamespace(**_QFORMER | vars(getattr(c, "projector_config", SimpleNamespace())))
    if q.encoder_hidden_size != inputs:
        raise AttributeError(
            f"projector_config.encoder_hidden_size {q.encoder_hidden_size} is not {inputs}"
        )
    queries = getattr(c, "window_size", 15) // getattr(c, "downsample_rate", 5)
    return (
        QFormer(
            "projector.qformer",
            "projector.query",
            queries,
            inputs,
            q.hidden_size,
            q.num_attention_heads,
            q.num_hidden_layers,
            q.cross_attention_frequency,
            Mlp(q.intermediate_size, q.hidden_act, bias=True),
            layer_norm(q.layer_norm_eps),
            class_token=False,
        ),
        Dense("projector.linear", q.hidden_size, hidden),
    )


def _audio_token(c: Config) -> int:
    for name in ("audio_token_index", "audio_token_id"):
        if (value := getattr(c, name, None)) is not None:
            return int(value)
    return 49_155
