"""Hiding secrets in text that leaves the run's own files: events, alerts, command lines, environments, log tails.

Pure. What is hidden becomes ``[hidden]``; hiding twice changes nothing. The run's own log stays as the worker wrote it.
"""

from __future__ import annotations

import re
from typing import Callable, Dict, Iterable, List, Mapping, Match, Pattern, Tuple, Union

from eagle3.runner import tokens

HIDDEN = "[hidden]"

_SECRET_NAME = re.compile(
    r"(^|[_.-])(token|secret|password|passwd|passphrase|api_?key|access_?key|secret_?key|private_?key|credentials?)$",
    re.IGNORECASE,
)
_KEPT_BACK = re.compile(r"(passw(or)?d|_pass|_pwd|_key|_key_id|_pat)$", re.IGNORECASE)
"""Beyond those: names whose value may well be shown in part, but that nobody inherits."""
_SWITCH = frozenset({"", "0", "1", "true", "false", "yes", "no", "on", "off"})
"""Values in lower case that no secret has: HF_HUB_DISABLE_IMPLICIT_TOKEN=1 is a switch."""
_PLACES = re.compile(r"(?:(?<=[\s,;=])|^)[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s,;\"']*|(?:(?<=[\s:,;=])|^)[~.]{0,2}/[^\s:,;\"']*")
"""Addresses and paths in a value. A folder may well be called hf_datasets, and PATH and HF_HOME must not go for it."""
NAMES_VARIABLE = "EAGLE3_SECRETS"
"""Tells a worker which variables of its environment are secrets, so that it does not quote their values."""
_SHORTEST_VALUE = 4
"""Known values shorter than this are not looked for: they would hide ordinary words."""

_Rule = Tuple[Tuple[str, ...], Pattern[str], Union[str, Callable[[Match[str]], str]]]


def _unless_plain(match: "Match[str]") -> str:
    """A named value, hidden unless it is a number, a truth value, or a tokenizer's ``eos_token: </s>``."""
    name, between, value = match.group(1), match.group(2), match.group(3)
    plain = value.lower() in ("none", "null", "true", "false", "unset") or value.replace(".", "", 1).isdigit()
    short_token = name.lower() == "token" and (len(value) < 8 or value[0] in "<[")
    return match.group(0) if plain or short_token or value == HIDDEN else f"{name}{between}{HIDDEN}"


_NAMES = r"token|secret|password|passwd|passphrase|api[_-]?key|access[_-]?key|secret[_-]?key|private[_-]?key|credentials?"
_PEM = "(-----{} [A-Z ]{{0,40}}PRIVATE KEY-----)"
_VALUE = r"[^\s\"',;&\\]+"
# Each rule is tried only where one of its needles stands in the lower-cased text: most text has none.
_BY_BEGINNING: Tuple[_Rule, ...] = (
    # First, for a token of another make may carry one, and would be hidden up to its first dot.
    (("eyj",), tokens.JWT, HIDDEN),
    # Shorter than real tokens too: text may be cut anywhere, and a word too much that is hidden does no harm.
    (("hf_",), re.compile(r"\bhf_[A-Za-z0-9]{8,}"), "hf_" + HIDDEN),
    (("sk-",), re.compile(r"\bsk-[A-Za-z0-9_-]{12,}"), "sk-" + HIDDEN),
    (
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "nvapi-", "xox"),
        re.compile(r"\b(gh[pousr]_|github_pat_|glpat-|nvapi-|xox[abeprs]-)[A-Za-z0-9_-]{10,}"),
        r"\1" + HIDDEN,
    ),
    (("akia", "asia"), re.compile(r"\b(AKIA|ASIA)[0-9A-Z]{16}\b"), r"\1" + HIDDEN),
    (
        tokens.NEEDLES,
        tokens.TOKEN,
        HIDDEN,
    ),
)
_PRIVATE_KEY: _Rule = (
    ("private key-----",),
    re.compile(_PEM.format("BEGIN") + r"(?!\[hidden\]).*?(?=" + _PEM.format("END") + r"|\Z)", re.DOTALL),
    r"\1" + HIDDEN,
)
_BY_PLACE: Tuple[_Rule, ...] = (
    (("bearer",), re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}"), r"\1" + HIDDEN),
    (
        ("authorization",),
        re.compile(r"(?i)\b(authorization[\"']?\s*[:=]\s*[\"']?(?:basic|token|digest)\s+)(?!\[hidden\])" + _VALUE),
        r"\1" + HIDDEN,
    ),
    (("://",), re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,30}://)[^/\s:@\[\]]*:[^/\s@]+@"), r"\1" + HIDDEN + "@"),
    (("://",), re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,30}://)[^/\s:@\[\]]{20,}@"), r"\1" + HIDDEN + "@"),
    # Addresses whose path is the secret (chat webhooks), and signed ones.
    (
        ("hooks.", "webhook"),
        re.compile(r"(?i)(https?://[^\s/\"']*(?:hooks\.|webhook)[^\s/\"']*/|https?://[^\s/\"']+/(?:[^\s/\"']+/){0,4}webhooks?/)(?!\[hidden\])[^\s\"']+"),
        r"\1" + HIDDEN,
    ),
    (("sig", "key="), re.compile(r"(?i)([?&](?:key|sig|signature|x-amz-signature)=)(?!\[hidden\])[^&\s\"']+"), r"\1" + HIDDEN),
    (
        ("token", "secret", "passw", "passphrase", "key", "credential"),
        re.compile(r"(?i)(" + _NAMES + r")([\"']?\s*[:=]\s*[\"']?)(" + _VALUE + ")"),
        _unless_plain,
    ),
    (
        ("token", "secret", "passw", "passphrase", "key", "credential"),
        re.compile(r"(?i)(--[a-z0-9_-]{0,40}(?:" + _NAMES + r"))(\s+)(?!-|\[hidden\])(" + _VALUE + ")"),
        _unless_plain,
    ),
)  # fmt: skip


def redact(text: str, values: Iterable[str] = ()) -> str:
    """``text`` without what looks like a secret, and without the secrets ``values`` themselves.

    Hidden are tokens of known makes, bearer and basic credentials, private keys, credentials in URLs, the paths of
    webhooks, and the values of names such as ``HF_TOKEN=``, ``"api_key":`` or ``--password``.
    """
    for value in sorted((v for v in values if len(v) >= _SHORTEST_VALUE), key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return _apply((_PRIVATE_KEY, *_BY_BEGINNING, *_BY_PLACE), text)


def _apply(rules: Iterable[_Rule], text: str) -> str:
    low = text.lower()
    for needles, pattern, shown in rules:
        if any(needle in low for needle in needles):
            text = pattern.sub(shown, text)
    return text


def is_secret_name(name: str) -> bool:
    """Whether an environment variable or an option of that name holds a secret: HF_TOKEN, api-key, DB_PASSWORD."""
    return _SECRET_NAME.search(name) is not None


def without_secrets(variables: Mapping[str, str]) -> Dict[str, str]:
    """An environment for a process that was given no secret: without what ``EAGLE3_SECRETS`` names, and without what looks like
    a secret by its name or is a token by its value: of a token's length and alphabet (``eagle3.runner.tokens``), for a data set
    may well be called ``hf_internal-testing/x``. What is a switch by its value, an address with credentials (a proxy's: it is
    how the network is found) and a path stay."""
    named = {NAMES_VARIABLE, *variables.get(NAMES_VARIABLE, "").split(",")}
    return {name: value for name, value in variables.items() if name not in named and not _looks_secret(name, value)}


def _looks_secret(name: str, value: str) -> bool:
    if value.lower() in _SWITCH:
        return False
    by_name = is_secret_name(name) or _KEPT_BACK.search(name) is not None
    words = "" if by_name else _PLACES.sub("", value)
    return by_name or tokens.TOKEN.search(words) is not None or _apply((_PRIVATE_KEY, *_BY_PLACE), words) != words


def secret_values(variables: Mapping[str, str]) -> Tuple[str, ...]:
    """The values in an environment that are secrets: by what ``EAGLE3_SECRETS`` names, and by their own names."""
    named = set(variables.get(NAMES_VARIABLE, "").split(","))
    return tuple(value for name, value in variables.items() if value and (name in named or is_secret_name(name)))


def command(arguments: Iterable[str], values: Iterable[str] = ()) -> List[str]:
    """A command line to show: without the secrets ``values``, and the argument after ``--token`` and its like is hidden too."""
    shown: List[str] = []
    known = tuple(values)
    hide = False
    for argument in arguments:
        shown.append(HIDDEN if hide and not argument.startswith("-") else redact(argument, known))
        hide = argument.startswith("-") and "=" not in argument and is_secret_name(argument.lstrip("-").replace("-", "_"))
    return shown


def environment(variables: Dict[str, str]) -> Dict[str, str]:
    """Environment variables to show: the values of secret names are hidden whole, the others as in ``redact``."""
    return {name: HIDDEN if value and is_secret_name(name) else redact(value) for name, value in variables.items()}


def address(url: str) -> str:
    """A webhook's address to show: scheme and host only, since path, query and user may each be the secret."""
    scheme, _, rest = url.partition("://")
    host = re.split(r"[/?#\\]", rest, maxsplit=1)[0].rpartition("@")[2]
    return f"{scheme}://{host}/…" if rest else "…"
