"""A task as a program without clnp: `torch.export` or ONNX."""
