"""A TensorRT that offers what the three real bindings share, and runs plans on ONNX Runtime.

Its "plans" are ONNX files. A context reads inputs from, and writes outputs to, the addresses that
it was given, so a wrong address, shape or name gives wrong numbers, as in the real one.
`test_tensorrt_bindings.py` holds every name here against the real bindings.
"""

import ctypes
import enum
from types import SimpleNamespace

import numpy as np

from duologue.engines.onnx import OnnxGraph


class DataType(enum.Enum):
    FLOAT = "float32"
    HALF = "float16"
    INT64 = "int64"


class TensorIOMode(enum.Enum):
    INPUT = 0
    OUTPUT = 1


class ExecutionContextAllocationStrategy(enum.Enum):
    ON_PROFILE_CHANGE = 0


class ILogger:
    Severity = enum.Enum("Severity", "INTERNAL_ERROR ERROR WARNING INFO VERBOSE")

    def log(self, severity, msg):
        raise NotImplementedError


class IProgressMonitor:
    pass


class IExecutionContext:
    def __init__(self, engine):
        self._engine = engine
        self._shapes, self._addresses = {}, {}
        self._profile = None

    def set_optimization_profile_async(self, profile_index, stream_handle):
        self._profile = profile_index
        self._engine._calls.append(("profile", profile_index, stream_handle))
        return True

    def set_input_shape(self, name, shape):
        self._engine._calls.append(("shape", name, tuple(shape)))
        self._shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name, memory):
        assert memory, f"{name} has no address"
        self._addresses[name] = memory
        return True

    def execute_async_v3(self, stream_handle):
        self._engine._calls.append(("execute", self._profile, stream_handle))
        graph = self._engine._graph
        arrays = {p.name: self._at(p, self._shapes[p.name]).copy() for p in graph.inputs}
        for port in graph.outputs:
            result = graph.run(arrays)[port.name]
            self._at(port, result.shape)[...] = result
        return self._engine._healthy

    def _at(self, port, shape):
        """The array at the address of a tensor."""
        dtype = np.dtype(port.dtype)
        size = int(np.prod(shape))
        if not size:
            return np.zeros(shape, dtype)
        memory = (ctypes.c_byte * (size * dtype.itemsize)).from_address(self._addresses[port.name])
        return np.frombuffer(memory, dtype).reshape(shape)


class ICudaEngine:
    def __init__(self, graph, profiles, calls):
        self._graph, self._calls, self._healthy = graph, calls, True
        # TensorRT names no order.
        self._ports = {p.name: p for p in (*graph.outputs, *graph.inputs)}
        self.num_io_tensors = len(self._ports)
        self.num_optimization_profiles = profiles

    def get_tensor_name(self, index):
        return list(self._ports)[index]

    def get_tensor_mode(self, name):
        is_input = name in {port.name for port in self._graph.inputs}
        return TensorIOMode.INPUT if is_input else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name):
        return DataType(self._ports[name].dtype)

    def create_execution_context(self, strategy):
        assert strategy is ExecutionContextAllocationStrategy.ON_PROFILE_CHANGE
        return IExecutionContext(self)


class ITensor:
    def __init__(self, port):
        self.name, self.dtype = port.name, DataType(port.dtype)
        self.shape = tuple(-1 if isinstance(size, str) else size for size in port.shape)


class INetworkDefinition:
    def __init__(self):
        self._graph = None

    @property
    def num_inputs(self):
        return len(self._graph.inputs)

    @property
    def num_outputs(self):
        return len(self._graph.outputs)

    def get_input(self, index):
        return ITensor(self._graph.inputs[index])

    def get_output(self, index):
        return ITensor(self._graph.outputs[index])


class ParserError:
    def __init__(self, text):
        self._text = text

    def desc(self):
        return self._text


class OnnxParser:
    def __init__(self, network, logger):
        self._network, self._errors = network, []

    @property
    def num_errors(self):
        return len(self._errors)

    def get_error(self, index):
        return self._errors[index]

    def parse(self, model):
        try:
            self._network._graph, self._network._model = OnnxGraph(model), model
        except Exception as error:
            self._errors.append(ParserError(str(error)))
        return not self._errors


class IOptimizationProfile:
    def __init__(self):
        self._shapes = {}

    def set_shape(self, input, min, opt, max):
        self._shapes[input] = (min, opt, max)


class IBuilderConfig:
    def __init__(self):
        self._profiles = []
        self.progress_monitor = None

    def add_optimization_profile(self, profile):
        self._profiles.append(profile._shapes)
        return len(self._profiles) - 1


CLASSES = [
    DataType,
    TensorIOMode,
    ExecutionContextAllocationStrategy,
    ILogger,
    IProgressMonitor,
    IExecutionContext,
    ICudaEngine,
    ITensor,
    INetworkDefinition,
    ParserError,
    OnnxParser,
    IOptimizationProfile,
    IBuilderConfig,
]


def make(version: str = "11.4.0.106", *, strongly_typed: int = 0, profiles: int = 1):
    """The module; `calls` tells what its contexts were asked for, `configs` what was built."""
    calls, configs, engines = [], [], []

    class NetworkDefinitionCreationFlag(enum.IntEnum):
        STRONGLY_TYPED = strongly_typed

    class Builder:
        def __init__(self, logger):
            self._logger = logger

        def create_network(self, flags):
            assert flags == 1 << strongly_typed
            return INetworkDefinition()

        def create_builder_config(self):
            return IBuilderConfig()

        def create_optimization_profile(self):
            return IOptimizationProfile()

        def build_serialized_network(self, network, config):
            configs.append(config)
            return network._model

    class Runtime:
        def __init__(self, logger):
            self._logger = logger

        def deserialize_cuda_engine(self, serialized_engine):
            if not serialized_engine.startswith(b"\x08"):
                self._logger.log(ILogger.Severity.ERROR, "Magic tag does not match")
                return None
            engines.append(ICudaEngine(OnnxGraph(serialized_engine), profiles, calls))
            return engines[-1]

    made = [NetworkDefinitionCreationFlag, Builder, Runtime]
    classes = {cls.__name__: cls for cls in (*CLASSES, *made)}
    return SimpleNamespace(
        __version__=version, calls=calls, configs=configs, engines=engines, **classes
    )
