"""token2wav behind NVIDIA's Triton Inference Server."""
