"""The five offline experiments. Each module has `run(options) -> Result`; `common` holds what they share."""
