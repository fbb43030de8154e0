"""What every page of an index looks like: its frame, its style, the one script that fills addresses in.

The script only writes the page's own address into the install commands; without it they name a
place to fill in. Installers see plain links.
"""

from __future__ import annotations

_STYLE = """
:root{color-scheme:light dark;--fg:#1f2328;--bg:#fff;--dim:#59636e;
--line:#d1d9e0;--box:#f6f8fa;--link:#0550ae}
@media(prefers-color-scheme:dark){
:root{--fg:#e6edf3;--bg:#0d1117;--dim:#9198a1;--line:#3d444d;--box:#161b22;--link:#79b8ff}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:76rem;padding:1.5rem 1rem 4rem;background:var(--bg);color:var(--fg);
font:1rem/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0 0 .25rem;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:2rem 0 .5rem;overflow-wrap:anywhere}
p{margin:.25rem 0 1rem;color:var(--dim)}
a{color:var(--link);text-decoration:none}a:hover{text-decoration:underline}
section{content-visibility:auto;contain-intrinsic-size:auto 12rem}
pre{margin:.25rem 0;padding:.5rem .75rem;background:var(--box);border:1px solid var(--line);border-radius:6px;
white-space:pre-wrap;overflow-wrap:anywhere;user-select:all;-webkit-user-select:all;cursor:copy}
pre,code{font:.85rem/1.5 ui-monospace,monospace}var{font-style:normal}
ul{list-style:none;margin:.5rem 0;padding:0}
li{display:flex;flex-wrap:wrap;gap:0 1rem;padding:.35rem 0;border-top:1px solid var(--line)}
li>a{flex:1 1 24rem;min-width:0;overflow-wrap:anywhere}
li>span,li>time,li>code{color:var(--dim);font-variant-numeric:tabular-nums;white-space:nowrap}
li>span{flex:0 0 5.5rem;text-align:right}
li>a[data-yanked]{text-decoration:line-through}li>em{flex-basis:100%;color:var(--dim)}
@media(max-width:44rem){li>a{flex-basis:100%}li>span{flex:none;text-align:left}}
""".strip()

_SCRIPT = """
for(const v of document.querySelectorAll("var")){
const u=new URL(v.dataset.to||"",location.origin+location.pathname).href;
if(/^https?:[\\w:/.%+~@-]+$/.test(u))v.textContent=u}
""".strip()

HEAD = (
    '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="pypi:repository-version" content="1.1">\n'
    '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
    f"<title>%s</title>\n<style>\n{_STYLE.replace('%', '%%')}\n</style>\n</head>\n<body>\n<h1>%s</h1>\n"
)
FOOT = f"<script>\n{_SCRIPT}\n</script>\n</body>\n</html>\n"
