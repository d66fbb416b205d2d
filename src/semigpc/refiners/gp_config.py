"""The switches of SemiGPC."""

from dataclasses import dataclass, field
from typing import Any, Literal

from semigpc.refiners.engines import ENGINES, AutoOptions
from semigpc.refiners.placement import PlacementConfig


@dataclass(frozen=True, kw_only=True)
class GPConfig(PlacementConfig):
    """The switches of SemiGPC (algorithms section 3.6), beside those of :class:`PlacementConfig`.

    Args:
        role: ``refine`` replaces the weak view's probabilities and changes no gradient path; ``classifier`` puts the GP in the
            place of the linear layer for every view, with gradients through the query k(h(x), h_Q) alone.
        buffer_size: N_Q, labelled entries remembered.
        balanced: one ring of N_Q / C entries for each class (the paper's daggered rows) instead of one queue.
        balance: with ``strict`` no class holds more than the smallest one does.
        length_scale: l. With unit features l^2 plays the part of SimMatch's temperature.
        output_scale: eta. The mean depends on noise_std^2 / output_scale alone.
        noise_std: sigma.
        kernel: k; length_scale is not asked of cosine and ntk, which have none.
        logit_scale: lambda; :func:`auto_logit_scale` if none is given.
        kernel_clip: kernel values below it become 0.
        class_prior: ``frequency`` subtracts the class shares pi of the buffer and gives every class equal evidence,
            lambda sqrt(nbar / n_c) k K^-1 (Y_c - pi_c 1); ``none`` is the paper's rule.
        exclude_same_index: with role ``classifier``, leave other copies of a labelled image out of its own prediction.
        prefill: fill the buffer with one pass over the labels before the first step.
        engine: what computes the GP: options out of ``ENGINES``, as in ``LowRankOptions(rank=2048)``, or a name there, which
            stands for its default options. ``exact`` updates K^-1 at O(B N^2) per step; ``lowrank`` works on ``rank``
            landmarks at O(B rank^2) for any N; ``ensemble`` deals the buffer out to exact members; ``matrix_free`` solves to
            a tolerance without N^2 memory. ``auto`` is exact where that fits into the memory of the device, and low-rank,
            with these options, beyond; the run reports which.
        confidence: what the algorithm's threshold is compared with: the largest probability (``max_softmax``), the share of
            the prior variance that the buffer explains (``variance``), or the probability of the class expected over the
            posterior (``expected``). A threshold means something else for each. With noise_std^2 = 0.1 one close neighbour
            explains 0.91 of the variance, two 0.95, ten 0.99: ask for 0.9 or more if an image should look like one in the
            buffer, 0.5 to leave out only what looks like nothing in it. ``expected`` is 0.80 beside one
            close neighbour and 0.91 beside two, of ten classes, where ``max_softmax`` is 0.98 for both: ask for 0.8 or so.
            FreeMatch finds its thresholds itself, ReMixMatch has none unless it is given one.
        learn: choose length_scale, output_scale and noise_std from the buffer as it stands, by the ``marginal`` likelihood or
            by ``leave_one_out``, every ``learn_steps`` steps; the engine is then rebuilt with them and goes on.
        learn_per_class: a kernel of its own for each class, each carried by a low-rank engine.
        eval_head: which head gives the headline number; the other is reported beside it.
        eval_buffer: evaluate with the buffer as it stands, or with one rebuilt from the labels by the evaluated weights;
            ``auto`` rebuilds it for role ``classifier``.
    """

    role: Literal["refine", "classifier"] = "refine"
    buffer_size: int = 16300
    balanced: bool = False
    balance: Literal["cap", "strict"] = "cap"
    length_scale: float = 0.1**0.5
    output_scale: float = 1.0
    noise_std: float = 0.1**0.5
    logit_scale: float | None = None
    kernel: Literal["rbf", "laplace", "cosine", "ntk"] = "rbf"
    kernel_clip: float = 0.0
    class_prior: Literal["none", "frequency"] = "none"
    exclude_same_index: bool = False
    prefill: bool = False
    engine: Any = field(default_factory=AutoOptions, metadata={"choices": ENGINES})
    confidence: Literal["max_softmax", "variance", "expected"] = "max_softmax"
    learn: Literal["never", "marginal", "leave_one_out"] = "never"
    learn_steps: int = 2048
    learn_per_class: bool = False
    eval_head: Literal["linear", "gp"] = "linear"
    eval_buffer: Literal["auto", "live", "rebuilt"] = "auto"

    @property
    def rebuilt_for_evaluation(self) -> bool:
        """Whether evaluation fills a buffer of its own."""
        return self.eval_buffer == "rebuilt" or (self.eval_buffer == "auto" and self.role == "classifier")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.logit_scale is not None and self.logit_scale <= 0:
            raise ValueError(f"logit_scale must be positive; got {self.logit_scale}.")
        if self.exclude_same_index and self.role != "classifier":
            raise ValueError("exclude_same_index acts on the labelled loss, which only role='classifier' takes from the GP.")
        if self.role == "classifier" and self.site != "semantic":
            raise ValueError(f"role='classifier' already answers for every view; leave site at 'semantic', got {self.site!r}.")
        self._check_engine()
        self._check_learning()

    def _check_engine(self) -> None:
        if isinstance(self.engine, str) and self.engine in ENGINES:
            object.__setattr__(self, "engine", ENGINES[self.engine]())
        if type(self.engine) not in ENGINES.values():
            raise ValueError(f"engine must be one of {', '.join(ENGINES)}, or options of one; got {self.engine!r:.80}.")
        self.engine.check(self.buffer_size)
        if self.kernel_clip and self.engine.name not in ("auto", "exact"):
            raise ValueError(
                f"kernel_clip may make K indefinite, which engine={self.engine.name!r} cannot work with; use 'exact'."
            )
        if self.exclude_same_index and self.engine.name not in ("auto", "exact"):
            raise ValueError(f"exclude_same_index needs engine='exact'; got {self.engine.name!r}.")

    def _check_learning(self) -> None:
        if self.learn_steps < 1:
            raise ValueError(f"learn_steps must be at least 1; got {self.learn_steps}.")
        if self.learn != "never" and self.kernel_clip:
            raise ValueError(
                f"learn={self.learn!r} needs a likelihood, and a clipped kernel may have none: K can be indefinite. "
                f"Leave kernel_clip at 0, got {self.kernel_clip}, or learn at 'never'."
            )
        if self.learn_per_class and (self.learn == "never" or self.engine.name not in ("auto", "lowrank")):
            raise ValueError(
                "learn_per_class needs learn='marginal' or 'leave_one_out', and engine='lowrank' or 'auto', which can carry a "
                f"kernel a class; got learn={self.learn!r} and engine={self.engine.name!r}."
            )
