"""A small graph with caches, written out by hand, and the same in torch."""

import onnx
import torch
from onnx import TensorProto, helper

from duologue.engines.graph import Port

WIDTH = 4

INPUTS = (
    Port("x", "float32", ("rows", "frames", WIDTH)),
    Port("t", "float32", (1,)),
    Port("cache", "float16", ("rows", 2, WIDTH)),
    Port("kv", "float16", ("rows", "cached", WIDTH)),
)
OUTPUTS = (
    Port("y", "float32", ("rows", "frames", WIDTH)),
    Port("new_cache", "float16", ("rows", 2, WIDTH)),
    Port("new_kv", "float16", ("rows", "2*frames", WIDTH)),
)
PROFILES = (
    {"rows": (2, 2, 8), "frames": (1, 5, 10), "cached": (0, 5, 20)},
    {"rows": (2, 2, 2), "frames": (1, 20, 100), "cached": (0, 0, 0)},
)
_TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


class Toy(torch.nn.Module):
    """y = x + t + what is cached; the newest two frames; every frame twice."""

    def forward(self, x, t, cache, kv):
        past = kv.float().sum(1, keepdim=True) + cache.float().sum(1, keepdim=True)
        half = x.half()
        return x + t + past, torch.cat([cache, half], 1)[:, -2:], torch.cat([half, half], 1)


def toy_onnx() -> bytes:
    nodes = [
        ("Cast", ["kv"], ["kv32"], {"to": TensorProto.FLOAT}),
        ("Cast", ["cache"], ["cache32"], {"to": TensorProto.FLOAT}),
        ("Concat", ["kv32", "cache32"], ["past"], {"axis": 1}),
        ("ReduceSum", ["past", "one"], ["sum"], {"keepdims": 1}),
        ("Add", ["x", "t"], ["xt"], {}),
        ("Add", ["xt", "sum"], ["y"], {}),
        ("Cast", ["x"], ["x16"], {"to": TensorProto.FLOAT16}),
        ("Concat", ["cache", "x16"], ["all"], {"axis": 1}),
        ("Slice", ["all", "minus_two", "end", "one"], ["new_cache"], {}),
        ("Concat", ["x16", "x16"], ["new_kv"], {"axis": 1}),
    ]
    constants = {"one": 1, "minus_two": -2, "end": 2**62}

    def infos(ports):
        return [helper.make_tensor_value_info(p.name, _TYPES[p.dtype], p.shape) for p in ports]

    graph = helper.make_graph(
        [helper.make_node(op, inputs, outputs, **more) for op, inputs, outputs, more in nodes],
        "toy",
        infos(INPUTS),
        infos(OUTPUTS),
        [helper.make_tensor(name, TensorProto.INT64, [1], [at]) for name, at in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    return model.SerializeToString()
