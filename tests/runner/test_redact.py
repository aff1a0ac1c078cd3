"""What looks like a secret is hidden in every text that leaves a run's own files, and nothing else is."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3.runner.redact import HIDDEN, address, command, environment, is_secret_name, redact, without_secrets
from eagle3.runner.tokens import SHAPES as SHAPES_OF_TOKENS

LETTERS = string.ascii_letters + string.digits
AROUND = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="K"), max_size=60)
KEY = st.text(LETTERS, min_size=20, max_size=40).map(lambda text: f"Q9{text}zK")
NAMES = st.sampled_from(["HF_TOKEN", "aws_secret_access_key", "DB_PASSWORD", "OPENAI_API_KEY", "password", "WANDB_API_KEY"])

SHAPES = {
    "a hub token": lambda key: f"hf_{key}",
    "an sk- key": lambda key: f"sk-{key}",
    "a GitHub token": lambda key: f"ghp_{key}",
    "a bearer token": lambda key: f"Authorization: Bearer {key}",
    "basic credentials": lambda key: f"authorization: Basic {key}==",
    "credentials in a URL": lambda key: f"https://me:{key}@host/x",
    "a token as the user of a URL": lambda key: f"https://{key}@host/x",
    "the path of a webhook": lambda key: f"https://hooks.slack.com/services/T0/B0/{key}",
    "a signed address": lambda key: f"https://host/x?a=1&sig={key}",
    "a JSON value": lambda key: f'{{"api_key": "{key}"}}',
    "an option": lambda key: f"--api-key {key}",
    "a private key": lambda key: f"-----BEGIN RSA PRIVATE KEY-----\n{key}\n-----END RSA PRIVATE KEY-----",
}


@pytest.mark.parametrize("shape", list(SHAPES))
@given(key=KEY, before=AROUND, after=AROUND)
def test_hidden_is(shape: str, key: str, before: str, after: str) -> None:
    shown = redact(f"{before} {SHAPES[shape](key)} {after}")
    assert key not in shown and HIDDEN in shown


@given(name=NAMES, sign=st.sampled_from(["=", ": ", "='", '="']), key=KEY, before=AROUND)
def test_hidden_is_the_value_of_a_secret_name_and_the_name_stays(name: str, sign: str, key: str, before: str) -> None:
    shown = redact(f"{before} {name}{sign}{key}")
    assert key not in shown and name in shown


@given(st.text(max_size=300))
def test_hiding_twice_changes_nothing(text: str) -> None:
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize("first", list(SHAPES))
@given(second=st.sampled_from(list(SHAPES)), key=KEY, glue=st.text(string.punctuation + " \n", max_size=3))
def test_hiding_twice_changes_nothing_where_there_are_secrets(first: str, second: str, key: str, glue: str) -> None:
    once = redact(SHAPES[first](key) + glue + SHAPES[second](key))
    assert redact(once) == once


@given(before=AROUND, value=st.text(min_size=4, max_size=40), after=AROUND)
def test_a_known_secret_is_hidden_whatever_it_looks_like(before: str, value: str, after: str) -> None:
    if value not in HIDDEN:
        assert value not in redact(f"{before}{value}{after}", [value]).replace(HIDDEN, "")


@given(st.lists(st.sampled_from(["step", "120", "loss", "4.3", "tokens/s", "rank", "eos_token: </s>", "max_tokens=96",
                                 "token_id=5", "train", "/data/runs/a", "https://host:8000/v1/models", "key", "git@host:a/b",
                                 "token=5", "password=None", "num_token: 4096"]), max_size=12))  # fmt: skip
def test_what_runs_usually_say_stays_as_it_is(words: list[str]) -> None:
    assert redact(" ".join(words)) == " ".join(words)


def test_a_command_line_hides_the_argument_after_a_secret_option() -> None:
    shown = command(["vllm", "serve", "--api-key", "short", "--port", "80", "--token=abcdefghij", "--hf-token", "--next"])
    assert shown == ["vllm", "serve", "--api-key", HIDDEN, "--port", "80", f"--token={HIDDEN}", "--hf-token", "--next"]


def test_an_environment_hides_secret_names_whole() -> None:
    found = environment(
        {"HF_TOKEN": "x", "PATH": "/bin", "URL": "http://a:b@h/", "MAX_TOKENS": "5", "AWS_SECRET_ACCESS_KEY": "y z"}
    )
    assert found == {
        "HF_TOKEN": HIDDEN, "PATH": "/bin", "URL": f"http://{HIDDEN}@h/", "MAX_TOKENS": "5", "AWS_SECRET_ACCESS_KEY": HIDDEN,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://hooks.slack.com/services/T/B/x", "https://hooks.slack.com/…"),
        ("http://u:p@127.0.0.1:80/a?b", "http://127.0.0.1:80/…"),
        ("https://h?token=x", "https://h/…"),
        ("nonsense", "…"),
    ],
)
def test_a_webhook_is_shown_by_its_host_only(url: str, shown: str) -> None:
    assert address(url) == shown


def test_names_of_secrets_are_known() -> None:
    assert all(map(is_secret_name, ["HF_TOKEN", "token", "api_key", "APIKEY", "X_SECRET", "db-password", "GOOGLE_CREDENTIALS"]))
    assert not any(map(is_secret_name, ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "KEY", "PATH", "SECRETARY"]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PATH", "/opt/sk-research-group/bin:/usr/bin"), ("PYTHONPATH", "src:/home/a/sk-learn-environment/lib"),
        ("LD_LIBRARY_PATH", "/x/hf_environment/lib"), ("HF_HOME", "/data/hf_datasets"),
        ("HF_HUB_CACHE", "~/hf_modelcache/hub"),
        ("HF_TOKEN_PATH", "/run/hf"), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"), ("SKIP_FIRST_TOKEN", "True"),
        ("VLLM_SINGLE_PASS", "0"), ("TOKENIZERS_PARALLELISM", "false"), ("MAX_TOKENS", "4096"), ("VLLM_MAX_TOKENS", "8"),
        ("NCCL_IB_PKEY", "3"), ("KEYBOARD_LAYOUT", "us"), ("PASSWORD_STORE_DIR", "/home/a/.pass"), ("OLDPWD", "/x"),
        ("LS_COLORS", "*.key=00;36:*.token=01;31"), ("https_proxy", "http://me:word@proxy:3128"), ("XDG_SESSION_ID", "3"),
        ("DATASET", "hf_internal-testing/x"), ("DATASET", "hf_internal-testing/tiny-random-llama@refs/convert"),
        ("CONDA_DEFAULT_ENV", "sk-learn-environment-2024"), ("IMAGE", "nvapi-proxy"),
        ("PIP_EXTRA_INDEX_URL", "https://u:word@h/simple https://i:word@j/simple"), ("AWS_WEB_IDENTITY_TOKEN_FILE", "/t"),
    ],
)  # fmt: skip
def test_what_is_no_secret_is_inherited(name: str, value: str) -> None:
    assert without_secrets({name: value}) == {name: value}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "x"), ("VAULT_KEY", "/abc+def"), ("PGPASSWORD", "123456"), ("AWS_ACCESS_KEY_ID", "x"), ("GH_PAT", "x"),
        ("MINE", f"hf_{'aB' * 17}"), ("ARGS", f"--x 1 --y=ghp_{'a1' * 18}"), ("A", "see https://h/x token=abcdefgh12"),
        ("HEADER", "Authorization: Bearer abcdefghijkl"),
        ("ACCOUNT", '{"private_key": "-----BEGIN PRIVATE KEY-----\nMII", "auth_uri": "https://h/auth"}'),
    ],
)  # fmt: skip
def test_what_looks_like_a_secret_by_name_or_value_is_not_inherited(name: str, value: str) -> None:
    assert without_secrets({name: value, "LANG": "C"}) == {"LANG": "C"}


def a_token(shape: str) -> st.SearchStrategy[str]:
    """Tokens of a shape, from its own description: every alphabet and length that it allows, the least length too."""
    return st.from_regex(re.compile(shape, re.ASCII), fullmatch=True)


BEFORE = st.sampled_from(["", "--key ", "a=", '"', "x:", "user_", "(", "1 "])
AFTER = st.sampled_from(["", '"', " b", ",c", ")"])


@pytest.mark.parametrize("make", [make for make, shape in SHAPES_OF_TOKENS.items() if "(?=" not in shape])
@settings(max_examples=12)
@given(data=st.data(), before=BEFORE, after=AFTER)
def test_no_token_of_a_known_make_is_inherited_or_shown_wherever_it_stands(
    make: str, data: st.DataObject, before: str, after: str
) -> None:
    token = data.draw(a_token(SHAPES_OF_TOKENS[make]))
    assert without_secrets({"ORDINARY": f"{before}{token}{after}", "LANG": "C"}) == {"LANG": "C"}
    assert token not in redact(f"said {before}{token}{after}")


@given(st.text(LETTERS + "-_", min_size=37, max_size=120))
def test_a_long_key_of_an_unknown_kind_is_not_inherited(key: str) -> None:
    assert without_secrets({"ORDINARY": f"sk-{key}aB3"}) == {}


HEX = "0123456789abcdef"
REAL = {
    "hf_": (LETTERS, 34), "api_org_": (LETTERS, 34), "ghp_": (LETTERS, 36), "ghs_": (LETTERS, 36),
    "github_pat_": (LETTERS + "_", 82), "glpat-": (LETTERS + "-_", 20), "nvapi-": (LETTERS + "-_", 64),
    "sk-": (LETTERS, 48), "sk-proj-": (LETTERS + "-_", 48), "sk-ant-api03-": (LETTERS + "-_", 95), "sk-or-v1-": (HEX, 64),
    "AKIA": (string.ascii_uppercase + string.digits, 16), "AIza": (LETTERS + "-_", 35), "gsk_": (LETTERS, 52),
    "xoxb-1234567890-": (LETTERS + "-", 24), "dckr_pat_": (LETTERS + "-_", 27), "npm_": (LETTERS, 36),
    "dapi": (HEX, 32),
}  # fmt: skip
"""What the makers issue: prefix, alphabet, length after the prefix. Written down apart from the shapes."""


@given(st.sampled_from(list(REAL)), st.data())
def test_no_token_as_it_is_issued_is_inherited(prefix: str, data: st.DataObject) -> None:
    alphabet, length = REAL[prefix]
    token = prefix + data.draw(st.text(alphabet, min_size=length, max_size=length))
    assert without_secrets({"ORDINARY": token}) == {} and token not in redact(token)


@pytest.mark.parametrize("prefix", ["hf_oauth_", "hf_jwt_", "ghs_123456_", ""])
@settings(max_examples=25)
@given(parts=st.lists(st.text(LETTERS + "-_", min_size=8, max_size=60), min_size=3, max_size=3))
def test_a_token_that_carries_a_signed_object_is_known_by_that(prefix: str, parts: list[str]) -> None:
    token = f"{prefix}eyJ{'.'.join(parts)}"
    assert without_secrets({"ORDINARY": token}) == {} and parts[1] not in redact(token).replace(prefix, "")


WORDS = st.lists(st.text(string.ascii_lowercase, min_size=1, max_size=12), min_size=1, max_size=5)


@given(st.sampled_from(["hf_", "hf-", "sk-", "gl", "r8_", "npm_"]), WORDS, st.sampled_from(["-", "_", "/", "."]))
def test_a_name_that_merely_begins_as_a_token_does_is_inherited(prefix: str, words: list[str], glue: str) -> None:
    name = prefix + glue.join(words)
    if words[0] not in ("proj", "svcacct", "service", "admin", "ant", "or", "lf", "live", "test"):
        assert without_secrets({"DATASET": name}) == {"DATASET": name}


@pytest.mark.parametrize("text", ["token" * 40_000, "-" * 200_000, "hf_" * 60_000, "a." * 100_000 + "://", "secret=" * 30_000,
                                  "://" + "a:" * 80_000, "-eyJ" * 40_000, "sk-" * 60_000, "eyJaaaaaaaa.-" * 15_000,
                                  "-----BEGIN RSA PRIVATE KEY-----" * 5_000])  # fmt: skip
@pytest.mark.timeout(60)  # a rule that is quadratic takes many minutes here
def test_no_text_makes_hiding_slow(text: str) -> None:
    assert len(redact(text)) <= 2 * len(text)
