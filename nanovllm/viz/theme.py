"""One visual language: a colour (and a hatch) for each request, the same in every view, on light and dark pages.

The seven hues are those of Okabe and Ito (2008), which people with any common colour vision tell apart. Requests beyond
the seventh repeat them with a hatch, and every mark also carries its request's number, so colour is never alone.
"""

from dataclasses import dataclass

NUM_HATCHES = 4  # none, falling, rising, upright


@dataclass(frozen=True, slots=True)
class Hue:
    """A fill, the colour of text on it, and the outline and line colour on light and on dark pages."""

    fill: str
    on: str
    light: str
    dark: str


HUES = (
    Hue("#0072B2", "#ffffff", "#00568a", "#6cc0f5"),  # blue
    Hue("#E69F00", "#1a1300", "#946300", "#ffc44d"),  # orange
    Hue("#009E73", "#00130d", "#00704f", "#3fd9ac"),  # bluish green
    Hue("#CC79A7", "#1f0a15", "#97386c", "#f0a9cf"),  # reddish purple
    Hue("#56B4E9", "#04141f", "#1c77ac", "#93d5ff"),  # sky blue
    Hue("#D55E00", "#1a0a00", "#a04600", "#ff9a52"),  # vermilion
    Hue("#F0E442", "#1c1a00", "#7d7300", "#fff27a"),  # yellow
)

# name: (light, dark). Text colours reach a contrast of 4.5 on `card` and `soft`, marks 3.
_NEUTRAL = {
    "card": ("#ffffff", "#15181d"),
    "soft": ("#f1f4f8", "#1f242b"),
    "line": ("#c3cad4", "#434c58"),
    "ink": ("#14181d", "#edf1f6"),
    "muted": ("#55606e", "#a3aebb"),
    "mark": ("#14181d", "#ffffff"),
}
FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif"
MONO = "ui-monospace,'SFMono-Regular',Menlo,Consolas,'DejaVu Sans Mono',monospace"


def hue_of(seq_id: int) -> int:
    """Which hue request `seq_id` has."""
    return seq_id % len(HUES)


def hatch_of(seq_id: int) -> int:
    """Which hatch lies over it: 0 is none."""
    return seq_id // len(HUES) % NUM_HATCHES


def neutral(name: str) -> str:
    """The light-page value of a neutral colour: what is drawn where style sheets are stripped."""
    return _NEUTRAL[name][0]


def _variables(dark: bool) -> str:
    values = [f"--nv-{name}:{pair[dark]}" for name, pair in _NEUTRAL.items()]
    values += [f"--nv-e{i}:{hue.dark if dark else hue.light}" for i, hue in enumerate(HUES)]
    return ";".join(values)


def stylesheet() -> str:
    """The style sheet of all views. It follows JupyterLab's theme where there is one, else the reader's system."""
    rules = [
        f".nv{{{_variables(False)}}}",
        f"@media (prefers-color-scheme:dark){{.nv{{{_variables(True)}}}}}",
        f'[data-jp-theme-light="true"] .nv,[data-nv-theme="light"] .nv{{{_variables(False)}}}',
        f'[data-jp-theme-light="false"] .nv,[data-nv-theme="dark"] .nv{{{_variables(True)}}}',
    ]
    rules += [f".nv .nv-{n},.nv .nv-{n} text{{fill:var(--nv-{n})}}" for n in ("card", "soft", "ink", "muted", "line")]
    rules += [f".nv .nv-s-{n}{{stroke:var(--nv-{n})}}" for n in ("line", "ink", "muted", "mark", "card")]
    for i in range(len(HUES)):
        rules.append(f".nv .nv-s{i}{{stroke:var(--nv-e{i})}}")
        rules.append(f".nv .nv-t{i}{{fill:var(--nv-e{i})}}")
        rules.append(
            f".nv .nv-g{i} path,.nv .nv-g{i} polygon{{fill:{HUES[i].fill};fill-opacity:.2;stroke:var(--nv-e{i})}}"
        )
    rules.append(
        ".nv .nv-graph text{fill:var(--nv-ink)}.nv .nv-plain path,.nv .nv-plain polygon{stroke:var(--nv-muted)}"
    )
    rules.append(".nv .node.nv-plain path,.nv .nv-gfree path{fill:var(--nv-soft);stroke:var(--nv-muted)}")
    rules.append(".nv .nv-hit path,.nv .nv-hit polygon{stroke:var(--nv-mark)}")
    rules.append(".nv [data-r]{transition:opacity .12s}")
    return "".join(rules)
