"""`engine="torchrun"`: the same job under PyTorch's elastic agent. Each takes seconds."""

from test_launch import cell


def test_same_results_and_only_loopback_listens(kernel, run):
    body = """\
    x = torch.ones(3) * rank
    dist.all_reduce(x)
    print("ready", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
    while not os.path.exists("go"): time.sleep(0.01)
    x.tolist()
    """
    kernel.start(cell(body, "--engine torchrun --into job"))
    kernel.wait_for(lambda reply: "ready 0" in reply.shown, within=60)
    listeners = [(pid, address) for pid, address in kernel.listeners() if pid != kernel.process.pid]
    (kernel.work / "go").touch()
    reply = kernel.finish(60)
    print(f"{reply.seconds:.2f} s")
    (kernel.work / "go").unlink()
    assert "│ ready 0" in reply.shown
    assert "ranks 0, 1 → │ [1.0, 1.0, 1.0]" in reply.shown
    assert "calls: 1 all_reduce on each rank" in reply.shown
    assert "started by torchrun · ok" in reply.shown
    assert run("print(job[1], job.output(0))").stdout == "[1.0, 1.0, 1.0] ready 0\n\n"
    assert len(listeners) >= 2
    assert {address.removeprefix("::ffff:") for _, address in listeners} <= {"127.0.0.1", "::1"}


def test_error_is_told_as_ever(run):
    reply = run(cell("if rank == 1:\n    1 / 0\ndist.barrier()", "--engine torchrun"))
    assert reply.error.splitlines()[1] == "rank 1: ZeroDivisionError: division by zero"
    assert "→    5 │     1 / 0" in reply.error


def test_second_attempt_counts(run):
    body = """\
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    x = torch.ones(1) * attempt
    dist.all_reduce(x)
    if attempt == 0 and rank == 0:
        raise RuntimeError("bad luck")
    ("attempt", attempt, x.item())
    """
    reply = run(cell(body, "--engine torchrun --max-restarts 1"))
    assert not reply.error
    assert "[restart 1]" in reply.shown
    assert "ranks 0, 1 → │ ('attempt', 1, 2.0)" in reply.shown
