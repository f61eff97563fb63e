"""`python -m nanovllm` is the same as the `nanovllm` command."""

from nanovllm.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
