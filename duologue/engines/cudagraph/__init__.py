"""Token2wav on one NVIDIA GPU: Triton kernels in CUDA graphs, all state on the device."""
