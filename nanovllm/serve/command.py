"""`nanovllm serve`: the OpenAI-compatible server."""

import argparse
import importlib.util
import json
import os
import sys
from typing import Any

from nanovllm.cli import options
from nanovllm.errors import NanoVLLMError
from nanovllm.serve.settings import ServeSettings

KEY_VARIABLE = "NANOVLLM_API_KEY"
EPILOG = f"""\
examples:
  nanovllm serve
  nanovllm serve --model Qwen/Qwen3-0.6B --port 8080 --max-queue 1000
  curl http://127.0.0.1:8000/v1/completions -d '{{"prompt": "count: 17 18 19 20", "temperature": 0}}'

The API key comes from --api-key or, out of sight of other users of the machine, from {KEY_VARIABLE}.
SIGTERM and Ctrl-C let running requests finish; a second one ends the server at once.
"""


def add_parser(commands: Any) -> None:
    """Register the command with argparse's `add_subparsers()`."""
    parser = commands.add_parser(
        "serve",
        help="answer OpenAI's API over HTTP",
        description="Serve a checkpoint: /v1/completions, /v1/chat/completions, /v1/models, /health and /metrics.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="qwen3-tiny", help="checkpoint (default: %(default)s)")
    options.add_common(parser)
    group = parser.add_argument_group("server")
    texts = {
        "host": "address to listen on; others than loopback are reachable from outside",
        "port": "port to listen on; 0 takes a free one",
        "model_name": "what clients call the model (default: the checkpoint's name)",
        "api_key": "what clients must send as a bearer token",
        "max_queue": "requests that may wait besides the running ones; the next one gets 429",
        "retry_after": "seconds, told to a client that got 429 or 503",
        "max_body_bytes": "size of a request's body",
        "request_timeout": "seconds a request may take in all",
        "drain_timeout": "seconds that running requests get to finish after SIGTERM",
        "max_prefill_steps": "prefill steps between two decode steps while requests run; 0: no bound",
        "max_prefill_tokens": "tokens of a prefill step while requests run",
    }
    defaults = ServeSettings()
    for name, text in texts.items():
        known = getattr(defaults, name)
        told = f" (default {known})" if known is not None else ""
        kind = str if name in ("host", "model_name", "api_key") else options.number
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="X", help=text + told)
    options.add_limits(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Load, listen, say where, serve until a signal. Raises NanoVLLMError with the reason when it cannot."""
    check_installed()
    wanted = options.given(args, ServeSettings.__dataclass_fields__)
    if "api_key" not in wanted and os.environ.get(KEY_VARIABLE):
        wanted["api_key"] = os.environ[KEY_VARIABLE]
    settings = ServeSettings(**wanted)
    from nanovllm import LLM
    from nanovllm.serve.server import bind, serve

    def announce(url: str) -> None:
        text = json.dumps({"url": url, "model": args.model}) if args.json else f"serving {args.model} on {url}"
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    # In this order: a port in use is told before a checkpoint is loaded.
    with bind(settings.host, settings.port) as sock, LLM(args.model, **options.limits_of(args)) as llm:
        serve(llm, settings, sock, announce)
    return 0


def check_installed() -> None:
    """Raise NanoVLLMError naming what the extra `serve` would bring."""
    names = ("fastapi", "uvicorn", "prometheus_client")
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise NanoVLLMError(f'{", ".join(missing)} not installed: a server needs pip install "nanovllm[serve]"')
