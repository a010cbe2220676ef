"""Names that would be markup, scripts or terminal codes if they were not escaped."""

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "' onmouseover='alert(1)",
    "<svg/onload=alert(1)>",
    "</title><script>alert(1)</script>",
    "{{ 7 * 7 }}{% raw %}",
    "<!--", "-->", "]]>", "&lt;script&gt;", "&#60;script&#62;",
    "javascript:alert(1)",
    "\x00\x1b[2J\u202ex\u2028y",
]  # fmt: skip
