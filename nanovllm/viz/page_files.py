"""The fixed parts of the page: its frame, its style and its script."""

PAGE_HTML = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<title><!--TITLE--></title><link rel="icon" href="data:,"><style><!--CSS--></style></head>
<body class="nv">
<header>
 <div class="top"><h1><!--TITLE--></h1><span class="facts"><!--FACTS--></span>
  <span id="badge" aria-live="polite"></span>
  <button id="theme" title="light or dark (t)" aria-label="switch between light and dark">◐</button></div>
 <div class="bar" role="toolbar" aria-label="stepper">
  <button id="first" title="first step (Home)" aria-label="first step">|◀</button>
  <button id="back" title="one step back (left arrow)" aria-label="back">◀</button>
  <button id="play" title="play or pause (space)" aria-label="play" class="main">▶ play</button>
  <button id="forward" title="one step forward (right arrow)" aria-label="forward">▶</button>
  <button id="last" title="last step (End)" aria-label="last step">▶|</button>
  <label>speed <select id="speed" title="steps a second (+ and -)"><option>0.5<option>1<option selected>2<option>4
   <option>8<option>16</select></label>
  <span class="gap"></span>
  <label>to <select id="kind" title="kind of event"><!--KINDS--></select></label>
  <button id="earlier" title="back to the event before (p)" aria-label="previous event">‹ previous</button>
  <button id="next" title="on to the next event (n)" aria-label="next event">next ›</button>
  <span class="gap"></span><span class="pick" role="group" aria-label="highlight a request">request
  <!--CHIPS--><button id="nobody" title="highlight nobody (Escape)">all</button></span>
 </div>
 <div id="strip"><!--STRIP--></div>
 <input id="slider" type="range" min="0" max="<!--LAST-->" value="0" aria-label="step">
</header>
<section id="words" class="nv-words" aria-live="polite" aria-label="what just happened"></section>
<main class="nv-grid"><!--CARDS--></main>
<footer>keys: ← → step · space play · n p event · 0–9 request · Esc all · + − speed · Home End · t theme</footer>
<noscript>This page draws its steps with a script that is part of the page; allow scripts to see them.</noscript>
<script id="data" type="text/plain"><!--DATA--></script><script><!--JS--></script>
</body></html>
"""

PAGE_CSS = """
body{margin:0 auto;padding:0 32px 24px;max-width:1216px;font:14px/1.45 system-ui,sans-serif;color:var(--nv-ink);
background:var(--nv-soft)}
header{position:sticky;top:0;z-index:2;background:var(--nv-soft);padding:12px 0 8px}
.top{display:flex;gap:14px;align-items:baseline;margin-bottom:8px}h1{font-size:18px;margin:0;white-space:nowrap}
.facts{color:var(--nv-muted);font-size:12.5px;flex:1;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.bar{display:flex;flex-wrap:wrap;gap:6px;align-items:center}.bar .gap{width:10px}
button,select{font:inherit;font-size:13px;color:var(--nv-ink);background:var(--nv-card);border:1px solid var(--nv-line);
border-radius:7px;padding:3px 10px;min-height:30px;cursor:pointer}
button:hover,select:hover{border-color:var(--nv-muted)}
button:focus-visible,select:focus-visible,input:focus-visible{outline:2.5px solid var(--nv-mark);outline-offset:2px}
button.main{background:var(--nv-ink);color:var(--nv-card);min-width:86px;font-weight:600}
label,.pick{color:var(--nv-muted);font-size:13px;display:inline-flex;gap:5px;align-items:center;flex-wrap:wrap}
.nv-chip{min-width:30px;padding:2px 7px;font-weight:700}
.nv-chip.nv-hatched{background-image:repeating-linear-gradient(45deg,transparent 0 4px,#fff5 4px 5.5px)!important}
.nv-chip[aria-pressed=true]{outline:2.5px solid var(--nv-mark);outline-offset:1px}
#strip{margin-top:8px;cursor:pointer}#strip svg{width:100%;height:44px;display:block}
#strip [data-step]:hover rect:first-child{fill:var(--nv-ink)}
#slider{width:100%;margin:0;accent-color:var(--nv-muted);height:14px}
#badge{white-space:nowrap;min-width:176px;text-align:right}#words{margin:0 0 14px}
footer{color:var(--nv-muted);font-size:12px;padding:14px 0 0;text-align:center}
@media (max-width:700px){body{padding:0 8px 16px}.top{flex-wrap:wrap}header{position:static}.facts{display:none}}
@media (prefers-reduced-motion:reduce){*{transition:none!important}}
"""

PAGE_JS = r"""
(async () => {
const at = id => document.getElementById(id);
const packed = Uint8Array.from(atob(at("data").textContent), c => c.charCodeAt(0));
const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
const data = JSON.parse(await new Response(stream).text());
const cards = [...document.querySelectorAll("[data-panel]")], ticks = [...document.querySelectorAll("[data-step]")];
const chips = [...document.querySelectorAll("[data-pick]")];
const rule = document.head.appendChild(document.createElement("style"));
const shown = cards.map(() => -1);
let step = 0, timer = null, pick = null;

function draw() {
  data.panels.forEach((panel, i) => {
    const picture = panel.picked?.[step]?.[pick] ?? panel.order[step];
    if (picture !== shown[i]) { cards[i].innerHTML = panel.pictures[picture]; shown[i] = picture; }
  });
}
function show(to) {
  step = Math.max(0, Math.min(data.steps - 1, to));
  draw();
  at("words").innerHTML = data.words[step];
  at("badge").innerHTML = data.badges[step];
  at("slider").value = step;
  const hit = ticks[step].lastElementChild, cursor = at("nv-cursor");
  cursor.setAttribute("x", hit.getAttribute("x"));
  if (step === data.steps - 1) pause();
  history.replaceState(null, "", "#" + step);
}
function pause() { clearInterval(timer); timer = null; label(); }
function play() {
  if (step === data.steps - 1) show(0);
  clearInterval(timer);
  timer = setInterval(() => show(step + 1), 1000 / Number(at("speed").value));
  label();
}
function label() {
  at("play").textContent = timer ? "❚❚ pause" : "▶ play";
  at("play").setAttribute("aria-label", timer ? "pause" : "play");
}
function toggle() { timer ? pause() : play(); }
function seek(to) { pause(); show(to); }
function event(direction) {
  const kind = at("kind").value;
  for (let i = step + direction; i >= 0 && i < data.steps; i += direction)
    if (data.events[i].includes(kind)) return seek(i);
  pause();
}
function choose(who) {
  pick = pick === who ? null : who;
  rule.textContent = pick === null ? "" : `.nv-grid [data-r]:not([data-r~="${pick}"]){opacity:.13}`;
  chips.forEach(c => c.setAttribute("aria-pressed", String(c.dataset.pick === pick)));
  draw();
}
function speed(by) {
  const s = at("speed");
  s.selectedIndex = Math.max(0, Math.min(s.options.length - 1, s.selectedIndex + by));
  if (timer) play();
}
function theme() {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme:dark)").matches;
  const now = root.dataset.nvTheme || (dark ? "dark" : "light");
  root.dataset.nvTheme = now === "dark" ? "light" : "dark";
}
const on = (id, what, run) => at(id).addEventListener(what, run);
on("first", "click", () => seek(0)); on("last", "click", () => seek(data.steps - 1));
on("back", "click", () => seek(step - 1)); on("forward", "click", () => seek(step + 1));
on("play", "click", toggle); on("next", "click", () => event(1)); on("earlier", "click", () => event(-1));
on("slider", "input", e => seek(Number(e.target.value))); on("speed", "change", () => timer && play());
on("theme", "click", theme); on("nobody", "click", () => { pick = null; choose(null); });
chips.forEach(c => c.addEventListener("click", () => choose(c.dataset.pick)));
ticks.forEach((t, i) => t.addEventListener("click", () => seek(i)));
document.addEventListener("keydown", e => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.target.tagName === "SELECT") return;
  const keys = {ArrowRight: () => seek(step + 1), ArrowLeft: () => seek(step - 1), Home: () => seek(0), " ": toggle,
    End: () => seek(data.steps - 1), n: () => event(1), p: () => event(-1), t: theme, "+": () => speed(1),
    "-": () => speed(-1), Escape: () => { pick = null; choose(null); }};
  const run = keys[e.key] || (/^\d$/.test(e.key) && chips.some(c => c.dataset.pick === e.key) && (() => choose(e.key)));
  if (!run || (e.key === " " && e.target.tagName === "BUTTON")) return;
  e.preventDefault(); run();
});
show(Number(location.hash.slice(1)) || 0);
document.body.dataset.ready = "yes";
})();
"""
