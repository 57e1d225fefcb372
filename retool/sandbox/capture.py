"""Keeping the beginning and the end of a stream whose length nobody knows.

`StreamCapture`: takes bytes as they come, and holds at most `limit` characters.
"""

import codecs


class StreamCapture:
    """The first and last `limit / 2` characters of a UTF-8 stream; undecodable bytes become U+FFFD."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit - limit // 2
        self._tail_limit = limit // 2
        self._head = ""
        self._tail = ""
        self._characters = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes, *, final: bool = False) -> None:
        """Adds `data`. With `final`, an unfinished character at the end is replaced too."""
        text = self._decoder.decode(data, final)
        self._characters += len(text)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += text[:room]
            text = text[room:]
        if text and self._tail_limit:
            self._tail = (self._tail + text)[-self._tail_limit :]

    @property
    def text(self) -> str:
        """What was kept, with a line in the middle that says how many characters were left out, if any were."""
        omitted = self._characters - len(self._head) - len(self._tail)
        if omitted <= 0:
            return self._head + self._tail
        return f"{self._head}\n[{omitted} characters omitted]\n{self._tail}"
