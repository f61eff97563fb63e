"""The report: one HTML page that needs no network, with every plot as SVG; the same plots lie beside it as PNG."""

import json
from html import escape
from pathlib import Path

from nanovllm.bench.codec import to_plain
from nanovllm.bench.plots import pictures_of
from nanovllm.bench.record import AnyResult
from nanovllm.bench.style import Picture, require_matplotlib
from nanovllm.bench.tables import ISOLATES, TITLES, table
from nanovllm.viz.theme import FONT, MONO, neutral

STYLE = f"""
body{{font:15px/1.5 {FONT};color:{neutral("ink")};background:{neutral("card")};max-width:1120px;margin:2rem auto;
padding:0 1rem}}
h1{{margin-bottom:0}} h2{{margin-top:3rem;border-bottom:2px solid {neutral("line")};padding-bottom:.2rem}}
figure{{margin:1.5rem 0}} figure svg{{max-width:100%;height:auto}}
figcaption,.muted{{color:{neutral("muted")};font-size:.9rem}}
.wide{{overflow-x:auto}} table{{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}}
td,th{{padding:.25rem .6rem;text-align:right;border-bottom:1px solid {neutral("line")};white-space:nowrap}}
td:first-child,th:first-child{{text-align:left}} .note{{background:{neutral("soft")};padding:.6rem .9rem}}
dt{{font-family:{MONO};font-size:.88rem}} dd{{margin:0 0 .5rem 1.5rem}}
pre{{background:{neutral("soft")};padding:.8rem;overflow-x:auto;font:12px/1.45 {MONO}}}
"""


def write_report(results: list[AnyResult], folder: Path) -> list[Path]:
    """report.html and the PNG files in `folder`; the paths written, the page first. Needs matplotlib."""
    require_matplotlib()
    folder.mkdir(parents=True, exist_ok=True)
    pictures = [pictures_of(result) for result in results]
    page = folder / "report.html"
    page.write_text(html(results, pictures), encoding="utf-8")
    written = [page]
    for shown in pictures:
        for picture in shown:
            path = folder / f"{picture.name}.png"
            path.write_bytes(picture.png)
            written.append(path)
    return written


def html(results: list[AnyResult], pictures: list[list[Picture]]) -> str:
    """The whole page."""
    first = results[0].environment
    versions = ", ".join(f"{name} {v}" for name, v in first.versions.items() if v is not None)
    device = first.gpus[0]["name"] if first.gpus else first.cpu
    count = f"{first.gpu_count} x " if first.gpus else ""
    summary = f"{count}{device}, {first.cpu_cores} CPU cores, {first.system} · {versions} · {first.date}"
    load = f" Load average when it began: {first.load_average}." if first.load_average is not None else ""
    sections = "".join(_section(r, shown) for r, shown in zip(results, pictures, strict=True))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><title>nanovllm bench</title><style>{STYLE}</style></head><body>'
        f"<h1>nanovllm bench: {escape(first.model.name)}</h1><p class=muted>{escape(summary)}.{escape(load)}</p>"
        f"{sections}</body></html>\n"
    )


def _section(result: AnyResult, pictures: list[Picture]) -> str:
    name = result.experiment
    parts = [f'<h2 id="{name}">{escape(TITLES[name])}</h2><p>{escape(ISOLATES[name])}</p>']
    if result.skipped is not None:
        return "".join([*parts, f"<p class=note>Not run: {escape(result.skipped)}.</p>"])
    if result.error is not None:
        parts.append(f"<p class=note>Ended by an error, what was measured before is shown: {escape(result.error)}</p>")
    parts += [f"<p class=note>{escape(note)}</p>" for note in result.notes]
    for picture in pictures:
        parts.append(
            f'<figure role="img" aria-label="{escape(picture.title)}">{picture.svg}'
            f"<figcaption>{escape(picture.title)}. {escape(picture.caption)}</figcaption></figure>"
        )
    parts.append(_table(result) if result.points else "")
    formulas = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in result.formulas.items())
    parts.append(f"<details><summary>How each figure is made</summary><dl>{formulas}</dl></details>")
    plain = to_plain(result)
    record = {key: plain[key] for key in ("settings", "engines", "environment")}
    text = json.dumps(record, indent=1, ensure_ascii=False)
    parts.append(f"<details><summary>Settings, engines, environment</summary><pre>{escape(text)}</pre></details>")
    return "".join(parts)


def _table(result: AnyResult) -> str:
    heads, rows = table(result)
    head = "".join(f"<th>{escape(h)}</th>" for h in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    return (
        f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        "<p class=muted>Median over the repeats (smallest – largest).</p>"
    )
