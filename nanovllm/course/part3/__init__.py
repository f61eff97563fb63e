"""The exercises of part 3, Qwen3 and tensor parallelism: hints, checks and planted bugs, one module an exercise."""
