"""A network in one file, written atomically: safetensors and JSON, no pickle."""

from .checkpoint import attached, load, save

__all__ = ["attached", "load", "save"]
