"""Models to play with: all-reduces step by step, what communication costs, pipelines, overlap,
sharding, ring attention, a layer and its experts on several ranks, how often to save, which
sizes to capture."""

from .parts import parts as parts
from .player import collective as collective
from .sliders import FORMULAS as FORMULAS
from .sliders import LADDERS as LADDERS
from .sliders import MESSAGE as MESSAGE
from .sliders import checkpoints as checkpoints
from .sliders import cost as cost
from .sliders import experts as experts
from .sliders import ladder as ladder
from .sliders import layer as layer
from .sliders import overlap as overlap
from .sliders import pipeline as pipeline
from .sliders import ring_attention as ring_attention
from .sliders import sharding as sharding


def show_all() -> None:
    """Show all models, each as it stands if nothing is said of it."""
    from IPython.display import display

    every = (parts, collective, cost, pipeline, overlap, sharding, ring_attention, layer)
    for model in (*every, experts, checkpoints, ladder):
        display(model())
