"""HTML: the text that a reader of the page sees, one line for each paragraph, heading or item."""

from __future__ import annotations

import re
from collections import Counter
from html import unescape

from headrace.data.corpus.chunks import TextRange
from headrace.data.corpus.formats.whole import WholeFile
from headrace.data.corpus.signatures import refuse_what_is_not_text
from headrace.data.corpus.sources import Source
from headrace.data.corpus.utf8 import as_utf8, without_byte_order_mark

# Every alternative begins with "<" and never looks beyond the next one (or takes all that it looked at), so that time
# grows with the length of a page, whatever is in it: Python's own parser takes its square for some pages.
_MARKUP = re.compile(
    r"<!--.*?(?:-->|\Z)"
    r"|<(script|style|template|noscript|svg|math)\b[^<>]*>.*?(?:</\1\s*>|\Z)"
    r"|<(/?)([a-z][a-z0-9]*)(?:[^<>\"']|\"[^\"<]*+\"|'[^'<]*+')*+>"
    r"|<(/?)([a-z][a-z0-9]*)[^<>]*+>?"
    r"|<[!?][^<>]*+>?",
    re.DOTALL | re.IGNORECASE,
)
_BLOCKS = frozenset(
    "address article aside blockquote body br caption center dd details dialog div dl dt fieldset figcaption figure"
    " footer form h1 h2 h3 h4 h5 h6 head header hr html legend li main nav ol option p pre section summary table tbody"
    " td tfoot th thead title tr ul".split()
)
_SPACES = re.compile(r"[ \t\r\n\f]+")


class Html(WholeFile):
    """Web pages: tags, scripts, styles and comments are left out, entities are characters."""

    name = "html"
    suffixes = frozenset([".html", ".htm", ".xhtml"])
    shown = ".html"
    is_markup = True
    mark = "html 1"

    def extract(self, source: Source, text: TextRange, noticed: Counter[str]) -> bytes:
        refuse_what_is_not_text(text.raw, text.path)
        raw = without_byte_order_mark(text.raw, noticed)
        page = as_utf8(source, raw, text.path, text.offset, noticed).decode()
        return text_of_page(page).encode("utf-8", "replace")


def text_of_page(page: str) -> str:
    """Return the text of a page.

    >>> text_of_page("<title>Mill</title><p>The&nbsp;wheel <b>turns</b>.<script>x < 3</script><pre>a\\n  b</pre>")
    'Mill\\nThe\\xa0wheel turns.\\na\\n  b\\n'
    """
    pieces: list[str] = []
    place = preformatted = 0
    for found in _MARKUP.finditer(page):
        words = _words(page[place : found.start()], preformatted > 0)
        is_after_space = bool(pieces) and pieces[-1].endswith(" ") and not preformatted
        pieces += [words.removeprefix(" ") if is_after_space else words] if words else []
        place = found.end()
        name = (found[3] or found[5] or "").lower()
        is_end = bool(found[2] or found[4])
        if name == "pre":
            preformatted = max(0, preformatted + (-1 if is_end else 1))
        if name in _BLOCKS:
            pieces.append("\0")
    pieces.append(_words(page[place:], preformatted > 0))
    return _joined(pieces)


def _words(text: str, is_preformatted: bool) -> str:
    """Return the text between two tags, with single spaces unless it is preformatted."""
    text = text.replace("\0", "")
    return unescape(text if is_preformatted else _SPACES.sub(" ", text)).replace("\0", "")


def _joined(pieces: list[str]) -> str:
    """Return the pieces as lines, with one line end where there are marks of blocks between them."""
    lines = (line.strip(" ") for line in "".join(pieces).split("\0"))
    return "".join(f"{line}\n" for line in lines if line.strip())
