"""Does a server that answers also generate?"""

from __future__ import annotations

from collections.abc import Iterable

from eagle3.core.readiness.registry import Context, Facts, Finding, check


@check(
    "vllm.generates", title="Each server generates a token",
    why="/health says 200 while the engine behind it is dead; only a token says that it lives.",
    catches="vllm#39863 engine dead, /version well; vllm#17972 /health 200 with no token moving; vllm#43423 Kimi deadlock",
    proof="real here: an HTTP server that answers 200 and generates nothing, one that never answers, one that is busy",
    needs=("deep.generate",), deep=True,
)  # fmt: skip
def generates(facts: Facts, context: Context) -> Iterable[Finding]:
    """One finding a server: three tries, none where tokens move anyway."""
    servers = facts["deep.generate"]["servers"]
    if not servers:
        yield Finding("skipped", "no vLLM server was found here")
    for server in servers:
        url, status = server["url"], server["status"]
        if status == "loading":
            yield Finding("unknown", f"{url} is still loading", "Check again when it answers.", which=url)
        elif status == "moving":
            yield Finding("ok", f"{url} is at work: {server['text']}", which=url)
        elif status == "answered":
            answers = server["answers"]
            text = f"{url} generated {server['text']} in {answers[-1]['seconds']:.1f} s"
            if len(answers) > 1:
                text += f", at try {len(answers)}: {answers[0]['text']} before"
            yield Finding("ok" if len(answers) == 1 else "warn", text, which=url)
        else:
            last = server["answers"][-1]["text"] if server["answers"] else "no answer"
            health = "while /health says ok" if server["health"] == "ok" else f"and /health is {server['health']}"
            text = f"{url} generated nothing in {len(server['answers'])} tries ({last}), {health}"
            pid = f" (pid {server['pid']})" if server.get("pid") else ""
            yield Finding("fail", text, f"Restart this server{pid}; its log says why the engine died.", which=url)
