"""A network in one file, written atomically: safetensors and JSON, no pickle."""
