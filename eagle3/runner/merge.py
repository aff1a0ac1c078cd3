"""Joining two edits of one text, line by line: what both kept stays, what either added stays, what one took away and the
other left alone goes. Where both changed the same lines both versions stay, one after the other: no line is ever lost.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import Dict, List, Sequence, Tuple


def merge(base: Sequence[str], theirs: Sequence[str], mine: Sequence[str]) -> Tuple[List[str], int]:
    """The merged lines, and in how many places both sides had changed the same lines. (The classical three-way merge:
    lines of the base that both sides kept are the anchors, and between two anchors at most one side's change wins.)"""
    kept_theirs, kept_mine = _kept(base, theirs), _kept(base, mine)
    anchors = [n for n in range(len(base)) if n in kept_theirs and n in kept_mine]
    merged: List[str] = []
    conflicts = base_at = theirs_at = mine_at = 0
    for anchor in [*anchors, len(base)]:
        theirs_end = kept_theirs.get(anchor, len(theirs))
        mine_end = kept_mine.get(anchor, len(mine))
        part, clash = _between(base[base_at:anchor], theirs[theirs_at:theirs_end], mine[mine_at:mine_end])
        merged += part
        conflicts += clash
        if anchor < len(base):
            merged.append(base[anchor])
        base_at, theirs_at, mine_at = anchor + 1, theirs_end + 1, mine_end + 1
    return merged, conflicts


def _kept(base: Sequence[str], side: Sequence[str]) -> Dict[int, int]:
    """Line of the base -> the same line of the side."""
    blocks = SequenceMatcher(None, base, side, autojunk=False).get_matching_blocks()
    return {block.a + n: block.b + n for block in blocks for n in range(block.size)}


def _between(base: Sequence[str], theirs: Sequence[str], mine: Sequence[str]) -> Tuple[List[str], bool]:
    base, theirs, mine = list(base), list(theirs), list(mine)
    if mine in (theirs, base):
        return theirs, False
    if theirs == base:
        return mine, False
    return [*theirs, *(line for line in mine if line not in theirs)], bool(base)
