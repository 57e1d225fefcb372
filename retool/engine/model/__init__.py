"""The transformer of the embedded engine: configuration, weights, adapters and the two forward passes."""
