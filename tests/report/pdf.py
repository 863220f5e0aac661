"""The words on each page of a PDF as Chromium prints it: enough of the format to read them back."""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Callable


def texts(pdf: bytes) -> list[str]:
    """A text for every page, without spaces and ligatures, in the order in which it is drawn."""
    objects = {int(n): body for n, body in re.findall(rb"(\d+) 0 obj\s(.*?)\sendobj", pdf, flags=re.S)}

    def stream(number: bytes) -> bytes:
        head, _, rest = objects[int(number)].partition(b"stream")
        content = rest.lstrip(b"\r\n").rpartition(b"endstream")[0]
        return zlib.decompressobj().decompress(content) if b"FlateDecode" in head else content

    def letters(font: bytes) -> dict[int, str]:
        found = re.search(rb"/ToUnicode (\d+) 0 R", objects[int(font)])
        known: dict[int, str] = {}
        if found:
            for kind, block in re.findall(rb"beginbf(char|range)\n(.*?)endbf", stream(found[1]), flags=re.S):
                for line in block.splitlines():
                    numbers = [bytes.fromhex(part.decode()) for part in re.findall(rb"<(\w+)>", line)]
                    first, last = (int.from_bytes(numbers[k]) for k in (0, 1 if kind == b"range" else 0))
                    start = numbers[-1].decode("utf-16-be")
                    known |= {n: start[:-1] + chr(ord(start[-1]) + n - first) for n in range(first, last + 1)}
        return known

    pages = [body for body in objects.values() if re.search(rb"/Type /Page\b", body)]
    contents = [re.findall(rb"/Contents (\d+) 0 R", page)[0] for page in pages]
    return [_text(stream(number), page, letters) for number, page in zip(contents, pages, strict=True)]


def _text(content: bytes, page: bytes, letters: Callable[[bytes], dict[int, str]]) -> str:
    fonts = {name: letters(number) for name, number in re.findall(rb"/(F\d+) (\d+) 0 R", page)}
    text = ""
    current: dict[int, str] = {}
    for font, shown in re.findall(rb"/(F\d+) [\d.]+ Tf|(<\w+>|\[[<>\w.\s-]*\]) T[jJ]", content):
        if font:
            current = fonts[font]
        for codes in re.findall(rb"<(\w+)>", shown):
            glyphs = (int(codes[k : k + 4], 16) for k in range(0, len(codes), 4))
            text += "".join(current.get(glyph, "") for glyph in glyphs)
    return unicodedata.normalize("NFKC", "".join(text.split()))
