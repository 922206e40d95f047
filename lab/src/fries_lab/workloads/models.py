"""The trained models of the workflows, and the operator that asks them about each payment.

They were trained by :mod:`fries_lab.workloads.training` and lie beside this module as ONNX files.
A model travels to the workers as bytes; each process opens its own session, on first use.
"""

from __future__ import annotations

from functools import cached_property
from importlib.resources import files
from typing import Any, Final

from fries_lab.workloads.features import (
    MERCHANT_STEPS,
    USER_STEPS,
    Floats,
    Vector,
    sequence,
    vector,
)

TRAINED: Final = files("fries_lab.workloads") / "trained"
"""Where the models are, with a record of how they were trained."""
STEPS: Final = {
    "user_lstm": USER_STEPS,
    "user_lstm_small": USER_STEPS,
    "user_tree": USER_STEPS,
    "merchant_lstm": MERCHANT_STEPS,
}
"""The models: how many payments each of them sees."""


class Model:
    """A network that gives the probability of fraud for sequences of payments.

    A pickle holds the bytes of the network, never the session.
    """

    def __init__(self, content: bytes, steps: int) -> None:
        self._content = content
        self.steps = steps
        """Payments in a sequence."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._content, self.steps)

    def __call__(self, inputs: Floats) -> Floats:
        """One probability for each sequence."""
        (probabilities,) = self._session.run(None, {"payments": inputs})
        found: Floats = probabilities
        return found

    @cached_property
    def _session(self) -> Any:  # noqa: ANN401 - onnxruntime has no types
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # Spark runs a worker on every core already
        options.inter_op_num_threads = 1
        return onnxruntime.InferenceSession(
            self._content, options, providers=["CPUExecutionProvider"]
        )


def trained(name: str) -> Model:
    """One of the models that come with the package; their names are in ``STEPS``."""
    return Model((TRAINED / f"{name}.onnx").read_bytes(), STEPS[name])


class Inference:
    """The function of a keyed operator: remembers the last payments of a key, and judges each.

    The state is what the model sees of these payments, oldest first. The probability of fraud
    goes into a column of the row.
    """

    def __init__(self, model: Model, column: str = "p") -> None:
        self._model = model
        self._column = column

    def __call__(
        self, state: tuple[Vector, ...], row: dict[str, Any]
    ) -> tuple[tuple[Vector, ...], dict[str, Any]]:
        """Take a payment."""
        steps = self._model.steps
        state = (*state, vector(row))[-steps:]
        (probability,) = self._model(sequence(state, steps))
        return state, {**row, self._column: float(probability)}
