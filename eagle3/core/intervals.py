"""Intervals of figures that are sums over answers: of a ratio, of a share, and of the ratio of two speeds.

The drafts of one answer resemble each other (a prompt is easy or hard as a whole), so what is drawn at random is the answer, not
the draft. Counting the drafts as if each were drawn by itself makes an interval half as wide as the truth or less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Interval = tuple[float, float]

Z_95 = 1.959964
"""Two-sided 95 % point of the normal distribution."""

_T_95 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
"""The same of Student's distribution, for 1 to 10 degrees of freedom."""


def t_95(freedom: int) -> float:
    """Two-sided 95 % point of Student's distribution; infinite for no degree of freedom.

    Beyond the table by Fisher's expansion in 1/freedom (Abramowitz and Stegun 1964, 26.7.5), which is within 0.0002 of it there.
    """
    if freedom < 1:
        return math.inf
    if freedom <= len(_T_95):
        return _T_95[freedom - 1]
    z = Z_95
    first, second, third = z**3 + z, 5 * z**5 + 16 * z**3 + 3 * z, 3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z
    return z + first / (4 * freedom) + second / (96 * freedom**2) + third / (384 * freedom**3)


def ratio_variance(above: Sequence[float], below: Sequence[float]) -> float:
    """Variance of ``sum(above) / sum(below)``, one pair for each answer, the answers being independent of each other.

    The jackknife that leaves out one answer at a time, in closed form: (n-1)/n · Σ (eᵢ / (1 - hᵢ))² with the residual
    eᵢ = (aboveᵢ - ratio · belowᵢ) / Σ below and the share hᵢ = belowᵢ / Σ below. It is the linearised variance of a ratio
    estimator (Cochran 1977, "Sampling Techniques", 3rd edition, chapter 6), each residual widened by the answer's own weight,
    which counts where there are few (Cameron and Miller 2015, "A Practitioner's Guide to Cluster-Robust Inference", CR3).
    Infinite for fewer than two answers, or where one of them is the whole.
    """
    whole, n = sum(below), len(below)
    if n < 2 or whole <= 0 or max(below) >= whole:
        return math.inf
    ratio = sum(above) / whole
    left_out = ((a - ratio * b) / (whole - b) for a, b in zip(above, below, strict=True))
    return (n - 1) / n * sum(residual * residual for residual in left_out)


Counted = tuple[float, float]
"""Of one answer: what is summed above and below the line of a ratio."""


def difference_interval(first: Sequence[Counted], second: Sequence[Counted]) -> Interval:
    """95 % interval of the difference of two ratios, ``first`` less ``second``, on the answers to the same prompts in the same
    order: the jackknife leaves out one prompt on both sides, so what makes a prompt easy for both does not widen it. Unbounded
    for fewer than two prompts. Raises ValueError where the prompts are not as many."""
    if len(first) != len(second):
        raise ValueError(f"{len(first)} answers cannot be paired with {len(second)}.")
    n = len(first)
    if n < 2:
        return (-math.inf, math.inf)
    sums = [sum(column) for side in (first, second) for column in zip(*side, strict=True)]
    without = []
    for one, other in zip(first, second, strict=True):
        above, below, above_other, below_other = (whole - own for whole, own in zip(sums, (*one, *other), strict=True))
        without.append(above / below - above_other / below_other)
    mean = sum(without) / n
    half = t_95(n - 1) * math.sqrt((n - 1) / n * sum((one - mean) ** 2 for one in without))
    whole = sums[0] / sums[1] - sums[2] / sums[3]
    return (whole - half, whole + half)


def share_interval(share: float, variance: float, at_most: float, z: float) -> Interval:
    """Wilson's interval of a share for the number of independent trials that its ``variance`` is worth, ``share·(1-share) /
    variance``, and never more than ``at_most``; ``z``: the distribution's point.

    Franco, Little, Louis and Slud 2019, "Comparative Study of Confidence Intervals for Proportions in Complex Sample Surveys".
    A share of exactly 0 or 1 has no variance by which to tell: ``at_most`` is then taken.
    """
    if math.isinf(variance) or math.isinf(z):
        return (0.0, 1.0)
    spread = share * (1 - share)
    trials = min(at_most, spread / variance) if variance > 0 and spread > 0 else at_most
    return wilson(share * trials, trials, z)


def wilson(successes: float, trials: float, z: float = Z_95) -> Interval:
    """Wilson's score interval of a proportion; (0, 1) where nothing was tried. Raises ValueError where
    ``successes`` is not between 0 and ``trials``."""
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials cannot be.")
    if trials == 0:
        return (0.0, 1.0)
    p = successes / trials
    spread = 1 + z * z / trials
    centre = (p + z * z / (2 * trials)) / spread
    half = z * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials)) / spread
    # At the ends the formula is exact but its rounding is not.
    return (0.0 if successes == 0 else max(0.0, centre - half), 1.0 if successes == trials else min(1.0, centre + half))


Timed = tuple[float, float]
"""An answer's tokens, and the seconds from its request to its end."""


def gain_spread(faster: Sequence[Timed], slower: Sequence[Timed]) -> float | None:
    """By what factor (1 or more) the ratio of two speeds may be off, at 95 %: both loads' answers, in the order of the same
    prompts. None where the answers are not known, or are fewer than two.

    The jackknife of the ratio's logarithm over the prompts, each taken out of both loads at once (Shao and Tu 1995, "The
    Jackknife and Bootstrap", chapter 2). It holds what differs from prompt to prompt. A machine that was slower as a whole
    during one of the two loads is not seen in it.
    """
    n = len(faster)
    if n < 2 or len(slower) != n or any(tokens <= 0 or seconds <= 0 for tokens, seconds in (*faster, *slower)):
        return None
    sums = [sum(column) for load in (faster, slower) for column in zip(*load, strict=True)]
    without = []
    for (tokens, seconds), (tokens_slower, seconds_slower) in zip(faster, slower, strict=True):
        rest = [whole - own for whole, own in zip(sums, (tokens, seconds, tokens_slower, seconds_slower), strict=True)]
        without.append(math.log(rest[0] / rest[1]) - math.log(rest[2] / rest[3]))
    mean = sum(without) / n
    variance = (n - 1) / n * sum((one - mean) ** 2 for one in without)
    return math.exp(min(t_95(n - 1) * math.sqrt(variance), _MOST_SPREAD))


_MOST_SPREAD = 20.0
"""A logarithm beyond which a factor says no more than "unknown", so that it stays a number."""
