"""Command line options of the engine's limits and of sampling. The engine itself checks every value."""

import argparse
from typing import Any

from nanovllm.config import BACKENDS, DEVICES, DTYPES, LOAD_FORMATS, EngineConfig
from nanovllm.sampling_params import SamplingParams


def number(text: str) -> int | float | str:
    """An integer or a float where the text is one; else the text, which the engine refuses in its own words."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def add_common(parser: argparse.ArgumentParser) -> None:
    """What every command has."""
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, for programs")
    parser.add_argument("--debug", action="store_true", help="show the traceback of a refusal")


def _add(group: Any, default: Any, name: str, metavar: str, help: str) -> None:
    """A number option; the default is the engine's own and is told, not set, so that it is stated in one place."""
    known = getattr(default, name, None)
    told = f" (default {known})" if known is not None else ""
    group.add_argument(f"--{name.replace('_', '-')}", type=number, metavar=metavar, help=help + told)


def add_machine(parser: argparse.ArgumentParser) -> Any:
    """Where it runs: device, dtype and attention backend."""
    group = parser.add_argument_group("machine (`nanovllm info` shows what is chosen, and why)")
    group.add_argument("--device", metavar="NAME", help=f"{', '.join(DEVICES)} (default auto)")
    group.add_argument("--dtype", metavar="NAME", help=f"{', '.join(DTYPES)} (default auto)")
    group.add_argument("--attention-backend", metavar="NAME", help=f"{', '.join(BACKENDS)} (default auto)")
    return group


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Every limit of `EngineConfig`."""
    defaults = EngineConfig("-")
    machine = add_machine(parser)
    _add(machine, defaults, "tensor_parallel_size", "N", "ranks, 1 to 8; each holds a shard of every layer")
    _add(machine, defaults, "rank_start_timeout", "S", "seconds in which the ranks must have started")
    _add(machine, defaults, "rank_timeout", "S", "seconds after which a rank that does not answer has failed")
    machine.add_argument("--enforce-eager", action="store_true", default=None, help="never capture CUDA graphs")
    tokens = "prefill steps of up to N tokens are recorded as CUDA graphs too; 0 for none"
    _add(machine, defaults, "prefill_graph_tokens", "N", tokens)
    machine.add_argument(
        "--overlap",
        action=argparse.BooleanOptionalAction,
        help="launch a step before the last one's tokens are read",
    )
    machine.add_argument("--load-format", metavar="NAME", help=f"{', '.join(LOAD_FORMATS)}: dummy is random weights")
    group = parser.add_argument_group("limits of the engine")
    _add(group, defaults, "max_num_seqs", "N", "requests that run at once")
    _add(group, defaults, "max_num_batched_tokens", "N", "tokens of one prefill step; longer prompts go in chunks")
    _add(group, defaults, "max_model_len", "N", "prompt plus completion tokens of one request")
    _add(group, defaults, "kvcache_block_size", "N", "tokens of one KV block")
    _add(group, defaults, "num_kvcache_blocks", "N", "KV blocks of the pool (default: what the memory allows)")
    _add(group, defaults, "cpu_kvcache_gib", "GIB", "largest KV pool on a CPU")
    _add(group, defaults, "gpu_memory_utilization", "SHARE", "share of the GPU's memory to use, weights included")


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Every field of `SamplingParams`. On the command line greedy is the default: a run can be repeated."""
    defaults = SamplingParams()
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "--temperature", type=number, default=0.0, metavar="T",
        help="0 takes the most likely token (the default); higher is more varied",
    )  # fmt: skip
    group.add_argument(
        "--max-tokens", type=number, default=128, metavar="N", help="tokens to add at most (default 128)"
    )
    group.add_argument("--top-k", type=number, metavar="K", help="choose among the K most likely tokens only")
    _add(group, defaults, "top_p", "P", "choose among the most likely tokens whose probability reaches P")
    group.add_argument("--seed", type=number, metavar="N", help="the same seed and prompt give the same completion")
    group.add_argument("--ignore-eos", action="store_true", default=None, help="go on after an end-of-sequence token")
    group.add_argument(
        "--stop-token-id", dest="stop_token_ids", type=number, action="append", metavar="ID",
        help="a further token that ends the completion; may be repeated",
    )  # fmt: skip


def given(args: argparse.Namespace, fields: Any) -> dict[str, Any]:
    """The options among `fields` that the user gave; the engine's defaults stand for the others."""
    return {name: value for name in fields if (value := getattr(args, name, None)) is not None}


def limits_of(args: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of `LLM`."""
    own = {"model", "seed", "skip_tokenizer_init"}
    return given(args, [name for name in EngineConfig.__dataclass_fields__ if name not in own])


def sampling_of(args: argparse.Namespace) -> SamplingParams:
    """The sampling parameters. Raises RequestError in the words of the engine."""
    return SamplingParams(**given(args, SamplingParams.__dataclass_fields__))
