"""FixMatch and SimMatch of ``semilearn`` (USB) with SemiGPC, added to its registry.

Written against semilearn 0.3.2. Its algorithms have no place for a refiner, so three existing calls
are used: ``compute_prob``, with which FixMatch computes probabilities from the weak logits; the
call of ``dist_align``, to which SimMatch passes its own; and the hooks that run after a step.
Features are read with a forward hook of torch during one ``train_step``.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from semigpc.refiners import GaussianProcessRefiner, GPConfig

if TYPE_CHECKING:
    from semilearn.core import AlgorithmBase
else:
    AlgorithmBase = object  # the class below is mixed into semilearn's algorithms

STATE = "semigpc"  # key of the memory in a checkpoint of semilearn


def _scale(text: str) -> float | str:
    """Return a number, or "auto"."""
    return text if text == "auto" else float(text)


OPTIONS: dict[str, Callable[[str], Any]] = {
    "buffer_size": int,
    "balanced": bool,
    "length_scale": _scale,
    "noise_std": float,
    "logit_scale": _scale,
    "class_prior": str,
    "blend": float,
    "warmup_steps": int,
    "engine": str,
}  # of GPConfig, as --gp_buffer_size and so on, with the same defaults


class Refined(AlgorithmBase):  # type: ignore[misc]
    """A refiner for both algorithms: queried before alignment and mask, written after the step.

    After the warm-up, the weak view's probabilities become p_GP (U, C). Features h(x) (B, D) of the
    labelled rows and their labels are kept until the end of the step. Beside the base algorithm a
    step costs O(U N (D + C)) for the query and O(B N^2) for writing. With several processes, each
    of them writes the rows of all.
    """

    weak_pass: int  # which forward pass of a step is the weak view's, with use_cat=False

    def __init__(
        self, args: Any, net_builder: Any, tb_log: Any = None, logger: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(args, net_builder, tb_log, logger, **kwargs)
        config = GPConfig(**{name: getattr(args, f"gp_{name}") for name in OPTIONS})
        self.refiner = GaussianProcessRefiner(config, self.model.num_features, self.num_classes)
        self.passes: list[Tensor] = []  # features of this step, one tensor per forward pass
        self.asked = False
        self.waiting: tuple[Tensor, Tensor] | None = None

    def set_hooks(self) -> None:
        """Register a hook that writes after the optimiser's step and before any saving."""
        super().set_hooks()
        self.register_hook(_hook(), None, "VERY_HIGH")

    def listened_to(self) -> nn.Module:
        """Return the module that computes features; called in every step, as it may be wrapped."""
        module: nn.Module = self.model
        return module

    def features(self, output: Any, **options: Any) -> Tensor | None:  # noqa: ARG002
        """Return h (., D) from that module's output; None for another kind of call."""
        feature: Tensor = output["feat"]
        return feature

    @contextmanager
    def listening(self, labels: Tensor) -> Iterator[None]:
        """Record features as the network computes them; keep those of the labelled rows."""
        if isinstance(self.model, nn.DataParallel) and len(self.model.device_ids) > 1:
            raise RuntimeError(
                "SemiGPC needs a whole batch on one device, but nn.DataParallel splits it over "
                f"{len(self.model.device_ids)} devices. Set gpu to one of them, or "
                "multiprocessing_distributed to true."
            )

        def note(_module: nn.Module, _args: Any, options: dict[str, Any], output: Any) -> None:
            features = self.features(output, **options)
            if features is not None:
                self.passes.append(features.detach())

        self.passes = []
        self.asked = False
        handle = self.listened_to().register_forward_hook(note, with_kwargs=True)
        try:
            yield
            self.waiting = self.passes[0][: len(labels)], labels
        finally:
            handle.remove()
            self.passes = []

    def refined(self, probs: Tensor) -> Tensor:
        """Return p_GP for the weak view's ``probs`` (U, C), once per step; not in the warm-up."""
        if not self.passes or self.asked:
            return probs
        self.asked = True
        together = slice(-2 * len(probs), -len(probs))  # labelled, weak, strong in one pass
        weak = self.passes[0][together] if self.use_cat else self.passes[self.weak_pass]
        return self.refiner.probs(weak, own=probs)

    def get_save_dict(self) -> dict[str, Any]:
        """Return what the base algorithm saves, and the GP's memory without its inverse."""
        saved: dict[str, Any] = super().get_save_dict()
        state = self.refiner.state_dict()
        return saved | {STATE: {name: value.cpu() for name, value in state.items()}}

    def load_model(self, load_path: str) -> Any:
        """Load what the base algorithm loads, and the GP's memory; O(N^3) for the inverse."""
        checkpoint = super().load_model(load_path)
        if STATE not in checkpoint:
            raise ValueError(
                f"{load_path} does not contain the memory of SemiGPC: another algorithm wrote it. "
                f"Resume with that one, or start {self.algorithm} from scratch."
            )
        self.refiner.load_state_dict(checkpoint[STATE])
        return checkpoint


def register() -> tuple[type, type]:
    """Add ``semigpc_fixmatch`` and ``semigpc_simmatch`` to semilearn; return both classes."""
    try:
        from semilearn.core.utils import ALGORITHMS
    # torchaudio, which it imports, raises the latter two
    except (ImportError, OSError, RuntimeError) as error:
        raise ImportError(
            f"semilearn cannot be imported: {error} Install it in an environment of its own, "
            "pip install 'semigpc[usb]', with the torch that its torchaudio was built for."
        ) from error
    if "semigpc_fixmatch" not in ALGORITHMS:
        ALGORITHMS.register("semigpc_fixmatch")(_fixmatch())
        ALGORITHMS.register("semigpc_simmatch")(_simmatch())
    return ALGORITHMS["semigpc_fixmatch"], ALGORITHMS["semigpc_simmatch"]


def _fixmatch() -> type:
    from semilearn.algorithms.fixmatch import FixMatch

    class SemiGPCFixMatch(Refined, FixMatch):  # type: ignore[misc]
        """FixMatch whose weak probabilities come from the GP, through ``compute_prob``."""

        weak_pass = 2  # labelled, strong, weak

        def train_step(self, x_lb: Any, y_lb: Tensor, x_ulb_w: Any, x_ulb_s: Any) -> Any:
            with self.listening(y_lb):
                return super().train_step(x_lb, y_lb, x_ulb_w, x_ulb_s)

        def compute_prob(self, logits: Tensor) -> Tensor:
            return self.refined(super().compute_prob(logits))

        @staticmethod
        def get_argument() -> list[Any]:
            return [*FixMatch.get_argument(), *_arguments()]

    return SemiGPCFixMatch


def _simmatch() -> type:
    from semilearn.algorithms.simmatch.simmatch import SimMatch, SimMatch_Net

    class SemiGPCSimMatch(Refined, SimMatch):  # type: ignore[misc]
        """SimMatch whose weak probabilities come from the GP before they are aligned."""

        weak_pass = 1  # labelled, weak, strong

        def listened_to(self) -> nn.Module:
            """Return the backbone, since SimMatch's network returns projections alone."""
            network = next(
                module for module in self.model.modules() if isinstance(module, SimMatch_Net)
            )
            backbone: nn.Module = network.backbone
            return backbone

        def features(self, output: Any, **options: Any) -> Tensor | None:
            return output if options.get("only_feat") else None

        def train_step(
            self, idx_lb: Tensor, x_lb: Any, y_lb: Tensor, x_ulb_w: Any, x_ulb_s: Any
        ) -> Any:
            with self.listening(y_lb):
                return super().train_step(idx_lb, x_lb, y_lb, x_ulb_w, x_ulb_s)

        def call_hook(
            self, fn_name: str, hook_name: str | None = None, *args: Any, **kwargs: Any
        ) -> Any:
            if fn_name == "dist_align":
                kwargs["probs_x_ulb"] = self.refined(kwargs["probs_x_ulb"])
            return super().call_hook(fn_name, hook_name, *args, **kwargs)

        @staticmethod
        def get_argument() -> list[Any]:
            return [*SimMatch.get_argument(), *_arguments()]

    return SemiGPCSimMatch


def _arguments() -> list[Any]:
    from semilearn.algorithms.utils import SSL_Argument, str2bool

    kinds = {name: str2bool if kind is bool else kind for name, kind in OPTIONS.items()}
    defaults = vars(GPConfig()) | {"engine": GPConfig().engine.name}
    return [SSL_Argument(f"--gp_{name}", kind, defaults[name]) for name, kind in kinds.items()]


def _hook() -> Any:
    from semilearn.algorithms.utils import concat_all_gather
    from semilearn.core.hooks import Hook

    class SemiGPCHook(Hook):  # type: ignore[misc]
        """Moves the refiner to the network's device, and writes the rows of a step."""

        def before_run(self, algorithm: Any) -> None:
            algorithm.refiner.to(next(algorithm.model.parameters()).device)

        def after_train_step(self, algorithm: Any) -> None:
            rows, algorithm.waiting = algorithm.waiting, None
            if algorithm.distributed and algorithm.world_size > 1:
                rows = [concat_all_gather(part.contiguous()) for part in rows]
            algorithm.refiner.remember(*rows)

    return SemiGPCHook()
