"""Ways to run a model graph: torch, CUDA graphs, ONNX Runtime, TensorRT."""
