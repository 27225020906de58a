# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""MaxMatch (Dahlmeier and Ng, 2012): the edits of a hypothesis that match an annotator's edits best.

The edits are a path through a lattice. Its vertices are pairs of positions, in the source and in the hypothesis. Its
edges are the steps of all minimal edit scripts, and merged edits: chains of steps with few unchanged words. An edge
costs its number of steps, plus a surcharge of EPSILON if it changes something. A gold edge, one of the annotator's
edits, costs minus the number of edges. The cheapest path counts.

The path must equal that of the official scorer to the edit (nusnlp/m2scorer, master: release 3.2, except that
insertions before the first word are at position 0). So the peculiarities of its code are kept here:

- The lattice combines two Levenshtein distances, with substitutions at 1 and at 2. A step in both is listed twice
  among the edges, and surcharged twice.
- Merged edits come from a loop over all edges i -> k and steps k -> j in the order of k, i, j. i -> j is listed if it
  then takes fewer steps than before. An edge that is listed again is surcharged again.
- Merged edges that change nothing are deleted from the list while it is iterated, which skips the edge behind each.
- Insertions at a place where the annotator also inserts are handled from both ends in turn (`insertion_costs`).
- Bellman-Ford finds the path, in floating point. If two paths cost the same after rounding, the one whose last edge
  was relaxed first wins.

The official scorer needs time cubic in the number of vertices. But the lattice has no cycles: one sweep over its
antidiagonals finds the edges, and a second sweep finds the few edges on which Bellman-Ford must run.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np


# How many source and hypothesis tokens a step takes, in the order of a vertex's successors.
STEPS = ((0, 1), (1, 0), (1, 1))
DIAGONAL = 2

EPSILON = 0.001

# Above this number of edges, only those between `boundaries` are considered, and this number stands for their count.
# Ties between paths may then be decided differently. The official scorer takes many minutes for so many edges.
MAX_EDGES = 500_000

UNREACHED = 1 << 30


class GoldEdit(NamedTuple):
    """An annotator's edit: one of the texts `replacements` for the tokens from `start` to `end` (exclusive)."""

    start: int
    end: int
    replacements: Sequence[str]


class Edges(NamedTuple):
    """Edges of the lattice, as arrays of the same length; edges with the same target are adjacent.

    Attributes:
        source, target: Numbers of vertices.
        steps: Number of steps.
        changes: bool, whether they change something.
        merged: uint8; bit s is set if the edge was listed as a merged edit whose last step is `STEPS[s]`. 0: a step.
        times_listed: How often the official scorer's list has the edge.
    """

    source: np.ndarray
    target: np.ndarray
    steps: np.ndarray
    changes: np.ndarray
    merged: np.ndarray
    times_listed: np.ndarray


class Cost(NamedTuple):
    """The cost of an edge: its steps, and its number of surcharges. `steps` is None for a gold edge."""

    steps: int | None
    surcharges: int


def levenshtein(mismatch: np.ndarray, substitution: int) -> np.ndarray:
    """Distances between all pairs of prefixes.

    Args:
        mismatch: bool (source tokens, hypothesis tokens).
        substitution: Its cost; insertions and deletions cost 1.

    Returns:
        int64 (source tokens + 1, hypothesis tokens + 1).
    """
    columns = np.arange(mismatch.shape[1] + 1)
    rows = [columns]
    for i, differs in enumerate(mismatch):
        row = np.append(i + 1, np.minimum(rows[i][1:] + 1, rows[i][:-1] + substitution * differs))
        rows.append(np.minimum.accumulate(row - columns) + columns)
    return np.stack(rows)


class Lattice:
    """The lattice of a source and a hypothesis. Vertices are numbered in the order of their (row, column).

    Args:
        source: Tokens; the rows are the positions between them.
        hypothesis: Tokens; the columns are the positions between them.
        max_unchanged_words: Maximum number of unchanged words in a merged edit.
    """

    def __init__(self, source: Sequence[str], hypothesis: Sequence[str], max_unchanged_words: int = 2):
        self.hypothesis = hypothesis
        self.max_unchanged_words = max_unchanged_words
        ids = {token: i for i, token in enumerate({*source, *hypothesis})}
        source_ids, hypothesis_ids = (np.array([ids[token] for token in text], int) for text in (source, hypothesis))
        mismatch = source_ids[:, None] != hypothesis_ids
        shape = (len(source) + 1, len(hypothesis) + 1)

        on_path = np.zeros(shape, bool)
        times_listed = np.zeros((len(STEPS), *shape), np.int8)
        for substitution in (1, 2):
            before = levenshtein(mismatch, substitution)
            behind = levenshtein(mismatch[::-1, ::-1], substitution)[::-1, ::-1]
            on_path |= before + behind == before[-1, -1]
            for listed, (down, right), cost in zip(times_listed, STEPS, (1, 1, substitution * mismatch)):
                start = before[: shape[0] - down, : shape[1] - right]
                listed[down:, right:] += start + cost + behind[down:, right:] == before[-1, -1]

        self.rows, self.columns = np.nonzero(on_path)
        self.size = len(self.rows)
        self.vertex = np.full(shape, -1)
        self.vertex[on_path] = np.arange(self.size)
        # (steps, vertices): how often the step to a vertex is listed (0: not at all), and the vertex it comes from.
        self.times_listed = times_listed[:, on_path]
        self.predecessors = np.stack([self.vertex[self.rows - down, self.columns - right] for down, right in STEPS])
        # Whether the diagonal step to a vertex is an unchanged word.
        unchanged = np.zeros(shape, bool)
        unchanged[1:, 1:] = ~mismatch
        self.unchanged = unchanged[on_path] & (self.times_listed[DIAGONAL] > 0)
        self.antidiagonal = self.rows + self.columns
        order = np.argsort(self.antidiagonal, kind="stable")
        self.antidiagonals = np.split(order, np.cumsum(np.bincount(self.antidiagonal))[:-1])
        self.place_on_antidiagonal = np.empty(self.size, int)
        for vertices in self.antidiagonals:
            self.place_on_antidiagonal[vertices] = np.arange(len(vertices))

    def edges(self, sources: np.ndarray, targets: np.ndarray | None = None) -> Iterator[Edges]:
        """The edges from some vertices, one antidiagonal of targets at a time.

        Args:
            sources: Vertices, ascending.
            targets: bool (vertices), the wanted targets; None: all.
        """
        # The label of an edge: steps * base + unchanged words.
        base = 1 << (max(self.max_unchanged_words, 1) + 1).bit_length()
        antidiagonal = self.antidiagonal[sources]
        sources = sources[antidiagonal.argsort(kind="stable")]
        # The sources before each antidiagonal are the first `widths` columns.
        widths = np.cumsum(np.bincount(antidiagonal + 1, minlength=len(self.antidiagonals)))
        column = np.full(self.size, -1)
        column[sources] = np.arange(len(sources))
        labels = [np.empty((0, 0), np.int32)] * 2
        for vertices, width in zip(self.antidiagonals, widths):
            label = np.full((len(vertices), width), UNREACHED, np.int32)
            merged = np.zeros(label.shape, np.uint8)
            steps = []
            # In the order of the vertices from which they come.
            for step in reversed(range(len(STEPS))):
                rows = np.flatnonzero(self.times_listed[step, vertices])
                if len(rows):
                    predecessors = self.predecessors[step, vertices[rows]]
                    length = np.full(len(rows), base, np.int32)
                    if step == DIAGONAL:
                        length += self.unchanged[vertices[rows]]
                    steps.append((step, rows, predecessors, length[:, None]))
                    known = column[predecessors] >= 0
                    label[rows[known], column[predecessors[known]]] = length[known]
            for step, rows, predecessors, length in steps:
                before = labels[step == DIAGONAL]
                cells = rows, slice(before.shape[1])
                longer = before[self.place_on_antidiagonal[predecessors]] + length
                better = (longer < (label[cells] & -base)) & ((longer & (base - 1)) <= self.max_unchanged_words)
                label[cells] = np.where(better, longer, label[cells])
                merged[cells] |= better.view(np.uint8) << step
            labels = [label, labels[0]]

            reached = label < UNREACHED
            if targets is not None:
                reached &= targets[vertices][:, None]
            rows, columns = np.nonzero(reached)
            if len(rows):
                yield self._edges(sources[columns], vertices[rows], label[rows, columns], merged[rows, columns], base)

    def _edges(self, source, target, label, merged, base) -> Edges:
        steps = label // base
        times = np.bitwise_count(merged)
        single = merged == 0
        times[single] = self.times_listed[self._step(source[single], target[single]), target[single]]
        return Edges(source, target, steps, steps != label % base, merged, times)

    def _step(self, source, target):
        """The indices in STEPS of single-step edges."""
        return 2 * (self.rows[target] - self.rows[source]) + self.columns[target] - self.columns[source] - 1

    def places_in_list(self, edges: Edges) -> tuple[np.ndarray, np.ndarray]:
        """Where edges are in the official scorer's list: indices of edges, and the place of each. An edge can occur at
        several places.

        Steps come first, ordered by source and target. Merged edits follow, ordered by the vertex before the last
        step, source and target.
        """
        indices, places = [np.flatnonzero(edges.merged == 0)], []
        source = edges.source[indices[0]]
        places.append(source * len(STEPS) + self._step(source, edges.target[indices[0]]))
        for step in range(len(STEPS)):
            merged = np.flatnonzero(edges.merged & (1 << step))
            between = self.predecessors[step, edges.target[merged]]
            indices.append(merged)
            places.append(((1 + between) * self.size + edges.source[merged]) * len(STEPS) + step)
        return np.concatenate(indices), np.concatenate(places)

    def deleted(self, edges: Edges) -> np.ndarray:
        """Indices of the edges that the official scorer deletes: merged edges that change nothing, unless they come
        right after a deleted one in its list."""
        unchanged = np.flatnonzero(~edges.changes & (edges.merged > 0))
        _, order = self.places_in_list(Edges(*(array[unchanged] for array in edges)))
        unchanged, order = unchanged[order.argsort()], np.sort(order)
        if len(order) < 2:
            return unchanged
        # The number of places after one of them, up to and including the next.
        gaps = np.bincount(np.searchsorted(order, self.places_in_list(edges)[1]))
        deleted = []
        for i, edge in enumerate(unchanged):
            if not (i and gaps[i] == 1 and deleted[-1] == unchanged[i - 1]):
                deleted.append(edge)
        return np.array(deleted)

    def insertion_costs(self, place: int, gold_edits: Sequence[GoldEdit]) -> dict[tuple[int, int], Cost]:
        """The cost of each edge that inserts at a place in the source where the annotator inserts too.

        The edges and the annotator's edits are processed from both ends. The side changes after each edge that is not
        one of these edits. After a matching edge, the edges that do not join it are skipped.
        """
        row = self.vertex[place][self.vertex[place] >= 0]
        listed, vertices, columns = self.times_listed[0, row].tolist(), row.tolist(), self.columns[row].tolist()
        edges, spans = [], {}
        for i, source in enumerate(vertices):
            for j in range(i + 1, len(vertices)):
                if not listed[j]:
                    break
                edge = source, vertices[j]
                edges += [edge] * (listed[j] if j == i + 1 else 1)
                spans[edge] = columns[i], columns[j]
        lengths = {len(text.split()) for edit in gold_edits for text in edit.replacements}
        gold, surcharges = set(), dict.fromkeys(edges, 0)

        def find(edge: tuple[int, int], order: Iterable[int]) -> int | None:
            start, end = spans[edge]
            if end - start not in lengths:
                return None
            text = " ".join(self.hypothesis[start:end])
            return next((i for i in order if text in gold_edits[i].replacements), None)

        left, right, from_left = 0, len(edges) - 1, True
        while left <= right:
            i = left if from_left else right
            from_left = i == left
            edge = edges[i]
            found = find(edge, range(len(gold_edits))[:: 1 if from_left else -1])
            direction = 1 if from_left else -1
            i += direction
            if found is None:
                surcharges[edge] += 1
            else:
                gold.add(edge)
                surcharges[edge] = 0
                gold_edits = gold_edits[found + 1 :] if from_left else gold_edits[:found]
                near, far = (0, 1) if from_left else (1, 0)
                while 0 <= i < len(edges) and edges[i][near] != edge[far]:
                    surcharges[edges[i]] += 1
                    i += direction
            if from_left:
                left = i
            else:
                right = i
            from_left = from_left == (found is not None)
        return {
            edge: Cost(None if edge in gold else end - start, surcharges[edge]) for edge, (start, end) in spans.items()
        }

    def gold_costs(self, gold_edits: Sequence[GoldEdit]) -> dict[tuple[int, int], Cost]:
        """The cost of the edges that an annotator's edits affect. Some of these edges may not exist."""
        costs = {}
        for place in {edit.start for edit in gold_edits if edit.start == edit.end}:
            costs |= self.insertion_costs(place, [edit for edit in gold_edits if edit.start == edit.end == place])
        for start, end, replacements in gold_edits:
            for replacement in replacements if start < end else ():
                words = replacement.split(" ") if replacement else []
                for source in self.vertex[start][self.vertex[start] >= 0]:
                    column = self.columns[source]
                    behind = column + len(words)
                    if self.hypothesis[column:behind] == words and self.vertex[end, behind] >= 0:
                        costs[int(source), int(self.vertex[end, behind])] = Cost(None, 0)
        return costs

    def boundaries(self, edges: Iterable[tuple[int, int]]) -> np.ndarray:
        """A set of vertices that a cheapest path can be restricted to, if `edges` contains the gold edges: bool
        (vertices).

        It has the vertices of the given edges and those around unchanged words. If two other edges meet elsewhere, one
        can grow and the other shrink until they meet at such a vertex; neither gains unchanged words.
        """
        boundary = self.unchanged.copy()
        boundary[self.predecessors[DIAGONAL, self.unchanged]] = True
        boundary[[0, -1]] = True
        boundary[np.array(list(edges), int).ravel()] = True
        return boundary

    def all_edges(self) -> Edges | None:
        """All edges without the deleted ones; None if there are more than MAX_EDGES."""
        blocks, count = [], 0
        for block in self.edges(np.arange(self.size)):
            blocks.append(block)
            count += len(block.source)
            if count > MAX_EDGES:
                return None
        edges = Edges(*map(np.concatenate, zip(*blocks)))
        return Edges(*(np.delete(array, self.deleted(edges)) for array in edges))

    def keys(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """A number for each edge."""
        return source * self.size + target

    def cheapest_paths(self, annotations: Mapping[int, Sequence[GoldEdit]]) -> dict[int, list[tuple[int, int]]]:
        """For each annotator, the edges on the cheapest path that change something, in order."""
        if self.size == 1:
            return {annotator: [] for annotator in annotations}
        costs = {annotator: self.gold_costs(gold_edits) for annotator, gold_edits in annotations.items()}
        edges = self.all_edges()
        if edges is None:
            count = MAX_EDGES
            boundary = self.boundaries(edge for cost in costs.values() for edge in cost)
            blocks = self.edges(np.flatnonzero(boundary), boundary)
        else:
            count = int(edges.times_listed.sum())
            blocks = [edges]
        searches = {annotator: PathSearch(self, cost, count) for annotator, cost in costs.items()}
        for block in blocks:
            for search in searches.values():
                search.relax(block)
        return {annotator: search.path() for annotator, search in searches.items()}


class PathSearch:
    """Finds the same path as Bellman-Ford, without repeated passes over all edges.

    Except for rounding, costs are multiples of EPSILON. So `relax` keeps only the edges into a vertex whose paths cost
    less than EPSILON / 2 more than the cheapest. `path` runs Bellman-Ford on the kept edges that lead to the last
    vertex.

    Args:
        lattice: The lattice.
        costs: The result of `Lattice.gold_costs`.
        count: The number of edges.
    """

    def __init__(self, lattice: Lattice, costs: Mapping[tuple[int, int], Cost], count: int):
        self.lattice = lattice
        ordered = sorted(costs)
        self.keys = lattice.keys(*np.array(ordered, int).reshape(-1, 2).T)
        self.gold_costs = np.array([-count if costs[e].steps is None else costs[e].steps for e in ordered], float)
        self.gold_surcharges = np.array([costs[e].surcharges for e in ordered], int)
        self.cost = np.full(lattice.size, np.inf)
        self.cost[0] = 0
        self.cheapest = []

    def edge_costs(self, edges: Edges) -> np.ndarray:
        costs, surcharges = edges.steps.astype(float), np.where(edges.changes, edges.times_listed, 0)
        if len(self.keys):
            keys = self.lattice.keys(edges.source, edges.target)
            i = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
            gold = self.keys[i] == keys
            costs[gold], surcharges[gold] = self.gold_costs[i[gold]], self.gold_surcharges[i[gold]]
        for times in range(surcharges.max()):  # a product would round differently
            costs[surcharges > times] += EPSILON
        return costs

    def relax(self, edges: Edges) -> None:
        """Processes all edges into the vertices of one or more antidiagonals. Antidiagonals must come in order."""
        costs, path_costs = self.edge_costs(edges), np.empty(len(edges.source))
        first = np.flatnonzero(np.append(True, np.diff(edges.target) != 0))
        targets = edges.target[first]
        antidiagonals = np.flatnonzero(np.append(True, np.diff(self.lattice.antidiagonal[targets]) != 0))
        for i, j in itertools.pairwise([*antidiagonals, len(targets)]):
            begin = first[i]
            end = first[j] if j < len(first) else len(costs)
            path_costs[begin:end] = self.cost[edges.source[begin:end]] + costs[begin:end]
            self.cost[targets[i:j]] = np.minimum.reduceat(path_costs[begin:end], first[i:j] - begin)
        cheapest = path_costs < self.cost[edges.target] + EPSILON / 2
        self.cheapest.append([array[cheapest] for array in (*edges, costs)])

    def path(self) -> list[tuple[int, int]]:
        """The edges on the path to the last vertex that change something."""
        *arrays, costs = map(np.concatenate, zip(*self.cheapest))
        edges = Edges(*arrays)
        pairs = list(zip(edges.source.tolist(), edges.target.tolist()))
        lead_to_end, kept = {self.lattice.size - 1}, []
        for i in reversed(range(len(pairs))):
            source, target = pairs[i]
            if target in lead_to_end:
                lead_to_end.add(source)
                kept.append(i)
        indices, places = self.lattice.places_in_list(Edges(*(array[kept] for array in edges)))
        listed = np.array(kept)[indices[places.argsort()]].tolist()
        path = bellman_ford([(*pairs[i], float(costs[i])) for i in listed], self.lattice.size - 1)
        changing = {pairs[i] for i in kept if edges.changes[i]}
        return [edge for edge in path if edge in changing]


def bellman_ford(edges: Sequence[tuple[int, int, float]], end: int) -> list[tuple[int, int]]:
    """The cheapest path from vertex 0 to `end` over edges (source, target, cost); the first one found in their order
    wins."""
    costs, sources = {0: 0.0}, {}
    relaxed = True
    while relaxed:
        relaxed = False
        for source, target, cost in edges:
            if source in costs and costs[source] + cost < costs.get(target, float("inf")):
                costs[target], sources[target] = costs[source] + cost, source
                relaxed = True
    path = []
    while end in sources:
        path.append((sources[end], end))
        end = sources[end]
    return path[::-1]


def count_matches(edits: Iterable[tuple[int, int, str]], gold_edits: Sequence[GoldEdit]) -> int:
    """The number of matches with an annotator's edits, in order. No match comes before an earlier match; duplicates
    all count."""
    count = first = 0
    for start, end, text in edits:
        found = [
            i
            for i, gold in enumerate(gold_edits)
            if i >= first and (gold.start, gold.end) == (start, end) and text in gold.replacements
        ]
        if found:
            count += len(found)
            first = found[-1] + 1
    return count


def count_edits(
    source: Sequence[str],
    hypothesis: Sequence[str],
    annotations: Mapping[int, Sequence[GoldEdit]],
    max_unchanged_words: int = 2,
    ignore_whitespace_casing: bool = False,
) -> dict[int, tuple[int, int, int]]:
    """For each annotator, the numbers of correct edits, of the hypothesis' edits, and of the annotator's edits.

    Args:
        source: Tokens.
        hypothesis: Tokens.
        annotations: The edits of each annotator, in file order. The order matters: no edit matches an annotator's edit
            before an already matched one.
        max_unchanged_words: Maximum number of unchanged words in an edit of the hypothesis.
        ignore_whitespace_casing: Whether to ignore edits that change only white space or case.
    """
    lattice = Lattice(list(source), list(hypothesis), max_unchanged_words)
    counts = {}
    for annotator, path in lattice.cheapest_paths(annotations).items():
        edits = []
        for start, end in path:
            before = source[int(lattice.rows[start]) : int(lattice.rows[end])]
            behind = hypothesis[int(lattice.columns[start]) : int(lattice.columns[end])]
            if not (ignore_whitespace_casing and "".join(before).lower() == "".join(behind).lower()):
                edits.append((int(lattice.rows[start]), int(lattice.rows[end]), " ".join(behind)))
        gold_edits = annotations[annotator]
        counts[annotator] = count_matches(edits, gold_edits), len(edits), len(gold_edits)
    return counts
