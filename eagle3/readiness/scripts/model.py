"""What the worker's transformers make of a model's folder, no weight loaded.

``{"folder","trust_remote_code"}`` → ``{"trusted","config","tokenizer","template"}``, each part with ``error`` where
it failed. The sample conversation is rendered as the pipeline renders it: what the assistant says is what follows the
invitation to answer, so an answer's tokens are those between the prompt before it and the conversation up to it.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Callable, Dict, List

TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "def add(a, b):\n    return a + b  # indented\n",
    "Größe, naïve, 東京, Привет, مرحبا 🦊",
    "x = 1_000 * 3.5e-7;\tprint(f'{x:>8}')",
)
CONVERSATION = (
    {"role": "user", "content": "Name the three primary colours, please."},
    {"role": "assistant", "content": "Red, yellow and blue."},
    {"role": "user", "content": "And which two give green?"},
    {"role": "assistant", "content": "Yellow and blue give green."},
)


def main() -> None:
    """Print the answer."""
    sys.path.pop(0)
    sys.stdout.write("\n@eagle3 " + json.dumps(answer_of(json.loads(sys.argv[1]))) + "\n")


def answer_of(asked: Dict[str, Any]) -> Dict[str, Any]:
    """All parts of the answer; one that fails leaves the others."""
    folder, trust = asked["folder"], bool(asked.get("trust_remote_code"))
    answer: Dict[str, Any] = {"trusted": trust}
    answer["config"] = _asked(lambda: _config(folder, trust))
    holder: Dict[str, Any] = {}
    answer["tokenizer"] = _asked(lambda: _tokenizer(folder, trust, holder))
    if "it" in holder:
        answer["template"] = _asked(lambda: _template(holder["it"]))
    return answer


def _asked(question: Callable[[], Dict[str, Any]]) -> Dict[str, Any]:
    try:
        return question()
    except Exception as error:  # noqa: BLE001 - remote code and templates raise what they like
        return {"error": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}


def _config(folder: str, trust: bool) -> Dict[str, Any]:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    fields = ("hidden_size", "num_hidden_layers", "max_position_embeddings", "vocab_size")
    return {"model_type": config.model_type, **{field: getattr(text, field, None) for field in fields}}


def _tokenizer(folder: str, trust: bool, holder: Dict[str, Any]) -> Dict[str, Any]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=trust)
    holder["it"] = tokenizer
    told = []
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        back = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        told.append({"text": text, "tokens": len(ids), "back": back, "same": back == text})
    return {"kind": type(tokenizer).__name__, "size": len(tokenizer), "trips": told}


def _template(tokenizer: Any) -> Dict[str, Any]:
    if not tokenizer.chat_template:
        return {"missing": True}

    def render(count: int, invite: bool) -> List[int]:
        messages = [dict(message) for message in CONVERSATION[:count]]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=invite)
        return [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]

    whole = render(len(CONVERSATION), False)
    mask = [0] * len(whole)
    rewritten: List[int] = []
    uninvited: List[int] = []
    for number, message in enumerate(CONVERSATION):
        if message["role"] != "assistant":
            continue
        prompt, upto = render(number, True), render(number + 1, False)
        if prompt == render(number, False):
            uninvited.append(number)
        # A template may rewrite what came before (a thought that is dropped): then the answer cannot be located.
        if upto[: len(prompt)] != prompt or whole[: len(upto)] != upto:
            rewritten.append(number)
            continue
        mask[len(prompt) : len(upto)] = [1] * (len(upto) - len(prompt))
    spans: List[List[Any]] = []
    for token, supervised in zip(whole, mask):
        if spans and spans[-1][1] == bool(supervised):
            spans[-1][0].append(token)
        else:
            spans.append([[token], bool(supervised)])
    texts = [[tokenizer.decode(ids, clean_up_tokenization_spaces=False)[:400], on] for ids, on in spans]
    answers = [message["content"] for message in CONVERSATION if message["role"] == "assistant"]
    taught = "".join(text for text, on in texts if on)
    return {
        "tokens": len(whole), "supervised": sum(mask), "spans": texts, "rewritten": rewritten, "uninvited": uninvited,
        "lacking": [text for text in answers if text not in taught],
        "leaking": [m["content"] for m in CONVERSATION if m["role"] == "user" and m["content"] in taught],
    }  # fmt: skip


if __name__ == "__main__":
    main()
