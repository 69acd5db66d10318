"""gRPC with vLLM's `VllmEngine` protocol: tokens in, tokens out, for routers that tokenise."""
