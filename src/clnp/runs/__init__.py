"""One run in a directory: written so that it survives crashes, read back as typed records."""

from . import metrics as metrics
