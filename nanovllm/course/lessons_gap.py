"""What notebook 44 uses: the comparison with vLLM V1 as data, and a model of a scheduler that mixes its steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from nanovllm.course.errors import CourseError
from nanovllm.serve.load_report import RequestRecord

ARCHITECTURE = "https://docs.vllm.ai/en/latest/design/arch_overview/"
TUNING = "https://docs.vllm.ai/en/latest/configuration/optimization/"
V1_GUIDE = "https://docs.vllm.ai/en/latest/usage/v1_guide/"
BENCH_CLI = "https://docs.vllm.ai/en/latest/benchmarking/cli/"
READ = "2026-11-30"  # when these pages were read


@dataclass(frozen=True, slots=True)
class Concern:
    """One row: what nano-vLLM and vLLM V1 do about it, and where the latter is written."""

    name: str
    nano_vllm: str
    vllm: str
    source: str


CONCERNS = (
    Concern("interface", "offline generate() only", "offline LLM class, and API server processes", ARCHITECTURE),
    Concern(
        "scheduling",
        "prefill first, a step is one or the other",
        "one token budget a step: decodes first, then prefill chunks, in the same step",
        TUNING,
    ),
    Concern(
        "processes",
        "main process with rank 0, a worker for each further rank",
        "API server(s), an engine core for each DP rank, a worker for each GPU, a coordinator with DP > 1",
        ARCHITECTURE,
    ),
    Concern("parallelism", "tensor, 1 to 8 ranks of one machine", "tensor, pipeline, data, expert", TUNING),
    Concern("models", "Qwen3 only", "many architectures; support varies by model and feature", V1_GUIDE),
    Concern(
        "KV cache",
        "fixed pool, full-block prefix cache, recomputation",
        "KV cache manager; preemption by recomputation is the default",
        TUNING,
    ),
    Concern(
        "life of a request",
        "no admission while running, no cancellation, no streaming",
        "input processing, streaming, routing to any engine core",
        ARCHITECTURE,
    ),
    Concern("sampling", "temperature above 0 only", "many parameters, log-probabilities, structured output", V1_GUIDE),
    Concern("measuring", "two rates in a progress bar, one script", "a benchmark suite and service metrics", BENCH_CLI),
)


class GapTable:
    """The comparison. `here` has a sentence for each concern, made by the cells of the notebook from live objects.

    Raises CourseError when a concern has none: a row without a cell behind it would be a claim.
    """

    def __init__(self, here: Mapping[str, str]) -> None:
        missing = [concern.name for concern in CONCERNS if concern.name not in here]
        if missing:
            raise CourseError(f"no cell has looked at {', '.join(missing)} yet: run the cells above")
        self.here = dict(here)

    def text(self) -> str:
        """A paragraph a concern."""
        lines = []
        for row in CONCERNS:
            lines += [row.name, f"  nano-vLLM    {row.nano_vllm}", f"  this engine  {self.here[row.name]}"]
            lines += [f"  vLLM V1      {row.vllm}", f"               read at {row.source}"]
        return "\n".join(lines)

    def html(self) -> str:
        """A row a concern."""
        head = "".join(
            f"<th style='text-align:left'>{name}</th>" for name in ("", "nano-vLLM", "this engine", "vLLM V1")
        )
        cell = "<td style='text-align:left;vertical-align:top;white-space:normal;max-width:330px'>"
        body = ""
        for row in CONCERNS:
            link = f' <a href="{row.source}">source</a>'
            words = (row.nano_vllm, self.here[row.name])
            body += f"<tr>{cell}<b>{escape(row.name)}</b></td>"
            body += "".join(f"{cell}{escape(w)}</td>" for w in words) + f"{cell}{escape(row.vllm)}{link}</td></tr>"
        return f"<div><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": self.text(), "text/html": self.html()}

    def __repr__(self) -> str:
        return self.text()


@dataclass(slots=True)
class _Request:
    due: int
    prompt: int
    completion: int
    computed: int = 0
    tokens: list[int] = field(default_factory=list)  # steps


def mixed(arrivals: Sequence[tuple[int, int, int]], budget: int, seats: int = 16) -> list[RequestRecord]:
    """Play (step, prompt tokens, completion tokens) through the rule that vLLM's documentation describes for V1.

    Each step has `budget` tokens: first one for every request that decodes, then prompt tokens of the others in order,
    cut where the budget ends. Pure arithmetic, without blocks, caches or a model: it is the rule, not vLLM.
    """
    requests = [_Request(*arrival) for arrival in sorted(arrivals, key=lambda a: a[0])]
    step = 0
    while any(len(r.tokens) < r.completion for r in requests):
        left = budget
        decoding = [r for r in requests if r.computed == r.prompt and len(r.tokens) < r.completion]
        for request in decoding[:left]:
            request.tokens.append(step)
            left -= 1
        waiting = [r for r in requests if r.due <= step and r.computed < r.prompt]
        for request in waiting[: max(0, seats - len(decoding))]:
            chunk = min(left, request.prompt - request.computed)
            request.computed += chunk
            left -= chunk
            if chunk and request.computed == request.prompt:
                request.tokens.append(step)
        step += 1
    return [
        RequestRecord(i, float(r.due), float(r.due), [s + 1.0 for s in r.tokens], 200, r.prompt, r.completion)
        for i, r in enumerate(requests)
    ]
