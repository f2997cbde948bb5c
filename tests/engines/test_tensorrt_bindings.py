"""The fake TensorRT that drives runner and builder, against the real bindings."""

import inspect
import re

import fake_tensorrt
import pytest

FAKES = {name: cls for name, cls in vars(fake_tensorrt.make()).items() if isinstance(cls, type)}
# What the code uses of TensorRT for RTX alone; the real one builds in test_tensorrt_build.py.
SUBCLASSED = {
    "ILogger": {"log", "Severity"},
    "IProgressMonitor": {"phase_start", "step_complete", "phase_finish"},
}


def members(cls: type) -> set[str]:
    """Public attributes, those that instances set included."""
    source = inspect.getsource(cls)
    own = set(re.findall(r"self\.([a-z]\w*)", source)) - {"value", "name"} | {
        name for name in vars(cls) if not name.startswith("_")
    }
    return own


def overloads(doc: str) -> list[list[str]]:
    """Parameter names of each signature in a binding's docstring, without self."""
    found = re.findall(r"^(?:\d+\. )?\w+\(self: [\w.]+(.*)\) -> ", doc, re.MULTILINE)
    return [re.findall(r", (\w+): ", f"{parameters}") for parameters in found]


@pytest.mark.parametrize("name", sorted(FAKES))
def test_the_fake_offers_nothing_that_a_real_binding_lacks(binding, name):
    real = binding[name]
    assert members(FAKES[name]) | SUBCLASSED.get(name, set()) <= set(real)


@pytest.mark.parametrize("name", sorted(FAKES))
def test_the_fakes_methods_take_what_the_real_ones_take(binding, name):
    for method, function in inspect.getmembers(FAKES[name], inspect.isfunction):
        if method.startswith("_"):
            continue
        takes = list(inspect.signature(function).parameters)[1:]
        known = overloads(binding[name][method])
        assert any(real[: len(takes)] == takes for real in known), (method, takes, known)


def test_the_flag_of_strong_typing_is_another_bit_in_each_version(binding):
    [version], [bit] = binding["version"], binding["strongly_typed"]
    assert int(bit) == (1 if version.startswith("10.") else 0)
    # Since 11 the types of the ONNX are all that there is.
    assert ("FP16" in binding["BuilderFlag"]) == version.startswith("10.")


def test_only_rtx_aims_at_compute_capabilities(binding):
    aims = {"num_compute_capabilities", "set_compute_capability"} <= set(binding["IBuilderConfig"])
    assert ("ComputeCapability" in binding["module"]) == aims
    assert not aims or {"SM80", "SM89", "SM120"} <= set(binding["ComputeCapability"])
