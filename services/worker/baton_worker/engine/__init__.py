"""The engine: configuration, start, input batch, model runner, warm-up."""
