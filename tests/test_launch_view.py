"""The strip under a job: when each rank was in which call, until the job was over."""

import os
import re
import signal
import time
from html.parser import HTMLParser
from typing import Any

import lockstep
import pytest
from lockstep.base.formatting import quantity
from lockstep.base.style import ERROR
from lockstep.launch import view

PAUSE = 0.2  # seconds


class Bars(HTMLParser):
    """What is drawn in each lane: (where it begins, where it ends, what is said over it)."""

    def __init__(self, job: lockstep.Job):
        super().__init__()
        self.lanes: list[list[tuple[float, float, str]]] = []
        self.text = ""
        self.feed(view.html(job))

    def handle_starttag(self, tag: str, attributes: list[Any]) -> None:
        said = dict(attributes)
        style = said.get("style") or ""
        place = {
            key: float(value) / 100
            for key, value in re.findall(r"(?<![\w-])(left|width):([\d.]+)(?:%|px)", style)
        }
        if style.startswith("position:relative;height:") and "border" not in style:
            self.lanes.append([])
        elif "title" in said and "left" in place:
            end = place["left"] + place.get("width", 0)
            self.lanes[-1].append((place["left"], end, said["title"]))

    def handle_data(self, data: str) -> None:
        self.text += data


def failed(run: Any, nproc: int = 3) -> lockstep.Job:
    with pytest.raises(lockstep.JobFailed) as caught:
        lockstep.torchrun(run, nproc_per_node=nproc, backend="gloo", show=False)
    return caught.value.job


def test_a_hang_lasts_until_the_job_was_stopped() -> None:
    def skips() -> None:
        import torch
        import torch.distributed as dist

        x = torch.ones(1)
        dist.all_reduce(x)
        if dist.get_rank() != 1:
            dist.all_reduce(x)

    job = failed(skips)
    assert [end.how for end in job.ends] == ["stopped", "done", "stopped"]
    waited = job.ends[0].at - job.calls[0][-1].start
    assert waited > 0.3  # the watch looks for longer than that before it judges
    drawn = Bars(job)
    assert len(drawn.lanes) == 3
    for rank in (0, 2):
        start, end, said = drawn.lanes[rank][-1]
        assert end == pytest.approx(1, abs=1e-4)
        assert "never ended" in said
        assert end - start > 0.5
    assert drawn.lanes[1][-1][2] == "its job was done"
    assert drawn.lanes[1][-1][0] < 0.5
    said = f"all_reduce waits {quantity(waited, 's')}"
    assert said in drawn.text


def test_a_rank_that_fails_has_its_cross_where_it_ended() -> None:
    def fails() -> None:
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.ones(1))
        if dist.get_rank() == 1:
            time.sleep(PAUSE)
            os.kill(os.getpid(), signal.SIGKILL)
        if dist.get_rank() == 2:
            raise ValueError("wrong")
        dist.all_reduce(torch.ones(1))

    job = failed(fails)
    assert [end.how for end in job.ends[1:]] == ["died", "raised"]
    assert job.ends[1].at - job.ends[2].at > PAUSE / 2
    lanes = Bars(job).lanes
    crosses = [[bar for bar in lane if "here" in bar[2]] for lane in lanes]
    assert [cross[0][2] for cross in crosses[1:]] == ["rank 1 died here", "rank 2 raised here"]
    assert crosses[2][0][0] < crosses[1][0][0]
    # Rank 0 waited for both: none of it was communication.
    assert "waits" in lanes[0][-2][2] or "waits" in lanes[0][-1][2]
    assert ERROR in view.html(job)


def test_what_a_rank_waits_for_the_last_one_is_no_communication() -> None:
    def waits() -> None:
        import torch
        import torch.distributed as dist

        rank = dist.get_rank()
        dist.barrier()
        if rank == 0:
            time.sleep(PAUSE)
        dist.all_reduce(torch.ones(1))
        if rank == 1:
            time.sleep(PAUSE)
            dist.send(torch.ones(1), 0)
        if rank == 0:
            dist.recv(torch.ones(1), 1)

    job = lockstep.torchrun(waits, nproc_per_node=3, backend="gloo", show=False)
    lanes = Bars(job).lanes

    def waiting(rank: int, operation: str) -> list[str]:
        said = [said for _, _, said in lanes[rank] if said.startswith(operation)]
        return [one.rpartition("waits ")[2] for one in said if "\nwaits " in one]

    reduces = [next(call for call in own if "reduce" in call.operation) for own in job.calls]
    last = max(call.start for call in reduces)
    assert last == reduces[0].start
    for rank in (1, 2):
        lasted = quantity(last - reduces[rank].start, "s")
        assert waiting(rank, "all_reduce") == [lasted]
    assert waiting(0, "all_reduce") == []
    sent, received = (next(c for c in job.calls[r] if c.peer is not None) for r in (1, 0))
    assert waiting(0, "recv") == [quantity(sent.start - received.start, "s")]
    assert "✗" not in view.html(job) and ERROR not in view.html(job)


def test_a_rank_without_calls_has_its_lane() -> None:
    def alone() -> None:
        import torch
        import torch.distributed as dist

        group = dist.new_group([0])
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1), group=group)

    job = lockstep.torchrun(alone, nproc_per_node=2, backend="gloo", show=False)
    assert [bool(calls) for calls in job.calls] == [True, False]
    drawn = Bars(job)
    assert len(drawn.lanes) == 2 and "rank 1" in drawn.text and not drawn.lanes[1]


def test_colours_of_ranks_are_none_of_kinds() -> None:
    def shouts() -> None:
        print("hello")

    job = lockstep.torchrun(shouts, nproc_per_node=2, backend="gloo", show=False)
    text = view.html(job)
    assert "var(--jp-ui-font-color" not in text  # which VS Code has not
    assert "color:inherit" in text
