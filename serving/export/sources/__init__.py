"""Where models come from: one file per kind of source, each with `load(..., options, progress) -> Exported`."""
