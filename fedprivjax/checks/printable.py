"""Text without control characters, and messages of bounded length.

Titles, labels and values of files from elsewhere may hold characters that move the cursor, colour a terminal, turn the
direction of text or are invisible. They are printed as escapes.
"""

import re
from unicodedata import category

HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # Unicode categories: control, direction and zero width, surrogate, breaks
LONGEST = 200  # largest number of characters of a value in a message
LINES, LINE = 20, 2000  # largest number of lines of a message, and of characters of a line
MANY = f"{{{LONGEST + 1},}}"
LONG = re.compile(rf"(?<!\w)'[^'\n]{MANY}'(?!\w)|(?<!\w)\"[^\"\n]{MANY}\"(?!\w)|\S{MANY}")  # quoted text or word
LIST = re.compile(r", got (?=[\[({])")  # before a value with brackets


def printable(text: str) -> str:
    r"""Return text with escapes in place of control and invisible characters, except line breaks.

    >>> print(printable("red \x1b[31m, zero width \u200b"))
    red \x1b[31m, zero width \u200b
    """
    if text.isprintable():
        return text
    return "".join(_escape(each) if is_hidden(each) else each for each in text)


def is_hidden(character: str) -> bool:
    """Return True for a control or invisible character other than a line break."""
    return character != "\n" and category(character) in HIDDEN


def message_text(message: str) -> str:
    """Return a message with escapes as in `printable`, and with long values and further lines left out.

    >>> len(message_text(f"title must be short, got '{'a' * 10**6}'. Shorten it"))
    237
    """
    lines = message.split("\n", LINES)
    rest = [f"and {lines[LINES].count(chr(10)) + 1} more lines"] if len(lines) > LINES else []
    return "\n".join([*(_shortened(printable(line)) for line in lines[:LINES]), *rest])


def _shortened(line: str) -> str:
    """Return a line with long values cut: quoted texts, words and lists."""
    if len(line) <= LONGEST:
        return line
    line = LONG.sub(lambda found: _cut(found.group(), LONGEST), line)
    found = LIST.search(line)
    if found is not None:
        end = max(found.end(), *(line.rfind(each) + 1 for each in "])}"))
        line = line[: found.end()] + _cut(line[found.end() : end], LONGEST) + line[end:]
    return _cut(line, LINE)


def _cut(text: str, longest: int) -> str:
    """Return the first `longest` characters of a text, with the closing quote or bracket of a longer one."""
    end = text[-1:] if text[-1:] in "'\")]}" else ""
    return text if len(text) <= longest else f"{text[: longest - 1 - len(end)]}…{end}"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
