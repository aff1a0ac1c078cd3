"""What a token of a known make looks like: its prefix, its alphabet and its length, as the makers document them or have issued
them. Pure.

A name may well begin as a token does (``hf_internal-testing/x``, ``sk-learn-environment``); a token goes on without a word in it.
"""

from __future__ import annotations

import re
from typing import Dict, Pattern, Tuple

_ALNUM, _URL = "A-Za-z0-9", "A-Za-z0-9_-"

SHAPES: Dict[str, str] = {
    # huggingface.co/docs/hub/security-tokens; 34 letters and digits
    "Hugging Face": rf"(?:hf|api_org)_[{_ALNUM}]{{34,}}",
    # github.blog 2021-04-05 "Behind GitHub's new authentication token formats"; since 2026 installation tokens are longer
    "GitHub": rf"gh[pousr]_[{_ALNUM}_]{{36,}}",
    "GitHub, fine-grained": rf"github_pat_[{_ALNUM}_]{{60,}}",
    # docs.gitlab.com/security/tokens "Token prefixes"; 20 characters, the routable ones longer and with dots
    "GitLab": rf"gl(?:pat|oas|dt|rt|cbt|ptt|ft|imt|agent|soat|ffct)-[.{_URL}]{{20,}}",
    "NVIDIA": rf"nvapi-[{_URL}]{{60,}}",
    # api.slack.com/authentication/token-types: numbers of the workspace and the user, then letters and digits
    "Slack": rf"xox[abcdeoprs](?:\.xox[bp])?-(?:\d-)?[{_ALNUM}-]{{20,}}",
    "Slack, of an app": rf"xapp-\d-[{_ALNUM}]+-\d+-[{_ALNUM}]{{20,}}",
    # OpenAI, Anthropic, OpenRouter and those whose interface follows theirs
    "sk-": rf"sk-[{_ALNUM}]{{32,}}",
    "sk- of a kind": rf"sk-(?:proj|svcacct|service|admin|None|ant|or|lf|live|test)-[{_URL}]{{20,}}",
    "sk- of an unknown kind": "sk-"
    + "".join(rf"(?=[{_URL}]{{0,199}}[{some}])" for some in ("A-Z", "a-z", "0-9"))
    + rf"[{_URL}]{{40,}}",
    # docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html "Unique identifiers"
    "AWS": r"(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Za-z])",
    # cloud.google.com/docs/authentication: API keys and access tokens
    "Google": rf"AIza[{_URL}]{{35,}}",
    "Google, of an account": rf"ya29\.[{_URL}]{{20,}}",
    "Weights & Biases": rf"wandb_v\d+_[{_ALNUM}_-]{{40,}}",
    "PyPI": rf"pypi-AgE[{_URL}]{{50,}}",
    "npm": rf"npm_[{_ALNUM}]{{36,}}",
    "Docker": rf"dckr_(?:pat|oat)_[{_URL}]{{27,}}",
    "Databricks": r"dapi[0-9a-f]{32}(?![0-9A-Za-z])",
    "Replicate": rf"r8_[{_ALNUM}]{{37,}}",
    "Groq": rf"gsk_[{_ALNUM}]{{48,}}",
    # RFC 7519: three parts of base64url, the first of them an object; hf_jwt_, hf_oauth_ and ghs_ carry one
    "JWT": rf"eyJ[{_URL}]{{8,2000}}\.[{_URL}]{{8,}}\.[{_URL}]*",
}
"""By maker. Lengths are the least that are issued. What repeats without an end may be long, what is looked ahead for may not: no
text makes the search slow."""

JWT: Pattern[str] = re.compile(rf"(?<![{_ALNUM}])" + SHAPES["JWT"])
TOKEN: Pattern[str] = re.compile(rf"(?<![{_ALNUM}])(?:{'|'.join(SHAPES.values())})")
"""A token of a known make."""

NEEDLES: Tuple[str, ...] = (
    "hf_", "api_org_", "gh", "github_pat_", "gl", "nvapi-", "xox", "xapp-", "sk-", "akia", "asia", "aiza", "ya29.", "wandb_v",
    "pypi-age", "npm_", "dckr_", "dapi", "r8_", "gsk_", "eyj",
)  # fmt: skip
"""In lower case: a text without any of these holds no such token."""
