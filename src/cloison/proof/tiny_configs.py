"""The sizes of tiny models: what each field of a configuration becomes, by its name, and the exceptions by model type.

`cloison.proof.tiny` reads these tables; they hold data only. A field that no table names keeps its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["BY_FIELD", "BY_TYPE", "KIND_FIELDS", "NONE_TOO", "NOT_BUILT", "VARIANTS"]

VOCAB = 96
HIDDEN = 32
HEADS = 4
HEAD_DIM = 8
WINDOW = 4

KIND_FIELDS = ("layer_types", "mlp_layer_types", "layers_block_type", "attention_layers", "attn_layers", "indexer_types")
"""Fields that list the kind of each layer: one layer of every kind stays."""

BY_FIELD: Mapping[str, Any] = {
    # the width
    **dict.fromkeys(
        (
            "hidden_size",
            "d_model",
            "n_embd",
            "dim_model",
            "embedding_size",
            "word_embed_proj_dim",
            "backbone_hidden_size",
            "attention_hidden_size",
            "lru_width",
            "embedding_dim",
            "input_embedding_size",
            "emb_dim",
            "hidden_dim",
        ),
        HIDDEN,
    ),
    # attention
    **dict.fromkeys(
        (
            "num_attention_heads",
            "n_head",
            "n_heads",
            "num_heads",
            "decoder_attention_heads",
            "encoder_attention_heads",
            "num_decoder_attention_heads",
            "num_encoder_attention_heads",
            "attention_heads",
            "swa_num_attention_heads",
        ),
        HEADS,
    ),
    **dict.fromkeys(
        ("num_key_value_heads", "swa_num_key_value_heads", "num_kv_heads", "num_query_groups", "num_global_key_value_heads"), 2
    ),
    **dict.fromkeys(
        ("head_dim", "swa_head_dim", "d_kv", "kv_channels", "dim_head", "global_head_dim", "attention_head_dim"), HEAD_DIM
    ),
    **dict.fromkeys(("v_head_dim", "qk_nope_head_dim"), HEAD_DIM),
    **dict.fromkeys(("qk_rope_head_dim",), 4),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "o_lora_rank"), 16),
    # feed-forward
    **dict.fromkeys(
        (
            "intermediate_size",
            "ffn_dim",
            "d_ff",
            "n_inner",
            "ffn_hidden_size",
            "decoder_ffn_dim",
            "encoder_ffn_dim",
            "dff",
            "dim_ff",
            "feed_forward_size",
            "intermediate_size_mlp",
            "mlp_dim",
            "dense_intermediate_size",
            "shared_intermediate_size",
            "block_auto_ffn",
        ),
        48,
    ),
    **dict.fromkeys(
        (
            "moe_intermediate_size",
            "expert_ffn_hidden_size",
            "shared_expert_intermediate_size",
            "shared_experts_intermediate_size",
            "moe_shared_expert_intermediate_size",
        ),
        24,
    ),
    # experts
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "moe_k", "top_k_experts"), 2),
    **dict.fromkeys(
        ("n_group", "topk_group", "num_expert_group", "n_shared_experts", "num_shared_experts", "moe_num_shared_experts"), 1
    ),
    **dict.fromkeys(
        ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", "expert_layer_offset", "attn_layer_offset"), 1
    ),
    **dict.fromkeys(
        (
            "attn_layer_period",
            "expert_layer_period",
            "full_attention_interval",
            "global_attn_every_n_layers",
            "sliding_window_pattern",
            "no_rope_layer_interval",
            "layer_group_size",
        ),
        2,
    ),
    # depth
    **dict.fromkeys(
        (
            "num_hidden_layers",
            "n_layer",
            "n_layers",
            "num_layers",
            "decoder_layers",
            "encoder_layers",
            "num_decoder_layers",
            "num_encoder_layers",
            "depth",
        ),
        2,
    ),
    # vocabulary and tables
    **dict.fromkeys(("vocab_size", "decoder_vocab_size", "text_vocab_size", "vocab_size_per_layer_input"), VOCAB),
    **dict.fromkeys(
        (
            "max_position_embeddings",
            "n_positions",
            "n_ctx",
            "max_target_positions",
            "max_source_positions",
            "max_seq_len",
            "model_max_length",
            "context_length",
        ),
        512,
    ),
    **dict.fromkeys(("bos_token_id", "cls_token_id"), 1),
    **dict.fromkeys(("eos_token_id", "sep_token_id", "forced_eos_token_id", "eod_token_id"), 2),
    **dict.fromkeys(("decoder_start_token_id", "mask_token_id"), 3),
    # windows, chunks, convolutions, states: shorter than the samples
    **dict.fromkeys(
        (
            "sliding_window",
            "sliding_window_size",
            "attention_window_size",
            "attention_chunk_size",
            "local_attention",
            "window_size",
        ),
        WINDOW,
    ),
    **dict.fromkeys(("state_size", "ssm_state_size", "mamba_d_state", "mamba_d_conv", "conv_kernel"), 4),
    **dict.fromkeys(
        ("mamba_d_head", "mamba_head_dim", "mamba_headdim", "linear_key_head_dim", "linear_value_head_dim", "linear_head_dim"),
        8,
    ),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"), 8),
    **dict.fromkeys(("mamba_dt_rank", "time_step_rank", "linear_num_key_heads"), 2),
    **dict.fromkeys(("linear_num_value_heads", "linear_num_heads"), 4),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size"), 8),
    # sparse attention by selection
    **dict.fromkeys(("index_n_heads",), 2),
    **dict.fromkeys(("index_head_dim",), 8),
    **dict.fromkeys(("index_topk",), 4),
    # no noise
    **dict.fromkeys(
        (
            "dropout",
            "attention_dropout",
            "activation_dropout",
            "hidden_dropout",
            "hidden_dropout_prob",
            "attention_probs_dropout_prob",
            "attn_pdrop",
            "embd_pdrop",
            "resid_pdrop",
            "embedding_dropout",
            "resid_dropout",
            "residual_dropout",
            "classifier_dropout",
            "layerdrop",
            "decoder_layerdrop",
            "encoder_layerdrop",
            "attn_dropout",
            "embed_dropout",
            "mlp_dropout",
            "dropout_rate",
            "local_attention_probs_dropout_prob",
            "lsh_attention_probs_dropout_prob",
        ),
        0.0,
    ),
}
"""Field name to its tiny value. Applied where the default is a number (or a list of numbers, entry by entry); None stays None."""

NONE_TOO: Mapping[str, Any] = {"head_dim": HEAD_DIM, "num_key_value_heads": 2}
"""Fields that get their tiny value also where the default is None."""

BY_TYPE: Mapping[str, Mapping[str, Any]] = {
    "gemma4_assistant": {},
    "gptj": {"rotary_dim": 4},
    "codegen": {"rotary_dim": 4},
    "reformer": {
        "is_decoder": True,
        "attn_layers": ["local", "lsh"],
        "axial_pos_shape": [16, 32],
        "axial_pos_embds_dim": [16, 16],
        "attention_head_size": HEAD_DIM,
        "local_attn_chunk_length": 4,
        "lsh_attn_chunk_length": 4,
        "num_buckets": 2,
        "hash_seed": 0,
    },
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1},
}
"""Model type to settings that its own rules need, over `BY_FIELD`."""

NOT_BUILT: Mapping[str, str] = {}
"""Model type to the reason why no tiny model of it is a causal language model over token ids."""

VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {}
"""Name to (model type, changes): the same type with a part that its default leaves out."""
