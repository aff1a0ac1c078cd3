"""The loss has upstream's value and gradient; the held-out figures count what they say they count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from speculators.losses.eager import kl_div_loss

from eagle3.stages.context import StageContext
from eagle3.training import losses
from eagle3.training.dataset import Collate, StatesDataset
from eagle3.training.heldout import Heldout, evaluate
from eagle3.training.samples import read_samples


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_chunked_loss_is_upstreams(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(losses, "CHUNK_NUMBERS", 3 * 50)
    targets = (4 * torch.randn(1, 10, 50)).to(dtype)
    weights = torch.rand(1, 10)
    found = []
    for loss in (losses.kl_div, kl_div_loss):
        logits = torch.linspace(-3, 3, 500).sin().mul(2).reshape(1, 10, 50).to(dtype).requires_grad_()
        divergence = loss(logits, targets)
        (divergence * weights).sum().backward()
        found.append((divergence.detach(), logits.grad))
    (ours, our_gradient), (theirs, their_gradient) = found
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(our_gradient, their_gradient)


class Oracle(torch.nn.Module):
    """A draft that is always right, save that it cannot propose ``unknown`` and is wrong ``wrong_at`` tokens ahead."""

    def __init__(self, unknown: int = -1, wrong_at: int = -1) -> None:
        super().__init__()
        self.d2t = None
        self.unknown, self.wrong_at = unknown, wrong_at

    def forward(self, input_ids: torch.Tensor, ttt_steps: int, **_: object) -> tuple:
        proposals = []
        for step in range(ttt_steps):
            right = torch.roll(input_ids, -(step + 1), dims=1)
            proposal = torch.where(right == self.unknown, right + 1, right)
            proposals.append(proposal + 1 if step == self.wrong_at else proposal)
        metrics = {f"loss_{step}_sum": torch.tensor(float(step)) for step in range(ttt_steps)}
        return proposals, torch.tensor(0.0), metrics


@pytest.fixture
def score(toy_run: Callable[..., StageContext]) -> Callable[..., Heldout]:
    run_dir: Path = toy_run().run_dir
    samples = read_samples(run_dir / "data" / "samples.jsonl")["heldout"]

    def found(model: Oracle, pack: int = 64, readers: int = 0) -> Heldout:
        data = StatesDataset(samples, run_dir / "states", pack, torch.float32)
        collate = Collate(pack, 32, torch.float32, trim=True)
        return evaluate(model, data, collate, {"ttt_steps": 3}, torch.device("cpu"), torch.float32, readers=readers)

    return found


def test_an_oracle_is_accepted_whole(score: Callable[[Oracle], Heldout]) -> None:
    found = score(Oracle())
    assert found.acc_pos == [1.0, 1.0, 1.0] and found.accept_len == 4.0


def test_starts_are_answer_tokens_after_which_enough_tokens_follow(score: Callable[[Oracle], Heldout]) -> None:
    # Four answers of 14 tokens; after the last three no three tokens follow.
    found = score(Oracle())
    assert (found.tokens, found.samples) == (4 * (14 - 3), 4)


def test_accuracy_is_joint_so_one_miss_ends_the_proposal(score: Callable[[Oracle], Heldout]) -> None:
    assert score(Oracle(wrong_at=1)).acc_pos == [1.0, 0.0, 0.0]


def test_a_token_that_the_draft_cannot_propose_is_a_miss(
    score: Callable[[Oracle], Heldout], make_context: Callable[..., StageContext]
) -> None:
    samples = read_samples(make_context().run_dir / "data" / "samples.jsonl")["heldout"]
    unknown = samples[0].input_ids[8]
    following = [row.input_ids[at + 1 : at + 4] for row in samples for at in range(2, len(row.input_ids) - 3)]
    reachable = [sum(unknown not in tokens[: k + 1] for tokens in following) / len(following) for k in range(3)]
    assert score(Oracle(unknown=unknown)).acc_pos == reachable
    assert reachable[0] < 1.0


def test_the_model_is_left_in_the_mode_it_was_in(score: Callable[[Oracle], Heldout]) -> None:
    model = Oracle().train()
    score(model)
    assert model.training


def test_packs_that_are_read_ahead_give_the_same_figures(score: Callable[..., Heldout]) -> None:
    assert score(Oracle(wrong_at=1), 16, readers=2) == score(Oracle(wrong_at=1), 16, readers=0)
