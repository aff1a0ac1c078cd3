"""What is sent to the terminal: enough for the same picture, and no more."""

from __future__ import annotations

import random

import pyte
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.geometry import Region
from textual.strip import Strip

from tui.painting import Painted, differing

WIDTH, ROWS = 12, 3
STYLES = [Style.parse("red"), Style.parse("bold"), Style.parse("green on blue")]


def picture(draw: random.Random) -> list[tuple[Strip, Strip]]:
    """Rows of two pieces each, of few letters and styles, so that neighbours often agree in a part."""

    def piece() -> Strip:
        found = [Segment("".join(draw.choices("ab界 ", k=draw.randint(1, 3))), draw.choice(STYLES)) for _ in range(3)]
        return Strip(found).adjust_cell_length(WIDTH // 2)

    return [(piece(), piece()) for _ in range(ROWS)]


CONSOLE = Console(color_system="truecolor", force_terminal=True)


HALF = WIDTH // 2
SPANS = [(0, WIDTH), (0, HALF), (HALF, WIDTH)]
WHOLE_ROWS = [SPANS[0]] * ROWS
GROUND = Strip.blank(HALF)


def partial(picture: list[tuple[Strip, Strip]], spans: list[tuple[int, int]]) -> ChopsUpdate:
    """An update of one span a row. As Textual does it, what lies beside the span is the ground behind the widget there."""
    chops: list[dict[int, Strip | None]] = [
        {0: left if x1 < HALF else GROUND, HALF: right if x2 > HALF else GROUND}
        for (left, right), (x1, x2) in zip(picture, spans, strict=True)
    ]
    return ChopsUpdate(chops, [(y, x1, x2) for y, (x1, x2) in enumerate(spans)], [[HALF, WIDTH]] * ROWS)


def whole(picture: list[tuple[Strip, Strip]]) -> LayoutUpdate:
    return LayoutUpdate([list(row) for row in picture], Region(0, 0, WIDTH, ROWS))


def cells(sent: list[str]) -> list[list[tuple[str, ...]]]:
    screen = pyte.Screen(WIDTH, ROWS)
    stream = pyte.Stream(screen)
    for text in sent:
        stream.feed(text.replace("\n", "\r\n"))
    return [[tuple(map(str, screen.buffer[y][x])) for x in range(WIDTH)] for y in range(ROWS)]


def test_the_terminal_shows_what_textual_would_have_painted() -> None:
    draw = random.Random(1)
    painted, plain, reduced = Painted(), [], []
    shown = picture(draw)
    for n in range(120):
        spans = [SPANS[0] if n % 40 == 0 else draw.choice(SPANS) for _ in range(ROWS)]
        shown = [
            (new[0] if x1 < HALF and draw.random() < 0.5 else old[0], new[1] if x2 > HALF and draw.random() < 0.5 else old[1])
            for old, new, (x1, x2) in zip(shown, picture(draw), spans, strict=True)
        ]
        update = whole(shown) if n % 40 == 0 else partial(shown, spans)
        plain.append(update.render_segments(CONSOLE))
        reduced.append(painted.reduced(update).render_segments(CONSOLE))  # type: ignore[attr-defined]
        assert cells(reduced[-1 - n % 40 :]) == cells(plain[-1 - n % 40 :])
    assert len("".join(reduced)) < 0.8 * len("".join(plain))


def test_what_stands_there_is_not_sent_again() -> None:
    style = STYLES[0]
    row = (Strip([Segment("Disks ", style)]), Strip([Segment("now ", style), Segment("--", style)]))
    later = (row[0], Strip([Segment("1 s ", style), Segment("--", style)]))
    painted = Painted()
    painted.reduced(whole([row] * ROWS)).render_segments(CONSOLE)  # type: ignore[attr-defined]
    assert painted.reduced(partial([row] * ROWS, WHOLE_ROWS)).render_segments(CONSOLE) == ""  # type: ignore[attr-defined]
    sent = painted.reduced(partial([row, later, row], WHOLE_ROWS)).render_segments(CONSOLE)  # type: ignore[attr-defined]
    assert sent == "\x1b[2;7H\x1b[31m1 s \x1b[0m"
    painted.forget()
    assert "Disks" in painted.reduced(partial([row] * ROWS, WHOLE_ROWS)).render_segments(CONSOLE)  # type: ignore[attr-defined]


def test_the_part_that_differs_is_found_between_both_ends() -> None:
    old, new = (Strip([Segment(text) for text in texts]) for texts in (("aa", "bb", "cc"), ("aa", "xx", "cc")))
    assert differing(old, new) == (2, [Segment("xx")])
