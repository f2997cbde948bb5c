"""The speech server: voices, synthesis and speech tokens over gRPC and HTTP."""
