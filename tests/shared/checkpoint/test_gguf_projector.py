"""Which encoder belongs to a GGUF file, and what its configs would say."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import pytest

from baton.checkpoint.gguf_projector import PROJECTORS, projector_file, read_projector
from baton.errors import ModelError

FIELDS = {"image_size": 30, "patch_size": 5, "embedding_length": 8, "block_count": 2}
FIELDS |= {"attention.head_count": 2, "projection_dim": 16}


def text(path: Path, *tokens: str, width: int = 16, architecture: str = "llama") -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_embedding_length(width)
    writer.add_token_list(["a", *tokens])
    return closed(writer, path)


def encoder(
    path: Path, kind: str = "idefics3", rows: int = 12, projector: int = 0, **more: int
) -> Path:
    """`projector` is the number of the last layer of a projector of LLaVA."""
    writer = gguf.GGUFWriter(path, "clip")
    if kind:
        writer.add_string("clip.projector_type", kind)
    writer.add_bool("clip.has_llava_projector", bool(projector))
    for key, value in (FIELDS | more).items():
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    for part in ("mean", "std"):
        writer.add_array(f"clip.vision.image_{part}", [0.5, 0.5, 0.5])
    names = {"v.blk.0.ffn_up": (rows, 8), "v.blk.0.ffn_down": (8, rows)}
    names |= {f"mm.{number}": (16, 16) for number in range(2, projector + 1)}
    for name, shape in names.items():
        stored = f"{name}.weight"
        writer.add_tensor_info(stored, shape, gguf.np.dtype("float32"), shape[0] * shape[1] * 4)
    return closed(writer, path)


def closed(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return path


def test_a_file_without_a_neighbour_has_no_encoder(tmp_path: Path) -> None:
    model = text(tmp_path / "m.gguf")
    assert projector_file(model) is None and read_projector(model) is None
    assert projector_file(tmp_path) is None


@pytest.mark.row("F03.22")
def test_the_encoder_beside_a_file_is_read_under_hugging_face_names(tmp_path: Path) -> None:
    model = text(tmp_path / "m-q4.gguf", "b", "<image>")
    found = read_projector(model)
    assert found is None
    path = encoder(tmp_path / "m-mmproj-f16.gguf")
    found = read_projector(model)
    assert found is not None and found.path == path and found.width == 16
    assert found.architecture == "SmolVLMForConditionalGeneration" and found.text_type == "llama"
    vision = found.config["vision_config"]
    assert (vision["hidden_size"], vision["intermediate_size"]) == (8, 12)
    assert found.config["image_token_id"] == 2
    assert found.image_processor["max_image_size"] == {"longest_edge": 30}
    assert found.image_processor["image_mean"] == [0.5, 0.5, 0.5]


def test_files_of_llava_name_neither_kind_nor_image_token(tmp_path: Path) -> None:
    model, path = tmp_path / "m.gguf", tmp_path / "mmproj.gguf"
    encoder(path, "", projector=2, projection_dim=0)
    for tokens, token in (
        (("<unk>", "<image>"), 2),
        (("<unk>", "<|reserved_special_token_1|>", "<|reserved_special_token_11|>"), 3),
        (("<unk>",), 1),
    ):
        text(model, *tokens, architecture="granite")
        found = read_projector(model)
        assert found is not None and found.config["image_token_id"] == token
    assert (found.kind, found.text_type, found.width) == ("mlp", "granite", 16)
    assert found.architecture == "LlavaForConditionalGeneration"
    assert found.config["vision_config"]["model_type"] == "siglip_vision_model"
    assert found.config["vision_feature_layer"] == 2
    assert found.image_processor["image_processor_type"] == "SiglipImageProcessor"
    encoder(path, "mlp", projector=3)
    with pytest.raises(ModelError, match="projector has norms"):
        read_projector(model)


def test_encoders_that_do_not_fit_are_refused_with_a_reason(tmp_path: Path) -> None:
    model = text(tmp_path / "m.gguf")
    path = encoder(tmp_path / "mmproj.gguf")
    with pytest.raises(ModelError, match="vocabulary has no <image>"):
        read_projector(model)
    text(model, "<image>", width=32)
    with pytest.raises(ModelError, match=r"another model than m\.gguf"):
        read_projector(model)
    text(model, "<image>")
    for kind, named in (("resampler", "kind resampler, known are gemma3"), ("", "without images")):
        encoder(path, kind)
        with pytest.raises(ModelError, match=named):
            read_projector(model)
    encoder(path, "qwen2.5vl_merger", n_wa_pattern=0)
    text(model, "<|image_pad|>", architecture="qwen2vl")
    with pytest.raises(ModelError, match=r"field of m\.gguf or mmproj\.gguf .*ValueError"):
        read_projector(model)
    shutil.copy(path, tmp_path / "mmproj-2.gguf")
    with pytest.raises(ModelError, match="several encoders"):
        read_projector(model)


def test_every_kind_names_an_image_token() -> None:
    assert all(row.tokens and row.texts for row in PROJECTORS.values())
