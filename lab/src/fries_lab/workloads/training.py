"""Trains the models of the workflows: ``python -m fries_lab.workloads.training FOLDER``.

Needs the dependency group ``train`` (PyTorch, scikit-learn, ONNX). All models see payments of
dataset 1, in the order of time: the first rows are history, the next ones are for training,
the last ones for the reported AUC. An auto-encoder learns to repeat honest sequences; how far
it misses a payment, and the payments before it, tells fraud. Two small layers, which learn
from labelled payments, turn these errors and the code of the sequence into a probability.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import pyarrow as pa
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper
from rich.console import Console
from rich.progress import track
from skl2onnx import to_onnx
from sklearn.tree import DecisionTreeClassifier

from fries_lab.workloads.features import (
    FEATURES,
    MERCHANT_STEPS,
    USER_STEPS,
    Floats,
    auc,
    sequences,
)
from fries_lab.workloads.models import Model
from fries_lab.workloads.payments import DEFAULT, payments

SEED: Final = 1
HISTORY: Final = 200_000
"""Payments before those that are learned from, so that most users have some."""
LEARNED: Final = 300_000
HELD_OUT: Final = 150_000
"""Payments for the AUC; none of them is trained on."""
EPOCHS: Final = 4
BATCH: Final = 256
"""Sequences per step of training."""
RATE: Final = 2e-3
"""Adam's first learning rate; it falls to zero on a cosine."""
JUDGE: Final = 32
"""Units of the layer between what the auto-encoder finds and the probability."""
JUDGE_EPOCHS: Final = 15
JUDGED: Final = 60_000
"""Honest payments that these layers learn from, beside all fraud."""
TINY: Final = 1e-3
"""Added to squared errors before their logarithm, so that a perfect one is not minus infinity."""
TIMED: Final = 300
"""Single payments that the cost of a model is measured on."""


@dataclass(frozen=True)
class Network:
    """An auto-encoder to train."""

    key: str
    steps: int
    hidden: int
    layers: int
    code: int
    """Numbers that a sequence is squeezed into: too few to repeat what is unusual."""
    sequences: int
    """Honest sequences that it learns from."""


NETWORKS: Final = {
    "user_lstm": Network("user", USER_STEPS, hidden=160, layers=2, code=6, sequences=80_000),
    "user_lstm_small": Network("user", USER_STEPS, hidden=16, layers=1, code=6, sequences=200_000),
    "merchant_lstm": Network(
        "merchant", MERCHANT_STEPS, hidden=32, layers=1, code=6, sequences=60_000
    ),
}
TREE_DEPTH: Final = 8


class AutoEncoder(torch.nn.Module):
    """An LSTM that squeezes a sequence into a code, and one that repeats it from there."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        shape = {"hidden_size": network.hidden, "num_layers": network.layers, "batch_first": True}
        self.encoder = torch.nn.LSTM(FEATURES, **shape)
        self.squeeze = torch.nn.Linear(network.hidden, network.code)
        self.decoder = torch.nn.LSTM(network.code, **shape)
        self.spread = torch.nn.Linear(network.hidden, FEATURES)
        self.judge = torch.nn.Sequential(
            torch.nn.Linear(3 * FEATURES + network.code, JUDGE),
            torch.nn.ReLU(),
            torch.nn.Linear(JUDGE, 1),
        )

    def repeated(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What it makes of sequences, and their codes."""
        _, (hidden, _) = self.encoder(inputs)
        code = torch.tanh(self.squeeze(hidden[-1]))
        made, _ = self.decoder(code.unsqueeze(1).repeat(1, inputs.shape[1], 1))
        return self.spread(made), code

    def findings(self, inputs: torch.Tensor) -> torch.Tensor:
        """How far it misses the last payment, and all payments, in each feature; the code."""
        made, code = self.repeated(inputs)
        missed = inputs - made
        errors = torch.log((missed**2).mean(1) + TINY)
        return torch.cat([missed[:, -1], inputs[:, -1], errors, code], 1)

    def forward(self, payments: torch.Tensor) -> torch.Tensor:
        """Probability of fraud of the last payment of each sequence."""
        return torch.sigmoid(self.judge(self.findings(payments))).squeeze(1)


@dataclass(frozen=True)
class Samples:
    """Sequences of all payments by one key; which are fraud, and which are for what."""

    inputs: Floats
    fraud: NDArray[np.bool_]

    def learned(self, fraud: bool, most: int | None = None) -> Floats:
        """Sequences to learn from, of one kind."""
        chosen = slice(HISTORY, HISTORY + LEARNED)
        found: Floats = self.inputs[chosen][self.fraud[chosen] == fraud][:most]
        return found

    def held_out_auc(self, model: Callable[[Floats], NDArray[Any]]) -> float:
        """AUC on payments that nothing was learned from."""
        inputs, fraud = self.inputs[-HELD_OUT:], self.fraud[-HELD_OUT:]
        scores = [model(inputs[i : i + BATCH]) for i in range(0, HELD_OUT, BATCH)]
        return auc(np.concatenate(scores), fraud)


def trained_network(name: str, network: Network, samples: Samples) -> bytes:
    """Train an auto-encoder and its last layer; the network as ONNX."""
    torch.manual_seed(SEED)
    model = AutoEncoder(network)
    honest = torch.from_numpy(samples.learned(False, network.sequences))
    steps = EPOCHS * -(-len(honest) // BATCH)
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    shuffled = torch.cat([torch.randperm(len(honest)) for _ in range(EPOCHS)]).split(BATCH)
    for chosen in track(shuffled, name, console=Console(stderr=True), transient=True):
        batch = honest[chosen]
        loss = ((model.repeated(batch)[0] - batch) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        falling.step()
    _train_judge(model, samples)
    return _exported(model.eval(), network.steps)


def _train_judge(model: AutoEncoder, samples: Samples) -> None:
    """Learn to tell fraud by what the auto-encoder finds; both kinds have equal weight."""
    fraud, honest = samples.learned(True), samples.learned(False, JUDGED)
    with torch.no_grad():
        parts = torch.from_numpy(np.concatenate([fraud, honest])).split(BATCH)
        findings = torch.cat([model.findings(part) for part in parts])
    truth = (torch.arange(len(findings)) < len(fraud)).float()
    weight = torch.where(truth > 0, len(honest) / len(fraud), 1.0)
    optimizer = torch.optim.Adam(model.judge.parameters(), RATE)
    for _ in range(JUDGE_EPOCHS):
        for chosen in torch.randperm(len(findings)).split(BATCH):
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                model.judge(findings[chosen]).squeeze(1), truth[chosen], weight=weight[chosen]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def _exported(model: AutoEncoder, steps: int) -> bytes:
    """The network as ONNX, for any number of sequences at once."""
    program = torch.onnx.export(
        model,
        (torch.zeros(2, steps, FEATURES),),
        input_names=["payments"],
        output_names=["fraud"],
        dynamic_shapes=({0: torch.export.Dim("sequences")},),
        dynamo=True,
        verbose=False,
    )
    return _stripped(program.model_proto)


def trained_tree(samples: Samples) -> bytes:
    """A decision tree on the same sequences, as ONNX with the same input and output."""
    fraud, honest = samples.learned(True), samples.learned(False)
    inputs = np.concatenate([fraud, honest]).reshape(-1, USER_STEPS * FEATURES)
    truth = np.arange(len(inputs)) < len(fraud)
    tree = DecisionTreeClassifier(
        max_depth=TREE_DEPTH, min_samples_leaf=50, class_weight="balanced", random_state=SEED
    )
    tree.fit(inputs, truth.astype(np.int64))
    made = to_onnx(tree, inputs[:1], options={"zipmap": False}, target_opset=17)
    graph = made.graph
    flat, chances = graph.input[0].name, graph.output[1].name
    shape = ["sequences", USER_STEPS, FEATURES]
    nodes = [
        helper.make_node("Flatten", ["payments"], [flat], axis=1),
        *graph.node,
        helper.make_node("Gather", [chances, "fraudulent"], ["fraud"], axis=1),
    ]
    whole = helper.make_graph(
        nodes,
        "tree",
        [helper.make_tensor_value_info("payments", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("fraud", TensorProto.FLOAT, ["sequences"])],
        [*graph.initializer, helper.make_tensor("fraudulent", TensorProto.INT64, [], [1])],
    )
    return _stripped(
        helper.make_model(whole, opset_imports=made.opset_import, ir_version=made.ir_version)
    )


def _stripped(model: onnx.ModelProto) -> bytes:
    """A network without what exporters note down for debugging: stacks, paths, names."""
    for part in (model, model.graph, *model.graph.node, *model.graph.value_info):
        part.ClearField("doc_string")
        part.ClearField("metadata_props")
    for value in (*model.graph.input, *model.graph.output):
        value.ClearField("metadata_props")
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())


def _milliseconds(model: Model, inputs: Floats) -> float:
    """Median cost of one payment on one core."""
    seconds = []
    for place in range(-TIMED, 0):
        begun = time.perf_counter()
        model(inputs[place:][:1])
        seconds.append(time.perf_counter() - begun)
    return round(1e3 * float(np.median(seconds)), 4)


def main(folder: Path) -> None:
    """Train all models into a folder, with a record of what they are worth."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = pa.Table.from_batches([payments(0, HISTORY + LEARNED + HELD_OUT)])
    fraud = rows["is_fraud"].to_numpy()
    found: dict[str, dict[str, Any]] = {}
    for key, steps in (("user", USER_STEPS), ("merchant", MERCHANT_STEPS)):
        samples = Samples(sequences(rows, key, steps), fraud)
        for name, content, about in _trained(key, samples):
            (folder / f"{name}.onnx").write_bytes(content)
            model = Model(content, steps)
            found[name] = {
                "key": key,
                "steps": steps,
                **about,
                "bytes": len(content),
                "auc": round(samples.held_out_auc(model), 4),
                "milliseconds": _milliseconds(model, samples.inputs),
            }
            Console(stderr=True).print(name, found[name])
    _record(folder, found)


def _trained(key: str, samples: Samples) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """The models that judge payments by one key, and what they are like."""
    for name, network in NETWORKS.items():
        if network.key == key:
            yield name, trained_network(name, network, samples), asdict(network)
    if key == "user":
        yield "user_tree", trained_tree(samples), {"depth": TREE_DEPTH}


def _record(folder: Path, found: dict[str, dict[str, Any]]) -> None:
    """Write down what was trained on what, and what it is worth."""
    packages = ("numpy", "onnx", "onnxruntime", "scikit-learn", "skl2onnx", "torch")
    record = {
        "seed": SEED,
        "payments": asdict(DEFAULT),
        "rows": {"history": HISTORY, "learned": LEARNED, "held out": HELD_OUT},
        "versions": {"python": platform.python_version()}
        | {package: version(package) for package in packages},
        "models": found,
    }
    (folder / "record.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    lines = [
        "# Trained models",
        "",
        "Made by `make models` from generated payments; `record.json` has all settings.",
        f"AUC on {HELD_OUT:,} payments that follow the {LEARNED:,} learned from; one fraud in ten",
        "looks like the user's own payment and cannot be found. Cost of a single payment with ONNX",
        "Runtime on one core, median.",
        "",
        "| model | sees | AUC | ms per payment | KB |",
        "|---|---|---|---|---|",
        *(
            f"| `{name}` | {one['steps']} payments of the {one['key']} | {one['auc']:.3f} "
            f"| {one['milliseconds']:.3f} | {one['bytes'] / 1e3:.0f} |"
            for name, one in found.items()
        ),
    ]
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "trained")
