"""`nanovllm generate`: complete prompts."""

import argparse
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from nanovllm.cli import options
from nanovllm.cli.terminal import make_console, write_json
from nanovllm.errors import RequestError

if TYPE_CHECKING:
    from nanovllm import LLM, RequestOutput, SamplingParams

EPILOG = """\
examples:
  nanovllm generate "count: 17 18 19 20"
  nanovllm generate "sort: 9 4 7 ->" "add: 27 + 45 =" --json
  nanovllm generate --chat "What is 27 + 45?"
  nanovllm generate "story: Mila the otter ->" --temperature 0.8 --seed 1 --max-tokens 150
  cat prompts.txt | nanovllm generate -             one prompt a line
  cat letter.txt | nanovllm generate - --whole      the whole input is one prompt
  nanovllm generate "Once upon" --model Qwen/Qwen3-0.6B --max-model-len 2048

The shipped qwen3-tiny knows small tasks only, each with one right answer: count, count from .. to .., copy, sort,
add, list, recall (`nanovllm demo` shows them), and short rhymed stories.

One prompt: its completion alone is printed. Several: each under a line that names its prompt.
"""


def add_parser(commands: Any) -> None:
    """Add `generate` to the command line."""
    parser = commands.add_parser(
        "generate",
        help="complete prompts",
        description="Complete one or more prompts. All of them run in one batch.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("prompts", nargs="+", metavar="PROMPT", help="the text to continue; - reads stdin")
    parser.add_argument(
        "--model", default="qwen3-tiny", help="folder, hub id (owner/name), or qwen3-tiny, which is shipped (default)"
    )
    parser.add_argument("--chat", action="store_true", help="each prompt is a user's message to answer")
    parser.add_argument("--whole", action="store_true", help="with -: stdin is one prompt, line breaks included")
    parser.add_argument("--stats", action="store_true", help="time, tokens and rates on stderr")
    options.add_common(parser)
    options.add_sampling(parser)
    options.add_limits(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Complete the prompts and print what came out."""
    prompts = read_prompts(args.prompts, args.whole)
    params = options.sampling_of(args)
    from nanovllm import LLM

    with closing(LLM(args.model, **options.limits_of(args))) as llm:
        start = time.perf_counter()
        outputs = complete(llm, prompts, params, args)
        seconds = time.perf_counter() - start
    if args.json:
        write_json([as_json(prompt, output, args.chat) for prompt, output in zip(prompts, outputs, strict=True)])
    else:
        show(prompts, outputs)
    if args.stats:
        sys.stderr.write(stats(outputs, seconds) + "\n")
    return 0


def read_prompts(given: list[str], whole: bool) -> list[str]:
    """The prompts of the command line, each - replaced by stdin. Raises RequestError for text that is not UTF-8."""
    prompts: list[str] = []
    for prompt in given:
        if prompt != "-":
            prompts.append(prompt)
            continue
        try:
            text = sys.stdin.read()
        except UnicodeDecodeError as e:
            raise RequestError(f"stdin is not UTF-8 text ({e.reason} at byte {e.start}): convert it first") from None
        prompts += [text] if whole else [line for line in text.splitlines() if line.strip()]
    for prompt in prompts:
        if any("\ud800" <= c <= "\udfff" for c in prompt):  # how Python passes on bytes that it could not decode
            raise RequestError(f"the prompt {prompt!r} is not valid Unicode text: give it as UTF-8")
    if not prompts:
        raise RequestError("stdin held no prompt: it needs at least one line that is not blank")
    return prompts


def complete(
    llm: "LLM", prompts: list[str], params: "SamplingParams", args: argparse.Namespace
) -> "list[RequestOutput]":
    """Run all prompts in one batch, with a progress bar where somebody can see it."""
    bar = sys.stderr.isatty() and not args.json
    if args.chat:
        return llm.chat([[{"role": "user", "content": p}] for p in prompts], params, use_tqdm=bar)
    return llm.generate(prompts, params, use_tqdm=bar)


def as_json(prompt: str, output: "RequestOutput", is_chat: bool) -> dict[str, Any]:
    """The output's own fields, the times that its metrics stand for, and the message that was asked in a chat."""
    metrics = output.metrics
    times = {"ttft": metrics.ttft, "tpot": metrics.tpot, "e2e_latency": metrics.e2e_latency}
    asked = {"message": prompt} if is_chat else {}
    return {**asked, **output.to_dict(), "seconds": times}


def show(prompts: list[str], outputs: "list[RequestOutput]") -> None:
    """Print the completions; with several prompts each gets a heading."""
    console = make_console()
    for prompt, output in zip(prompts, outputs, strict=True):
        if len(prompts) > 1:
            first = " ".join(prompt.split())
            console.print(first if len(first) <= 72 else first[:71] + "…", style="bold", highlight=False, markup=False)
        console.out(output.text.strip("\n") if len(prompts) > 1 else output.text, highlight=False)


def stats(outputs: "list[RequestOutput]", seconds: float) -> str:
    """One line: how much, how fast, and why it ended."""
    prompt_tokens = sum(len(o.prompt_token_ids) for o in outputs)
    tokens = sum(len(o.token_ids) for o in outputs)
    reasons = [o.finish_reason for o in outputs]
    ended = ", ".join(f"{reasons.count(r)} {r}" for r in sorted(set(reasons)))
    cached = sum(o.metrics.num_prefix_tokens for o in outputs)
    return (
        f"{len(outputs)} requests, {prompt_tokens:,} prompt tokens ({cached:,} from the prefix cache), {tokens:,} "
        f"completion tokens in {seconds:.2f} s ({tokens / seconds:,.0f} tokens/s); ended by: {ended}"
    )
