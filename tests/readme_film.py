"""The README's film of a cell of ranks, taken anew: `python tests/readme_film.py`. Look at it."""

import sys
from pathlib import Path

from readme_pictures import opened

FILM = Path(__file__).parents[1] / "labs" / "images" / "ranks.gif"
MOST = 1_500_000  # bytes
CELLS = {
    "load": "%load_ext lockstep",
    "first": "%%torchrun -n 4\n1",  # so that PyTorch is loaded
    "ranks": """\
%%torchrun -n 4
import time
import torch, torch.distributed as dist

rank = dist.get_rank()
for step in range(3):
    time.sleep(0.9 if rank == 2 else 0.2)
    x = torch.tensor([float(rank)])
    dist.all_reduce(x)
    print(f"step {step}: 0 + 1 + 2 + 3 = {x.item()}")""",
}


def main() -> int:
    with opened(CELLS) as page:
        for name in ("load", "first"):
            page.run(name)
        page.film("ranks", FILM, width=940, height=430)
        problems = page.problems()
    size = FILM.stat().st_size
    print(f"{FILM}: {size:,} bytes")
    print(*problems, sep="\n")
    return bool(problems) or size > MOST


if __name__ == "__main__":
    sys.exit(main())
