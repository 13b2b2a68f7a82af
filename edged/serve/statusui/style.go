package statusui

// head writes all that stands before the page's own content.
func (p *writer) head(title string) {
	p.markup(`<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="refresh" content="30">
<link rel="icon" href="data:,">
<title>`)
	p.text(title)
	p.markup(" · edgecore</title><style>", style, "</style></head><body>\n")
}

// style sizes things for a thumb and a small screen; a wide one has the tiles beside each other.
const style markup = `
:root{--bg:#f4f5f7;--card:#fff;--text:#1b1f24;--soft:#57606a;--line:#d8dde3;--ok:#1a7f37;--warn:#9a6700;--bad:#c62828}
@media(prefers-color-scheme:dark){:root{--bg:#0f1318;--card:#1a2027;--text:#e6e9ee;--soft:#9aa4b0;--line:#303841;--ok:#4cc36b;--warn:#e0b040;--bad:#ff7b72}}
*{box-sizing:border-box;margin:0}
body{background:var(--bg);color:var(--text);font:16px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;overflow-wrap:anywhere}
header,main{max-width:60rem;margin:auto;padding:1rem}
header{padding-bottom:0}
h1{font-size:1.5rem}
h2{font-size:.9rem;color:var(--soft);text-transform:uppercase;letter-spacing:.04em;margin-bottom:.4rem}
small,dt{color:var(--soft);font-size:.85rem}
code{font:.85rem ui-monospace,"DejaVu Sans Mono",monospace}
section{background:var(--card);border:1px solid var(--line);border-radius:.6rem;padding:.9rem;margin-bottom:.8rem}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,15rem),1fr));gap:.8rem;margin-bottom:.8rem}
.tile{margin:0}
.big{font-size:1.2rem;font-weight:600}
.state{margin-top:.5rem;padding:.6rem .9rem;border-radius:.6rem;font-weight:600;color:#fff}
.state.ok{background:#1a7f37}.state.warn{background:#9a6700}.state.bad{background:#b3261e}
ul{list-style:none;padding:0}
li{padding:.7rem 0;border-top:1px solid var(--line)}
li:first-child{border-top:0}
li.bad>b{color:var(--bad)}li.warn>b{color:var(--warn)}
.dot{display:inline-block;width:.7rem;height:.7rem;border-radius:50%;margin-right:.5rem}
.dot.ok,.bar.ok i{background:var(--ok)}.dot.warn,.bar.warn i{background:var(--warn)}.dot.bad,.bar.bad i{background:var(--bad)}
.status{float:right;margin-left:.8rem;font-weight:600}
.why{color:var(--bad)}
.remedy{color:var(--soft)}
.bar{height:.6rem;border-radius:.3rem;background:var(--line);overflow:hidden;margin:.3rem 0}
.bar i{display:block;height:100%}
.values{align-items:center;margin-top:.4rem}
.plot{display:block;width:100%;max-width:20rem;height:1.6rem}.plot polyline{fill:none;stroke:var(--ok);stroke-width:1.5;vector-effect:non-scaling-stroke}
dl{display:grid;grid-template-columns:auto 1fr;gap:.2rem .9rem;margin-bottom:.5rem}
`
