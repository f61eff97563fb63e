"""The six experiments. Each module has `run(options) -> Result`; `common` holds what they share."""
