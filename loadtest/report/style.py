"""How every report looks: colours, letters and tables, on a desk, on a phone and on paper, in light and dark, for colour-blind eyes too.

No script, no font, no link to anywhere: a report is one file. What stands in it is `report/page.py`'s, here and in other rooms.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

# Okabe and Ito's colours, told apart by all common kinds of colour blindness; darkened (light page) or lightened to 3:1 against the page.
LIGHT = ("#0072B2", "#C04A00", "#007A5A", "#A3457F", "#8A6A00", "#444444")
DARK = ("#56B4E9", "#F0853B", "#2FC79B", "#E39AC4", "#E6C84A", "#BBBBBB")


def document(title: str, body: Sequence[str], more_css: str = "") -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{_css()}{more_css}</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


def text(value: object) -> str:
    """Whatever comes from outside, as it may stand in HTML."""
    return html.escape(str(value))


def grid(heads: Sequence[str], rows: Sequence[str], *, ends_in_words: bool = False) -> str:
    """On a phone every row becomes a block, whose cells name their own column."""
    titles = "".join(f"<th>{h}</th>" for h in heads)
    kind = ' class="words"' if ends_in_words else ""
    return f"<table{kind}><thead><tr>{titles}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def row(heads: Sequence[str], name: str, cells: Sequence[str]) -> str:
    filled = "".join(f'<td data-head="{h}">{cell}</td>' for h, cell in zip(heads[1:], cells, strict=True))
    return f"<tr><th>{name}</th>{filled}</tr>"


def _css() -> str:
    def colours(values: Sequence[str]) -> str:
        return "".join(f"--c{i}:{c};" for i, c in enumerate(values))

    light = f"--page:#fff;--text:#1a1a1a;--soft:#5c5c5c;--rule:#dcdcdc;--box:#f5f5f3;--warn:#fff4e0;{colours(LIGHT)}"
    dark = f"--page:#16181b;--text:#e8e8e6;--soft:#a6a8ab;--rule:#3a3d42;--box:#202328;--warn:#33291a;{colours(DARK)}"
    classes = "".join(f".fill.c{i}{{fill:var(--c{i})}}.line.c{i}{{stroke:var(--c{i})}}" for i in range(6))
    return (
        f":root{{color-scheme:light dark;{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"
        f"@media print{{:root{{color-scheme:light;{light}}}}}{classes}{CSS}"
    )


CSS = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);font:16px/1.5 system-ui,sans-serif}
main{max-width:820px;margin:0 auto;padding:28px 30px 60px}
h1{font-size:28px;margin:0 0 8px;line-height:1.2}
h2{font-size:19px;margin:34px 0 10px}
.point{font-size:22px;border-top:2px solid var(--rule);padding-top:22px;margin-top:40px}
.kind{margin:0;color:var(--soft);font-size:14px}
.result{font-size:19px;line-height:1.5;margin:0 0 18px}
dl{margin:0;background:var(--box);padding:10px 16px;border-radius:6px}
dl div{display:flex;gap:12px;padding:3px 0}
dt{flex:0 0 92px;color:var(--soft)}
dd{margin:0;overflow-wrap:anywhere}
ul{margin:0;padding-left:20px}
li{margin:4px 0}
code{font:14px ui-monospace,monospace;overflow-wrap:anywhere}
.tag,.flag{font-size:12px;border:1px solid var(--rule);border-radius:4px;padding:0 5px;white-space:nowrap;font-weight:400}
.flag{background:var(--warn);border-color:currentColor}
.absent{background:var(--warn);border-radius:6px;padding:12px 16px;margin-top:26px}
.absent h2{margin:0 0 6px}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:7px 6px;border-bottom:1px solid var(--rule);vertical-align:top}
th{font-weight:400;color:var(--soft)}
th:first-child,.words td:last-child,.words th:last-child{text-align:left}
th strong,thead th,.few{white-space:nowrap}
tbody th{color:var(--text)}
.gone td{text-align:left;color:var(--soft)}
.between{display:block;color:var(--soft);font-size:12px;white-space:nowrap}
.few{color:var(--soft)}
summary{cursor:pointer;margin:30px 0 8px;font-size:19px;font-weight:700}
figure{margin:0}
figcaption{color:var(--soft);font-size:14px}
.keys{display:block;color:var(--text)}
.key{display:inline-block;margin-right:18px;white-space:nowrap}
svg{max-width:100%;height:auto;display:block}
.key svg{display:inline-block;vertical-align:middle}
text{fill:var(--soft);font-size:13px}
.name{fill:var(--text);font-size:14px}
.end{text-anchor:end}.middle{text-anchor:middle}
.rule{stroke:var(--rule);fill:none}
.line{fill:none;stroke-width:2.5}
.whisker{stroke:var(--text);stroke-width:1.5;fill:none}
.dot{fill:var(--page);stroke:var(--text);stroke-width:1.2}
.narrow{display:none}
@media(max-width:640px){
main{padding:16px 16px 40px}
.result{font-size:17px}
dl div{display:block}
.wide{display:none}.narrow{display:block}
thead{display:none}
tr{display:block;border-bottom:1px solid var(--rule);padding:8px 0}
tbody th,td{display:flex;justify-content:space-between;gap:14px;border:0;padding:2px 0;text-align:right!important}
tbody th{display:block;text-align:left!important}
td[data-head]::before{content:attr(data-head);color:var(--soft);text-align:left;flex:0 1 auto}
.between{display:inline;margin-left:8px;white-space:normal}
}
@media print{main{max-width:none;padding:0}
details:not([open])>*{display:block}::details-content{content-visibility:visible;height:auto;display:block}
figure,tr,.absent,dl{break-inside:avoid}body{font-size:11pt}}
""".replace("\n", "")
