"""Export of hash buckets and crosses: ONNX nodes that compute the hashes of all columns together, in one tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from torch_estimator.export.graph import INT64, STRING, UINT64, GraphBuilder
from torch_estimator.feature_column.hashing import (
    FINGERPRINT_MULTIPLIER,
    FINGERPRINT_SHIFT,
    MURMUR3_SEED_HIGH,
    MURMUR3_SEED_LOW,
    hash_strings,
)
from torch_estimator.feature_column.lowering import ChainValue, ComputedSlot, HashChain, HashedKey, ListLeaf, RawTensor


class HashChains:
    """Writer of hash chains into the ONNX graph. A chain combines values by hashing, one after the other.

    `seen_strings` holds, for keys hashed with farmhash, the strings whose hashes the graph will contain.
    """

    def __init__(
        self, graph: GraphBuilder, raw: Mapping[str, RawTensor], seen_strings: Mapping[str, Sequence[str]]
    ) -> None:
        self._graph = graph
        self._raw = raw
        self._seen = seen_strings

    def lower(self, chains: Sequence[HashChain]) -> str:
        """Return the id of each hash chain in each row, int64 ``[N, len(chains)]``. A missing id is -1."""
        graph = self._graph
        values, place = self._values(chains)
        hashes = self._combined(chains, values, place)
        buckets = graph.constant([[chain.buckets for chain in chains]], np.uint64)
        ids = graph.op("Cast", graph.op("Mod", hashes, buckets), to=INT64)
        return self._without_missing(chains, ids)

    def lower_products(self, start: int, leaves: Sequence[ListLeaf], buckets: int) -> str:
        """Return the ids of a cross of lists, one id for each combination of values from the crossed columns (leaves).

        The ids are int64 ``[N, n]``. The last leaf varies fastest. `start` is the start value of the hash, with which
        the first leaf's values are combined; `buckets` is the modulus.
        """
        graph = self._graph
        state, gone = "", ""
        for leaf in leaves:
            values = self._hashes([leaf.value]) if isinstance(leaf.value, HashedKey) else ""
            mixed = self._mixed(values or graph.op("Cast", str(leaf.value), to=UINT64))
            missing = self._is_missing(leaf.missing) if leaf.missing is not None else ""
            if not state:
                state, gone = self._fingerprint_cat(graph.constant(start, np.uint64), mixed), missing
                continue
            shape = graph.op("Shape", state), graph.op("Shape", mixed)
            state = self._flattened(self._fingerprint_cat(self._outer(state), self._inner(mixed)))
            gone = self._either_missing(gone, missing, *shape)
        ids = graph.op("Cast", graph.op("Mod", state, graph.constant(buckets, np.uint64)), to=INT64)
        return graph.op("Where", gone, graph.constant(-1, np.int64), ids) if gone else ids

    def _either_missing(self, left: str, right: str, left_shape: str, right_shape: str) -> str:
        """Return for each pair of values whether either is missing, bool ``[N, n * m]``; '' if no value can be missing.

        `left`, bool ``[N, n]``, and `right`, bool ``[N, m]``, say which values are missing; '' for none.
        """
        graph = self._graph
        if not left and not right:
            return ""
        present = graph.constant(False, np.bool_)
        left = left or graph.op("Expand", present, left_shape)
        right = right or graph.op("Expand", present, right_shape)
        return self._flattened(graph.op("Or", self._outer(left), self._inner(right)))

    def _outer(self, tensor: str) -> str:
        return self._graph.op("Unsqueeze", tensor, self._graph.constant([2], np.int64))

    def _inner(self, tensor: str) -> str:
        return self._graph.op("Unsqueeze", tensor, self._graph.constant([1], np.int64))

    def _flattened(self, tensor: str) -> str:
        """Reshape ``[N, n, m]`` to ``[N, n * m]``."""
        return self._graph.op("Reshape", tensor, self._graph.constant([0, -1], np.int64))

    def _is_missing(self, key: str) -> str:
        """Return for each value of a raw column whether it is missing, which means ``''`` or -1."""
        raw = self._raw[key]
        sign = (
            self._graph.constant(-1, np.int64) if raw.dtype == "int64" else self._graph.constant(np.array("", object))
        )
        return self._graph.op("Equal", raw.tensor, sign)

    def _values(self, chains: Sequence[HashChain]) -> tuple[str, dict[ChainValue, int]]:
        """Return one uint64 tensor with the values of all hash chains as columns, and the column of each value."""
        graph = self._graph
        wanted = list(dict.fromkeys(value for chain in chains for value in chain.values))
        place: dict[ChainValue, int] = {}
        pieces: list[str] = []
        hashed = [value for value in wanted if isinstance(value, HashedKey)]
        if hashed:
            pieces.append(self._hashes(hashed))
            place.update((value, index) for index, value in enumerate(hashed))
        for tensor in dict.fromkeys(value.tensor for value in wanted if isinstance(value, ComputedSlot)):
            # Append the whole tensor, because a cross uses all ids of a column.
            slots = sorted(v.slot for v in wanted if isinstance(v, ComputedSlot) and v.tensor == tensor)
            first = len(place)
            place.update((ComputedSlot(tensor=tensor, slot=slot), first + slot) for slot in slots)
            pieces.append(graph.op("Cast", tensor, to=UINT64))
        return concat(graph, pieces), place

    def _hashes(self, values: Sequence[HashedKey]) -> str:
        """Return the 64-bit hashes of raw columns, uint64 ``[N, len(values)]``."""
        graph = self._graph
        keys = list(dict.fromkeys(value.key for value in values))
        murmur = murmur3(graph, concat(graph, [text(graph, self._raw[key]) for key in keys]))
        if all(value.function == "murmur3" for value in values):
            return murmur
        columns = []
        for value in values:
            unseen = select(graph, murmur, [keys.index(value.key)], len(keys))
            columns.append(unseen if value.function == "murmur3" else self._farmhash(value.key, unseen))
        return concat(graph, columns)

    def _farmhash(self, key: str, unseen: str) -> str:
        """Return the farmhash of each string seen in training, and the given hash `unseen` for any other string.

        No ONNX operator computes farmhash, so the graph has a table of the hashes of seen strings.
        """
        graph = self._graph
        strings = list(self._seen.get(key, ()))
        if not strings:
            return unseen
        hashes = hash_strings(strings, "farmhash").view(np.int64)
        # The table returns `absent` for unseen strings. Any 64-bit number may be the hash of a string.
        # Therefore take the first negative number that is not the hash of a seen string.
        taken = set(hashes.tolist())
        absent = next(number for number in range(-1, -len(taken) - 2, -1) if number not in taken)
        found = graph.op(
            "LabelEncoder",
            text(graph, self._raw[key]),
            domain="ai.onnx.ml",
            keys_strings=strings,
            values_int64s=hashes.tolist(),
            default_int64=absent,
        )
        is_unseen = graph.op("Equal", found, graph.constant(absent, np.int64))
        # Cast to signed numbers, because onnxruntime has no Where for unsigned numbers. The cast keeps the bits.
        either = graph.op("Where", is_unseen, graph.op("Cast", unseen, to=INT64), found)
        return graph.op("Cast", either, to=UINT64)

    def _combined(self, chains: Sequence[HashChain], values: str, place: Mapping[ChainValue, int]) -> str:
        """Return the hash of each chain, before the modulus is taken, uint64 ``[N, len(chains)]``.

        All chains are computed together: step i is a single FingerprintCat64 over the i-th values of all chains that
        are long enough.
        """
        graph = self._graph
        pieces: list[str] = []
        order: list[int] = []
        plain = [index for index, chain in enumerate(chains) if chain.start is None]
        if plain:
            columns = [place[chains[index].values[0]] for index in plain]
            pieces.append(select(graph, values, columns, len(place)))
            order += plain
        running = [index for index, chain in enumerate(chains) if chain.start is not None]
        if running:
            mixed = self._mixed(values)
            state = graph.constant([[chains[index].start or 0 for index in running]], np.uint64)
        step = 0
        while running:
            columns = [place[chains[index].values[step]] for index in running]
            state = self._fingerprint_cat(state, select(graph, mixed, columns, len(place)))
            step += 1
            done = [i for i, index in enumerate(running) if len(chains[index].values) == step]
            going = [i for i, index in enumerate(running) if len(chains[index].values) > step]
            if done:
                pieces.append(select(graph, state, done, len(running)))
                order += [running[i] for i in done]
            state = select(graph, state, going, len(running)) if going else state
            running = [running[i] for i in going]
        positions = [order.index(index) for index in range(len(chains))]
        return select(graph, concat(graph, pieces), positions, len(chains))

    def _mixed(self, values: str) -> str:
        """Return the part of farmhash's FingerprintCat64 that depends only on the second of its two arguments."""
        graph = self._graph
        multiplier = graph.constant(FINGERPRINT_MULTIPLIER, np.uint64)
        return graph.op("Mul", self._shift_mix(graph.op("Mul", values, multiplier)), multiplier)

    def _fingerprint_cat(self, first: str, mixed: str) -> str:
        """Combine two hashes by farmhash's FingerprintCat64. The second hash is given as the result of `_mixed`."""
        graph = self._graph
        multiplier = graph.constant(FINGERPRINT_MULTIPLIER, np.uint64)
        result = graph.op("BitwiseXor", graph.op("BitwiseXor", first, multiplier), mixed)
        result = graph.op("Mul", self._shift_mix(graph.op("Mul", result, multiplier)), multiplier)
        return self._shift_mix(result)

    def _shift_mix(self, value: str) -> str:
        graph = self._graph
        shifted = graph.op("BitShift", value, graph.constant(FINGERPRINT_SHIFT, np.uint64), direction="RIGHT")
        return graph.op("BitwiseXor", value, shifted)

    def _without_missing(self, chains: Sequence[HashChain], ids: str) -> str:
        """Replace the id of a hash chain by -1 in rows where a raw column listed in its `missing` has no value."""
        graph = self._graph
        keys = list(dict.fromkeys(key for chain in chains for key in chain.missing))
        if not keys:
            return ids
        texts = concat(graph, [text(graph, self._raw[key]) for key in keys])
        signs = graph.constant([["" if self._raw[key].dtype == "string" else "-1" for key in keys]])
        missing = graph.op("Equal", texts, signs)
        masks = []
        for turn in range(max(len(chain.missing) for chain in chains)):
            columns = [keys.index(chain.missing[turn]) if len(chain.missing) > turn else 0 for chain in chains]
            applies = [[len(chain.missing) > turn for chain in chains]]
            mask = select(graph, missing, columns, len(keys))
            masks.append(graph.op("And", mask, graph.constant(applies, np.bool_)))
        anything = masks[0]
        for mask in masks[1:]:
            anything = graph.op("Or", anything, mask)
        return graph.op("Where", anything, graph.constant(-1, np.int64), ids)


def murmur3(graph: GraphBuilder, strings: str) -> str:
    """Return 64-bit hashes of strings. Each consists of two 32-bit MurmurHash3 values with different seeds."""
    high, low = (
        graph.op(
            "Cast",
            graph.op("MurmurHash3", strings, domain="com.microsoft", seed=seed, positive=1),
            to=UINT64,
        )
        for seed in (MURMUR3_SEED_HIGH, MURMUR3_SEED_LOW)
    )
    shifted = graph.op("BitShift", high, graph.constant(32, np.uint64), direction="LEFT")
    return graph.op("BitwiseOr", shifted, low)


def text(graph: GraphBuilder, raw: RawTensor) -> str:
    """Return a raw column as strings; integers are written in decimal."""
    return raw.tensor if raw.dtype == "string" else graph.op("Cast", raw.tensor, to=STRING)


def concat(graph: GraphBuilder, pieces: Sequence[str]) -> str:
    """Concatenate tensors ``[N, *]`` along the second dimension."""
    return pieces[0] if len(pieces) == 1 else graph.multi("Concat", pieces, outputs=1, axis=1)[0]


def select(graph: GraphBuilder, tensor: str, columns: Sequence[int], width: int) -> str:
    """Return some columns of a tensor ``[N, width]``, or the tensor itself if `columns` are all columns in order."""
    if list(columns) == list(range(width)):
        return tensor
    return graph.op("Gather", tensor, graph.constant(list(columns), np.int64), axis=1)
