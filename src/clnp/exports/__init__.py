"""An ended task as one file that runs without clnp: a program of `torch.export`, or ONNX."""
