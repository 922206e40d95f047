"""The dataflow graphs of the paper, as pure functions.

First the figures that explain the idea, then the workflows of the experiments. Edges
are forward (no shuffle, a channel per worker) unless a key is named. Every operator
has the same number of workers.
"""

from __future__ import annotations

from fries.graph import Edge, Emits, Graph, Operator, Partitioning, paths

_Key = str | tuple[str, ...]


def running_example(workers: int = 1) -> Graph:
    """Figure "fd-reconfig-multi-op": fraud by customer, by merchant, and their combination."""
    return _dataflow(
        "source -> FC -> FM -> MC -> sink",
        keys={("source", "FC"): "customer", ("FC", "FM"): "merchant"},
        workers=workers,
    )


def scope_figure(workers: int = 1) -> Graph:
    """Figures "scope-example" and "hybrid-min-subdag": two sources, a diamond, a merge.

    All operators are one-to-one, as section 5 assumes where it computes the MCS.
    """
    return _dataflow("A -> C -> D -> F -> H", "C -> E -> F", "B -> G -> H", workers=workers)


def split_figure(workers: int = 1) -> Graph:
    """Figure "multi-op-dcm": X sends each tuple to either C or D."""
    return _dataflow("source -> X -> C", "X -> D", workers=workers)


def join_split_example(workers: int = 1) -> Graph:
    """Figure "extension-example-complex": a one-to-many Join, then a Split and a Union."""
    return _dataflow(
        "source -> FC -> J -> SP -> FMX -> U",
        "SP -> FMY -> U",
        keys={
            ("source", "FC"): "customer",
            ("SP", "FMX"): "merchant",
            ("SP", "FMY"): "merchant",
        },
        emits={"J": Emits.MANY},
        workers=workers,
    )


def replicate_i(workers: int = 1) -> Graph:
    """Figure "replicate-pruning" (I): the target E sits behind one branch of RE."""
    return _dataflow(
        "source -> RE -> C -> E", "RE -> D", emits={"RE": Emits.ONE_PER_EDGE}, workers=workers
    )


def replicate_ii(workers: int = 1) -> Graph:
    """Figure "replicate-pruning" (II): targets E and F behind different branches of RE."""
    return _dataflow(
        "source -> RE -> C -> E", "RE -> D -> F", emits={"RE": Emits.ONE_PER_EDGE}, workers=workers
    )


def replicate_iii(workers: int = 1) -> Graph:
    """Figure "replicate-pruning" (III): the target X receives the tuples of both branches."""
    return _dataflow(
        "source -> RE -> C -> X", "RE -> D -> X", emits={"RE": Emits.ONE_PER_EDGE}, workers=workers
    )


def replicate_cases(workers: int = 1) -> dict[str, tuple[Graph, tuple[str, ...]]]:
    """Figure "replicate-pruning": each case's graph with the targets it is drawn with."""
    return {
        "I": (replicate_i(workers), ("E",)),
        "II": (replicate_ii(workers), ("E", "F")),
        "III": (replicate_iii(workers), ("X",)),
    }


def self_join_figure(workers: int = 1) -> Graph:
    """Figure "self-join-pruning": SJ makes one tuple of the two that RE sent; target E."""
    return _dataflow(
        "source -> RE -> C -> SJ -> E",
        "RE -> D -> SJ",
        keys={("C", "SJ"): "transaction_id", ("D", "SJ"): "transaction_id"},
        emits={"RE": Emits.ONE_PER_EDGE},
        unique={"SJ"},
        workers=workers,
    )


def w1(workers: int = 1) -> Graph:
    """W1: fraud detection with one user-based model."""
    return _dataflow("source -> FD -> sink", keys={("source", "FD"): "user"}, workers=workers)


def w2(workers: int = 1) -> Graph:
    """W2: TPC-DS query 40, catalog sales joined with returns, warehouse, item and date."""
    return _dataflow(
        "source -> J1 -> J2 -> J3 -> J4 -> sink",
        keys={
            ("source", "J1"): ("cs_order_number", "cs_item_sk"),
            ("J1", "J2"): "cs_warehouse_sk",
            ("J2", "J3"): "cs_item_sk",
            ("J3", "J4"): "cs_sold_date_sk",
        },
        workers=workers,
    )


def w3(workers: int = 1) -> Graph:
    """W3: TPC-DS query 71, three sales channels joined with date, then item and time.

    The paper's U1 is two binary unions here: U1a (web, catalog) and U1b (with store).
    """
    return _dataflow(
        "web -> J5 -> U1a -> U1b -> J8 -> J9 -> sink",
        "catalog -> J6 -> U1a",
        "store -> J7 -> U1b",
        keys={
            ("web", "J5"): "ws_sold_date_sk",
            ("catalog", "J6"): "cs_sold_date_sk",
            ("store", "J7"): "ss_sold_date_sk",
            ("U1b", "J8"): "sold_item_sk",
            ("J8", "J9"): "time_sk",
        },
        workers=workers,
    )


def w4(workers: int = 1) -> Graph:
    """W4: a user's payments unnested (U2), then a user-based and a merchant-based model.

    LP marks large payments and MC combines the two probabilities: the small one-to-one
    operators between the models and the flag F2.
    """
    return _dataflow(
        "source -> F1 -> U2 -> FD1 -> LP -> FD2 -> MC -> F2 -> sink",
        keys={("U2", "FD1"): "user", ("LP", "FD2"): "merchant"},
        emits={"U2": Emits.MANY},
        workers=workers,
    )


def w5(workers: int = 1) -> Graph:
    """W5: payments replicated to a user-based and a merchant-based model, then self-joined."""
    return _dataflow(
        "source -> RE -> FD3 -> S1 -> F3 -> SJ -> E1 -> sink",
        "RE -> F4 -> FD4 -> SJ",
        keys={
            ("RE", "FD3"): "user",
            ("FD3", "S1"): "transaction_id",
            ("F3", "SJ"): "transaction_id",
            ("F4", "FD4"): "merchant",
            ("FD4", "SJ"): "transaction_id",
        },
        emits={"RE": Emits.ONE_PER_EDGE},
        unique={"SJ"},
        workers=workers,
    )


def _dataflow(
    *lines: str,
    keys: dict[tuple[str, str], _Key] | None = None,
    emits: dict[str, Emits] | None = None,
    unique: set[str] | None = None,
    workers: int = 1,
) -> Graph:
    """A graph from paths such as ``"A -> B"``; what nothing flows into is a source."""
    edges = [_keyed(edge, (keys or {}).get((edge.source, edge.target))) for edge in paths(*lines)]
    fed = {edge.target for edge in edges}
    operators = [
        Operator(
            name,
            emits=(emits or {}).get(name, Emits.ONE),
            unique=name in (unique or ()),
            source=name not in fed,
            workers=workers,
        )
        for name in dict.fromkeys(end for edge in edges for end in (edge.source, edge.target))
    ]
    return Graph(operators, edges)


def _keyed(edge: Edge, key: _Key | None) -> Edge:
    if key is None:
        return edge
    columns = (key,) if isinstance(key, str) else key
    return Edge(edge.source, edge.target, Partitioning.HASH, columns)
