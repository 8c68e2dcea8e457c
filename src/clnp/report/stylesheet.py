"""The style sheet of a report: light and dark, phone, wide screen and paper."""

STYLE = """\
:root {
  color-scheme: light dark;
  --ink: #1f2328; --muted: #59636d; --line: #d0d7dd; --soft: #eef1f3; --paper: #ffffff;
  --blue: #0072b2; --violet: #5a00ff; --brown: #784b1e; --slate: #4b5a5a;
  --accent: #0b63a5; --good: #0a7a55; --warn: #8a4b00; --warn-soft: #fff4e0;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e6eaee; --muted: #9ba6b1; --line: #3a424b; --soft: #242b33; --paper: #14181d;
    --blue: #167bc2; --violet: #a98bfc; --brown: #a06d43; --slate: #a7c7c7;
    --accent: #6cb6f0; --good: #4cc79a; --warn: #f0b45c; --warn-soft: #2e2515;
  }
}
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  overflow-wrap: break-word;
}
.page { max-width: 78rem; margin: 0 auto; padding: 0 1.25rem 4rem; }
.skip { position: absolute; left: -99rem; }
.skip:focus { left: 1rem; top: 1rem; background: var(--paper); padding: .5rem 1rem; z-index: 2; }
a { color: var(--accent); text-underline-offset: .15em; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
header { padding: 2.5rem 0 .5rem; }
h1 { font-size: clamp(1.5rem, 1.1rem + 2vw, 2.25rem); line-height: 1.2; margin: 0 0 .35rem;
  letter-spacing: -.015em; text-wrap: balance; }
h2 { font-size: 1.35rem; line-height: 1.25; margin: 3.25rem 0 .5rem; letter-spacing: -.01em;
  scroll-margin-top: 1rem; }
h3 { font-size: 1.02rem; margin: 2rem 0 .4rem; scroll-margin-top: 1rem; }
p { margin: .5rem 0; max-width: 46rem; }
.lead { color: var(--muted); }
nav { font-size: .9rem; }
nav h2 { font-size: .78rem; text-transform: uppercase; letter-spacing: .06em; color: var(--muted);
  margin: 0 0 .4rem; font-weight: 600; }
nav ul { list-style: none; margin: 0; padding: 0; display: flex; flex-wrap: wrap;
  gap: .3rem 1.1rem; }
nav a { text-decoration: none; }
nav a:hover { text-decoration: underline; }
@media (min-width: 75rem) {
  .page { display: grid; grid-template-columns: 13rem minmax(0, 1fr); column-gap: 3rem; }
  .page > header, .page > footer { grid-column: 2; }
  .page > nav { grid-row: 1 / span 2; grid-column: 1; position: sticky; top: 0; align-self: start;
    padding-top: 3rem; max-height: 100vh; overflow-y: auto; }
  .page > main { grid-column: 2; }
  nav ul { flex-direction: column; gap: .45rem; }
}
main { min-width: 0; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(11.5rem, 1fr)); gap: 1px;
  margin: 1.25rem 0 1rem; padding: 0; background: var(--line); border: 1px solid var(--line);
  border-radius: .6rem; overflow: hidden; }
.facts > div { background: var(--paper); padding: .9rem 1.1rem 1rem; }
.facts dt { color: var(--muted); font-size: .85rem; }
.facts dd { margin: 0; }
.facts .value { font-size: 1.7rem; font-weight: 650; line-height: 1.25; letter-spacing: -.02em;
  font-variant-numeric: tabular-nums; }
.facts .value.words { font-size: 1.15rem; padding-top: .4rem; letter-spacing: 0; }
.facts .value.good { color: var(--good); }
.facts .value.bad { color: var(--warn); }
.facts .more { font-size: .85rem; color: var(--muted); line-height: 1.4; }
.notes { border-left: .25rem solid var(--warn); background: var(--warn-soft); padding: .7rem 1rem;
  border-radius: 0 .4rem .4rem 0; margin: 1.25rem 0; }
.notes h3 { margin: 0; font-size: 1rem; color: var(--warn); }
.notes ul { margin: .25rem 0 0; padding-left: 1.2rem; }
.notes.alarm { border: .2rem solid var(--warn); border-radius: .4rem; font-weight: 600; }
.notes.alarm h3 { font-size: 1.35rem; letter-spacing: .02em; }
figure { margin: 1rem 0 1.5rem; }
figcaption { color: var(--muted); font-size: .9rem; max-width: 46rem; margin-top: .35rem; }
.plot, .scroll { overflow-x: auto; max-width: 100%; }
.plot { border-radius: .4rem; }
.plot svg { display: block; width: 100%; height: auto;
  min-width: calc(38rem * var(--share)); max-width: calc(58rem * var(--share));
  font-family: inherit; }
.plot svg * { stroke-linejoin: round; stroke-linecap: butt; }
details { margin: .4rem 0; font-size: .9rem; }
summary { cursor: pointer; color: var(--accent); width: fit-content; }
details .scroll { max-height: 26rem; overflow-y: auto; border: 1px solid var(--line);
  border-radius: .4rem; margin-top: .4rem; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .32rem .6rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; vertical-align: top; }
th { font-weight: 600; }
thead th { color: var(--muted); white-space: normal; vertical-align: bottom; }
details thead th { position: sticky; top: 0; background: var(--paper); }
th:first-child, td:first-child { text-align: left; }
.members { font-size: .84rem; }
.members th, .members td { padding: .32rem .42rem; }
.members th:first-child { max-width: 14rem; overflow-wrap: break-word; white-space: normal; }
.wide th, .wide td { text-align: left; white-space: normal; min-width: 7rem; }
.wide td { overflow-wrap: anywhere; }
.digests td { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  font-size: .95em; }
tbody tr:last-child > * { border-bottom: 0; }
code, pre, .digest { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  font-size: .86em; overflow-wrap: anywhere; }
pre { background: var(--soft); padding: .8rem 1rem; border-radius: .4rem; overflow-x: auto;
  white-space: pre; max-height: 26rem; }
footer { color: var(--muted); font-size: .85rem; margin-top: 3rem;
  border-top: 1px solid var(--line); padding-top: .8rem; }
@media print {
  :root { --ink: #000; --muted: #444; --line: #bbb; --soft: #eee; --paper: #fff; --accent: #000;
    --good: #000; --warn: #000; --warn-soft: #fff; }
  .page { display: block; max-width: none; padding: 0; }
  nav, .skip, details:not([open]) { display: none; }
  .plot svg { min-width: 0; }
  .plot, .scroll { overflow: visible; max-height: none; }
  figure, .facts, tr { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  h2 { margin-top: 1.5rem; }
}
"""
