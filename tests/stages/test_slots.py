"""Requests in flight at a server: never more than it bears now."""

from __future__ import annotations

import asyncio

from eagle3.engines.slots import Slots


def test_never_more_are_taken_than_the_limit_that_holds_at_that_moment() -> None:
    limit, seen = [3], []

    async def request(slots: Slots, number: int) -> None:
        async with slots.one():
            seen.append((slots.taken, limit[0]))
            if number == 4:
                limit[0] = 1
            await asyncio.sleep(0)

    async def all_of_them() -> None:
        slots = Slots(9, lambda: limit[0])
        await asyncio.gather(*(request(slots, number) for number in range(20)))
        assert slots.taken == 0

    asyncio.run(all_of_them())
    assert len(seen) == 20 and max(taken for taken, _ in seen) == 3
    assert all(taken == 1 for taken, most in seen[8:] if most == 1)


def test_a_pause_begins_no_request_and_its_end_is_found_without_being_told() -> None:
    async def paused() -> list[str]:
        held, order = [True], []
        slots = Slots(2, hold=lambda: held[0])

        async def request() -> None:
            async with slots.one():
                order.append("sent")

        waiting = asyncio.create_task(request())
        await asyncio.sleep(0)
        order.append("paused")
        held[0] = False
        async with asyncio.timeout(20):
            await waiting
        return order

    assert asyncio.run(paused()) == ["paused", "sent"]


def test_a_request_that_fails_or_is_given_up_leaves_its_place() -> None:
    async def failing() -> int:
        slots = Slots(1)

        async def request() -> None:
            async with slots.one():
                raise RuntimeError("no answer")

        async def hanging() -> None:
            async with slots.one():
                await asyncio.Event().wait()

        await asyncio.gather(request(), request(), return_exceptions=True)
        task = asyncio.create_task(hanging())
        while not slots.taken:  # noqa: ASYNC110 - the loop itself brings it on
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return slots.taken

    assert asyncio.run(failing()) == 0
