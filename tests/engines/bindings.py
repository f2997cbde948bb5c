"""What a TensorRT binding offers, as JSON: class -> attribute -> docstring. Run as a program.

`bindings.py MODULE [LIBRARY ...]`: the libraries are loaded first. The wheels with the bindings of
TensorRT 10 and 11 come without the libraries that they are linked to; stand-ins with the same entry
points are enough to import them, and to do nothing else.
"""

import ctypes
import importlib
import json
import sys

ENTRY_POINTS = """createInferBuilder_INTERNAL createInferRuntime_INTERNAL
    createInferRefitter_INTERNAL createNvOnnxParser_INTERNAL createNvOnnxParserRefitter_INTERNAL
    getNvOnnxParserVersion getPluginRegistry getBuilderPluginRegistry
    initLibNvInferPlugins""".split()


def main(module: str, *libraries: str) -> None:
    for library in libraries:
        if library.endswith("_libs"):
            importlib.import_module(library)
        else:
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    trt = importlib.import_module(module)
    classes = {}
    for name in dir(trt):
        found = getattr(trt, name)
        if isinstance(found, type):
            classes[name] = {at: getattr(found, at).__doc__ or "" for at in dir(found)}
    classes["module"] = {name: "" for name in dir(trt)}
    classes["version"] = {trt.__version__: ""}
    flag = trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED
    classes["strongly_typed"] = {str(int(flag)): ""}
    print(json.dumps(classes))


if __name__ == "__main__":
    main(*sys.argv[1:])
