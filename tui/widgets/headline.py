"""The top of the Run screen: the state in a word, then what matters most now — the failure, the verdict, or that the
link is gone — before any detail."""

from __future__ import annotations

import textwrap

from rich.text import Text
from textual.widget import Widget

from eagle3.core.records import Result, RunSummary
from eagle3.core.wording import listed
from tui.formats import STATE_WORDS, age_label, clean_line, number_label, one_line
from tui.keymap import key_of
from tui.state import RunView
from tui.themes.palette import BAD, GOOD, MUTED, STATE_COLOURS, TEXT, WARN

VERDICT_COLOURS = {"useful": GOOD, "broken": BAD}
"""Every other verdict wants attention; the sentence says what it is."""

ROWS = 6
"""Rows that the headline may take; ``max-height`` in the style sheet is the same."""
MORE = " … (v shows all)"
PAUSED = "Paused by "
"""How a worker that is held begins to say why."""


def figures_line(result: Result, width: int = 200) -> str:
    """The figures of a finished run in one line, in few words where ``width`` is small. Simulated and served lengths
    never share a word."""
    served, val, lossless = result.served, result.val, result.lossless
    long, short = [], []
    if (length := _number(served.get("accept_len"))) is not None:
        long.append(f"acceptance length served {number_label(length)}")
        short.append(f"served {number_label(length)}")
    if (length := _number(val.get("accept_len"))) is not None:
        long.append(f"{'' if long else 'acceptance length '}simulated {number_label(length)}")
        short.append(f"simulated {number_label(length)}")
    with_draft, without = _number(served.get("tok_s")), _number(served.get("tok_s_no_draft"))
    if with_draft is not None and without is not None:
        long.append(f"{number_label(with_draft, 1)} tok/s with the draft, {number_label(without, 1)} without")
        short.append(f"{number_label(with_draft, 1)} vs {number_label(without, 1)} tok/s")
    if lossless.get("of"):
        long.append(f"{lossless.get('identical', 0)} of {lossless['of']} texts identical")
        short.append(f"{lossless.get('identical', 0)}/{lossless['of']} identical")
    words = " · ".join(long)
    return words if len(words) <= width else " · ".join(short)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def failure_words(view: RunView) -> str:
    """Why the run failed, in one sentence: its last error event, or else what the runner derived and its last line of log."""
    if event := view.failure:
        return one_line(event.text)
    if view.summary is None:
        return ""
    words = one_line(view.summary.state_text) or (
        f"The run was ended by signal {view.summary.exit_signal}"
        if view.summary.exit_signal
        else f"The run ended with code {view.summary.exit_code}"
    )
    if view.state == "failed" and (said := next((line.strip() for line in reversed(view.log) if line.strip()), "")):
        return f"{words}; its log ends with: {clean_line(said, 300)}"
    return words


def _rows(words: str, width: int) -> list[str]:
    return textwrap.wrap(words, max(20, width), break_on_hyphens=False)


def cut(words: str, width: int, rows: int) -> str:
    """``words`` as at most ``rows`` lines of ``width`` columns; what does not fit is left out with "… (v shows all)"."""
    lines = textwrap.wrap(words, max(20, width), max_lines=max(1, rows), placeholder=MORE, break_on_hyphens=False)
    return "\n".join(lines)


def headline(view: RunView, now: float, stale: bool, width: int = 200, link_problem: str = "") -> list[Text]:
    """One to four paragraphs that take at most ROWS rows of ``width`` columns: the state, then the failure, or the figures
    and the verdict, then a problem. The first is one row, its end left out where it is too long; the failure and the
    verdict are cut to the rows that the others leave. ``link_problem`` says why nothing new is heard, from the moment on
    that the link is gone."""
    run = view.summary
    symbol, word = STATE_WORDS.get(view.state, ("?", view.state))
    colour = STATE_COLOURS.get(view.state, MUTED)
    first = Text.assemble((f"{symbol} {word}", f"bold {colour}"), "  ", (view.run_id, TEXT))
    if run is None:
        first.append("  not heard of yet", MUTED)
        return [first] if not view.problem else [first, Text(f"▲ {view.problem}", WARN)]
    first.append(_about(run, view.age_of(run.ended_at or run.started_at or run.created_at, now), width - first.cell_len), MUTED)
    lines = [first]
    last = _last_words(view, now, stale, link_problem)
    left = ROWS - 1 - len(_rows(last, width))
    if view.state == "failed":
        lines.append(Text(cut(f"✗ {failure_words(view)}", width, left), BAD))
    elif view.state in {"lost", "unknown", "unsupervised", "stalled", "stopped"} and (why := failure_words(view)):
        lines.append(Text("  " + cut(why, width - 2, left), WARN if view.state != "stopped" else MUTED))
    elif not view.ended and run.stop_mode:
        by = f", asked by {clean_line(run.stop_by, 40)}" if run.stop_by else ""
        lines.append(Text(f"■ stopping {'now' if run.stop_mode == 'now' else 'after the next checkpoint'}{by}", WARN))
    elif not view.ended and run.paused_at is not None and (held := _held_words(run)):
        lines.append(Text(f"■ {held}; {_way_on(run)}", WARN))
    if view.result is not None and view.state == "finished":
        verdict = one_line(view.result.verdict_text) or one_line(view.result.verdict)
        if figures := figures_line(view.result, width - 9):
            lines.append(Text.assemble(("Figures  ", "bold"), (figures, MUTED)))
            left -= len(_rows(f"Figures  {figures}", width))
        if verdict:
            colour = VERDICT_COLOURS.get(view.result.verdict, WARN)
            words = cut(f"Verdict  {verdict}", width, left).removeprefix("Verdict  ")
            lines.append(Text.assemble(("Verdict  ", f"bold {colour}"), (words, TEXT)))
    if last:
        lines.append(Text(last, WARN))
    return lines


def _about(run: RunSummary, since_s: float | None, room: int) -> str:
    """What the first row says beside state and name, as much of it as ``room`` columns hold. Whose run it is goes last."""
    parts = [" on ".join(clean_line(run.label[key], 40) for key in ("target", "machine") if run.label.get(key))]
    parts.append(f"attempt {run.attempt}" if run.attempt > 1 else "")
    parts.append(f"{'ended' if run.ended_at else 'started'} {age_label(since_s)}" if since_s is not None else "")
    parts.append(f"launched by {clean_line(run.actor, 40)}" if run.actor else "")
    for place in (0, 1, 2, 3) if run.ended_at else (2, 0, 1, 3):
        words = " · ".join(filter(None, parts))
        if len(words) + 2 <= room:
            return f"  {words}" if words else ""
        parts[place] = ""
    return ""


def _held_words(run: RunSummary) -> str:
    """Who holds the run, or has asked for it; empty where it does something else (it is being stopped)."""
    if run.state_text.startswith(PAUSED):
        held = one_line(run.state_text.partition(";")[0])
        return held[:1].lower() + held[1:]
    if not run.state_text.startswith("pausing"):
        return ""
    names = listed([pause.by for pause in run.paused if pause.by]) or run.paused_by
    return f"{one_line(run.state_text)}, asked by {clean_line(names, 60)}" if names else one_line(run.state_text)


def _way_on(run: RunSummary) -> str:
    key = key_of("run", "pause")
    if len(run.pauses_to_lift()) < len(run.paused):
        return f"{key} ends the pauses of people, once more those of guards"
    return f"{key} lets it go on"


def _last_words(view: RunView, now: float, stale: bool, link_problem: str) -> str:
    """Why what is shown may be old, or nothing."""
    if not view.ended and link_problem:
        kept = "" if view.kept_at is None else f" The picture is as of {age_label(now - view.kept_at)}."
        return f"▲ {link_problem}{kept}"
    kept = "" if view.kept_at is None else f"as of {age_label(now - view.kept_at)}, kept by this console"
    if view.problem:
        return f"▲ {view.problem}" + (f" The picture is {kept}." if kept else "")
    if kept:
        return f"▲ {kept}; the container has not answered yet"
    if stale and not view.ended:
        return f"▲ stale: last heard {age_label(None if view.at is None else now - view.at)}"
    return ""


class Headline(Widget):
    """Up to ROWS rows; grows and shrinks with what there is to say."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: list[Text] = []

    def show(self, view: RunView, now: float, stale: bool, link_problem: str) -> None:
        lines = headline(view, now, stale, self.content_size.width or 76, link_problem)
        if lines != self._lines:
            before, self._lines = self._lines, lines
            # The first line is one row; where only its age has changed nothing moves.
            self.refresh(layout=[line.plain for line in before[1:]] != [line.plain for line in lines[1:]] or not before)

    def render(self) -> Text:
        return Text("\n").join(self._lines)
