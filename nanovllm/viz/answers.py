"""What each request says so far: its prompt and the completion that the steps have added."""

from html import escape

from nanovllm.trace.trace import Trace
from nanovllm.viz.svg import FULL, MONO, clip, element, label, neutral, of_request, request_box, request_label
from nanovllm.viz.view import View

_MAX_ROWS, _ROW = 8, 24


class Answers(View):
    """Prompt and completion of each request as they are after the step, newest requests last."""

    title = "Prompts and completions"

    def __init__(self, trace: Trace, index: int = -1) -> None:
        super().__init__(trace[index])
        self.trace = trace
        self.index = index % len(trace)
        self.known = self._known()

    @property
    def heading(self) -> str:
        """The title, with the moment that is shown."""
        return f"Prompts and completions after {self.record.when}"

    def _known(self) -> dict[int, tuple[int, str]]:
        """Number of tokens and state of every request seen up to this step; finished ones keep their last count."""
        after = self.record.after
        counts, states = after.column("num_tokens"), after.column("status")
        found: dict[int, tuple[int, str]] = {}
        later = {seq_id for line in self.trace.lines[self.index + 1 :] for seq_id, _ in line.get("ar", ())}
        for seq_id in self.trace.request_ids:
            if seq_id in counts:
                found[seq_id] = counts[seq_id], states[seq_id]
            elif seq_id not in later:
                found[seq_id] = len(self.trace.token_ids[seq_id]), "finished"
        return found

    def parts(self, seq_id: int) -> tuple[str, str]:
        """Prompt and completion so far, blanks made visible only where they are line breaks."""
        tokens = self.trace.token_ids[seq_id][: self.known[seq_id][0]]
        split = self.trace.num_prompt_tokens[seq_id]
        words = [self.trace.label(t) if self.trace.labels else f" {t}" for t in tokens]
        return "".join(words[:split]).replace("\n", "↵"), "".join(words[split:]).replace("\n", "↵")

    def text(self) -> str:
        """A line a request."""
        lines = []
        for seq_id, (_, status) in self.known.items():
            prompt, completion = self.parts(seq_id)
            lines.append(f"request {seq_id} ({status}): {prompt!r} -> {completion!r}")
        return "\n".join(lines) or "no request yet"

    def draw(self) -> tuple[float, float, str]:
        """The prompt's end in grey, the completion in full ink."""
        live = [i for i, (_, status) in self.known.items() if status != "finished"]
        done = [i for i in self.known if i not in live]
        rows = sorted((live + done[::-1])[:_MAX_ROWS])
        body = ""
        for index, seq_id in enumerate(rows):
            y = 46 + index * _ROW
            status = self.known[seq_id][1]
            prompt, completion = self.parts(seq_id)
            completion = clip(completion, 560, 12, mono=True)
            fits = max(8, 125 - len(completion))
            prompt = prompt if len(prompt) <= fits else "…" + prompt[-fits:]
            words = _runs(prompt, completion, 122, y + 13)
            chip = request_box(seq_id, 16, y, 34, 17, 4) + request_label(seq_id, 33, y + 13, seq_id, 11)
            body += of_request(seq_id, chip, label(58, y + 13, status, "muted", 11), words)
        return FULL, 46 + min(_MAX_ROWS, max(3, len(self.trace.request_ids))) * _ROW + 8, body


def _runs(prompt: str, completion: str, x: float, y: float) -> str:
    grey = element("tspan", escape(prompt), class_="nv-muted", fill=neutral("muted"))
    ink = element("tspan", escape(completion), class_="nv-ink", fill=neutral("ink"), font_weight="700")
    both = grey + (ink if completion else "")
    return element("text", both, x=x, y=y, font_size=12, font_family=MONO, style="white-space:pre")
