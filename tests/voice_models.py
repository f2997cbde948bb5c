"""Tiny models with random weights in the form of the public files that a voice is made with."""

import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from duologue.token2wav.layout import SPEAKER, TOKENIZER
from duologue.token2wav.speech_tokenizer import SpeechTokenizer, SpeechTokenizerConfig

TINY = SpeechTokenizerConfig(width=128, heads=2, blocks=2)


def export_legacy(model: torch.nn.Module, args: tuple, path: Path, **names) -> None:
    """Export by the exporter of the public files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model.eval(), args, path, dynamo=False, opset_version=17, **names)


def write_tokenizer(model: SpeechTokenizer, path: Path) -> None:
    """Export a tokenizer under the node names of the public file, which has no encoder module."""
    export_legacy(
        model,
        (torch.randn(1, 128, 400), torch.tensor([400], dtype=torch.int32)),
        path,
        input_names=["feats", "feats_length"],
        output_names=["indices"],
        dynamic_axes={"feats": {2: "T"}, "indices": {1: "tokens"}},
    )
    file = onnx.load(path)
    for node in file.graph.node:
        node.name = node.name.replace("/encoder/", "/").replace(
            "/quantizer/project_down/", "/quantizer/project_in/"
        )
    onnx.save(file, path)


def random_tokenizer() -> SpeechTokenizer:
    """A tiny one whose tokens differ with the input."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model = SpeechTokenizer(TINY)
        for name, value in model.named_parameters():
            if name.endswith("project_down.weight"):
                value.data.mul_(3)
            elif value.dim() == 1:
                value.data.add_(0.1 * torch.randn(value.shape))
    return model.eval()


def write_speaker(path: Path) -> None:
    """The deviation of each of 80 bins over the clip, projected to 192 numbers."""
    weight = np.random.default_rng(5).normal(0, 0.2, (80, 192)).astype(np.float32)
    nodes = [
        helper.make_node("Mul", ["input", "input"], ["square"]),
        helper.make_node("ReduceMean", ["square"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["mean", "weight"], ["output"]),
    ]
    graph = helper.make_graph(
        nodes,
        "speaker",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["B", "T", 80])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["B", 192])],
        [numpy_helper.from_array(weight, "weight")],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)


def write_voice_models(folder: Path) -> None:
    """Both files under their public names."""
    write_tokenizer(random_tokenizer(), folder / TOKENIZER)
    write_speaker(folder / SPEAKER)
