"""The sizes of tiny models: what each field of a configuration becomes, by its name, and the exceptions by model type.

`cloison.proof.tiny` reads these tables; they hold data only. A field that no table names keeps its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["BY_FIELD", "BY_TYPE", "FLAGS", "KIND_FIELDS", "NONE_TOO", "NOT_BUILT", "VARIANTS"]

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
    **dict.fromkeys(("v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim"), HEAD_DIM),
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
    **dict.fromkeys(
        ("vocab_size", "decoder_vocab_size", "text_vocab_size", "unpadded_vocab_size", "vocab_size_per_layer_input"), VOCAB
    ),
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
    **dict.fromkeys(("index_n_heads",), 16),
    **dict.fromkeys(("index_head_dim",), 8),
    **dict.fromkeys(("index_topk",), 4),
    **dict.fromkeys(("index_block_size", "num_local_blocks"), 4),
    "index_topk_blocks": 2,
    # side tables
    **dict.fromkeys(("hidden_size_per_layer_input", "laurel_rank", "hc_lowrank", "router_hidden_size", "adapter_rank"), 8),
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
"""Field name to its tiny value. Applied where the default is a number, or a list of numbers entry by entry; None stays None."""

FLAGS: Mapping[str, bool] = {"is_decoder": True, "causal": True}
"""Fields that make a type causal."""

NONE_TOO: Mapping[str, Any] = {
    "head_dim": HEAD_DIM,
    "num_key_value_heads": 2,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
}
"""Fields that get their tiny value also where the default is None."""

_QSA = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 4,
    "indexer_compress_ratio": 2,
    "ngram_vocab_size_base": 64,
    "make_ngram_vocab_size_divisible_by": 8,
    "heads_per_ngram": 2,
    "ple_embed_dim": 16,
    "split_ngram_parts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
_GEMMA3N = {
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "intermediate_size": 48,
    "activation_sparsity_pattern": [0.9, 0.0, 0.9, 0.0],
}
_BLT_LOCAL = {"hidden_size_global": 64, "intermediate_size": 48}

BY_TYPE: Mapping[str, Mapping[str, Any]] = {
    # two kinds of layers that the type knows and that its default leaves out
    "cohere2_moe": {"mlp_layer_types": ["dense", "sparse"]},
    "dots1": {"layer_types": ["full_attention", "sliding_attention"]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "laguna": {"layer_types": ["full_attention", "sliding_attention"], "num_attention_heads_per_layer": [4, 8]},
    "mellum": {"layer_types": ["full_attention", "sliding_attention"], "mlp_layer_types": ["dense", "sparse"]},
    "ministral": {"layer_types": ["sliding_attention", "full_attention"]},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    # rules of their own
    "blt": {"encoder_hash_byte_group_vocab": 500, "patching_threshold": 4.0},
    "blt_local_encoder": _BLT_LOCAL,
    "blt_local_decoder": _BLT_LOCAL,
    "blt_global_transformer": {"hidden_size": 64, "head_dim": 16},
    "codegen": {"rotary_dim": 4},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]},
            "full_attention": None,
        },
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_v4": {
        "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention", "sliding_attention"],
        "mlp_layer_types": ["hash_moe", "moe", "moe"],
        "num_hidden_layers": 3,
        "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4},
        "o_groups": 2,
    },
    "dots3_note_vision_encoder": {"adapter_in_dim": HIDDEN, "adapter_out_dim": HIDDEN},
    "dots3_note_audio_encoder": {"adapter_input_size": HIDDEN, "adapter_out_dim": HIDDEN},
    "dory": {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "num_hidden_layers": 3,
        "n_input_layers": 1,
        "n_recurrent_layers": 1,
        "n_output_layers": 1,
    },
    "dots3_note_text": {"head_dim": 16, "per_layer_config": {"2": {"num_attention_heads": 8, "num_key_value_heads": 8}}},
    "falcon_h1": {"mamba_d_ssm": 64},
    "gemma3n_text": _GEMMA3N,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "attention_layers": ["global", "local"], "num_layers": 2},
    "gptj": {"rotary_dim": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"zero_expert_num": 2},
    "mamba2": {"num_heads": 8},
    "qwen4_exp_text": _QSA,
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
    "zaya": {
        "layer_types": ["hybrid", "hybrid_sliding"],
        "sliding_window": WINDOW,
        "num_experts_per_tok": 1,
        "router_hidden_size": 16,
    },
    "xlnet": {"attn_type": "uni", "d_head": HEAD_DIM, "d_inner": 48},
    "roc_bert": {
        "pronunciation_vocab_size": VOCAB,
        "shape_vocab_size": VOCAB,
        "pronunciation_embed_dim": 16,
        "shape_embed_dim": 16,
        "enable_pronunciation": False,
        "enable_shape": False,
    },
    "big_bird": {"attention_type": "original_full"},
    "rembert": {"output_embedding_size": 40},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "num_hidden_layers": 4,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
    },
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "num_hidden_layers": 4,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
    },
}
"""Model type to settings that its own rules need, over `BY_FIELD`."""

NOT_BUILT: Mapping[str, str] = {
    "gemma3n": "its vision tower needs the package timm; its text model is gemma3n_text",
    "gemma4_assistant": "a drafter: it reads the hidden states and the keys of another model, not token ids",
    "gemma4_unified_assistant": "a drafter: it reads the hidden states and the keys of another model, not token ids",
    "musicgen": "its rows are audio codes of several codebooks, not one token sequence",
    "musicgen_melody": "its rows are audio codes of several codebooks, not one token sequence",
}
"""Model type to the reason why no tiny model of it is a causal language model over token ids."""

_SLIDING = {"sliding_window": WINDOW, "layer_types": ["full_attention", "sliding_attention"]}
_QWEN_SLIDING = {**_SLIDING, "use_sliding_window": True, "max_window_layers": 1}
_SCALED = {"rope_theta": 10000.0, "original_max_position_embeddings": 16}

VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    # sliding windows that the default leaves out
    "mixtral+window": ("mixtral", {"sliding_window": WINDOW}),
    "phi3+window": ("phi3", {"sliding_window": WINDOW}),
    "phimoe+window": ("phimoe", {"sliding_window": WINDOW}),
    "qwen2+window": ("qwen2", _QWEN_SLIDING),
    "qwen2_moe+window": ("qwen2_moe", _QWEN_SLIDING),
    "qwen3+window": ("qwen3", _QWEN_SLIDING),
    "qwen3_moe+window": ("qwen3_moe", {"sliding_window": WINDOW, "use_sliding_window": True}),
    "smollm3+window": ("smollm3", _QWEN_SLIDING),
    "starcoder2+window": ("starcoder2", {"sliding_window": WINDOW}),
    "mistral-window": ("mistral", {"sliding_window": None}),
    # rotary scaling: by a factor, and by the longest position of the batch
    "llama+linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}),
    "llama+llama3": (
        "llama",
        {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **_SCALED}},
    ),
    "llama+yarn": ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, **_SCALED}}),
    "llama+dynamic": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}, "max_position_embeddings": 16},
    ),
    "phi3+longrope": (
        "phi3",
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "short_factor": [1.0] * 4,
                "long_factor": [4.0, 6.0, 8.0, 10.0],
                **_SCALED,
            },
            "original_max_position_embeddings": 16,
        },
    ),
    # positions, heads and blocks in another way
    "falcon+alibi": ("falcon", {"alibi": True}),
    "falcon+new_decoder": ("falcon", {"new_decoder_architecture": True}),
    "gpt_bigcode-mqa": ("gpt_bigcode", {"multi_query": False}),
    "gpt_neox-parallel": ("gpt_neox", {"use_parallel_residual": False}),
    "gpt2+inverse_layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True}),
    "opt-pre_norm": ("opt", {"do_layer_norm_before": False}),
    "gemma4_text+moe": (
        "gemma4_text",
        {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 24},
    ),
    "gemma4_text+shared_keys": (
        "gemma4_text",
        {
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "per_layer_config": {"1": {"head_dim": 16}, "3": {"head_dim": 16}},
        },
    ),
    "qwen4_exp_text+ngrams": ("qwen4_exp_text", {"ple_layer_ids": [1], "eos_token_id": 2}),
    "zamba2+adapters": ("zamba2", {"use_shared_attention_adapter": True, "num_mem_blocks": 2, "num_key_value_heads": HEADS}),
}
"""Name to (model type, changes): the same type with a part that its default leaves out, or without one that it has."""
