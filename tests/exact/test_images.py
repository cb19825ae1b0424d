"""Models of text and images, on text: exact by the text's own positions; what is not text is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import cloison  # noqa: E402
from cloison.errors import InputError  # noqa: E402
from cloison.exact import adapt  # noqa: E402
from cloison.exact.twin import twin_of  # noqa: E402
from cloison.proof.tiny import livened, tiny_config  # noqa: E402
from tests.exact import helpers  # noqa: E402

VISION = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION |= {"image_size": 28, "patch_size": 14}
QWEN_VISION = {"depth": 3, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 32}
ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
TEXT = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT |= {"num_key_value_heads": 2, "max_position_embeddings": 128, "rope_parameters": ROPE}
IDS = {"image_token_id": 95, "video_token_id": 94, "vision_start_token_id": 93, "vision_end_token_id": 92}


def llava():
    vision = transformers.CLIPVisionConfig(**VISION)
    return transformers.LlavaConfig(vision_config=vision, text_config=tiny_config("llama"), image_token_index=95)


def gemma3():
    vision = transformers.SiglipVisionConfig(**VISION)
    ids = {"image_token_id": 95, "boi_token_index": 94, "eoi_token_index": 93, "mm_tokens_per_image": 4}
    return transformers.Gemma3Config(text_config=tiny_config("gemma3_text"), vision_config=vision, **ids)


def paligemma():
    vision = transformers.SiglipVisionConfig(**VISION, projection_dim=32)
    text = tiny_config("gemma")
    return transformers.PaliGemmaConfig(text_config=text, vision_config=vision, projection_dim=32, image_token_index=95)


MODELS = {
    "LlavaForConditionalGeneration": (llava, "positions from 0"),
    "Gemma3ForConditionalGeneration": (gemma3, "positions from 0"),
    "PaliGemmaForConditionalGeneration": (paligemma, ""),
    "Qwen2VLForConditionalGeneration": (
        lambda: tiny_config("qwen2_vl", text_config=TEXT, vision_config=QWEN_VISION, **IDS),
        "positions from 0 in 4 planes",
    ),
    "Qwen2_5_VLForConditionalGeneration": (
        lambda: tiny_config("qwen2_5_vl", text_config=TEXT, vision_config=QWEN_VISION, **IDS),
        "positions from 0 in 4 planes",
    ),
}


def built(name):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, name)(MODELS[name][0]())
    livened(model, 0)
    return model.train()


@pytest.mark.parametrize("name", MODELS)
def test_text_is_exact_or_refused(name):
    model = built(name)
    adapter = adapt(model, bidirectional=name.startswith("Pali"), show=False)
    assert MODELS[name][1] in adapter.way.detail
    blocks = helpers.blocks_of(vocabulary=90)
    _, wanted = helpers.alone_gradients(model, blocks)
    batch = adapter.collate(blocks)
    helpers.assert_same_gradients(helpers.gradients(model, adapter(**batch).loss), wanted)
    assert cloison.verify(adapter, seed=3, bidirectional=name.startswith("Pali")).ok
    with pytest.raises(InputError, match=r"pixel_values is \[1, 3, 28, 28\]: the proof is of text"):
        adapter(**batch, pixel_values=torch.zeros(1, 3, 28, 28))


def test_a_twin_has_one_layer_of_what_reads_images():
    """The towers of real models have hundreds of millions of weights, which text does not pass."""
    model = built("Qwen2VLForConditionalGeneration")
    twin, said = twin_of(model)
    assert (len(model.model.visual.blocks), len(twin.model.visual.blocks)) == (3, 1)
    assert len(twin.model.language_model.layers) == 2 and said.startswith("chosen on a twin of 2 layers")
