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

Of a lattice with more than `MAX_VERTICES`, where the official scorer takes minutes, one minimal edit script is kept.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np


Edge = tuple[int, int]  # numbers of two vertices

# How many source and hypothesis tokens a step takes, in the order of a vertex's successors.
STEPS = ((0, 1), (1, 0), (1, 1))
EPSILON = 0.001
MAX_VERTICES = 1000


@dataclass(frozen=True, slots=True)
class Edit:
    """An annotator's edit: the tokens from `start` to `end` (exclusive) become `correction`.

    `correction` is the text in the M2 file: tokens, or "" to delete. Alternatives are separated by "||"; the first is
    the annotator's choice.
    """

    start: int
    end: int
    correction: str
    type: str

    @property
    def alternatives(self) -> list[str]:
        return self.correction.split("||")


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


def minimal_steps(mismatch: np.ndarray) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """The targets of the steps from each vertex of the lattice, in order; a step in both distances is there twice."""
    steps = defaultdict(list)
    distances = []
    for substitution in (1, 2):
        before = levenshtein(mismatch, substitution)
        behind = levenshtein(mismatch[::-1, ::-1], substitution)[::-1, ::-1]
        distances.append((before, behind, substitution * mismatch))
    end = mismatch.shape
    for down, right in STEPS:
        targets = np.s_[down:, right:]
        for before, behind, of_substitution in distances:
            start = before[: end[0] + 1 - down, : end[1] + 1 - right]
            cost = of_substitution if down and right else 1
            for i, j in np.argwhere(start + cost + behind[targets] == before[-1, -1]).tolist():
                steps[i, j].append((i + down, j + right))
    if len(steps) > MAX_VERTICES:
        vertex, script = (0, 0), {}
        while vertex != end:
            script[vertex] = [steps[vertex][-1]]
            (vertex,) = script[vertex]
        return script
    return steps


class Lattice:
    """The lattice of a source and a hypothesis. Vertices are numbered in the order of their (row, column).

    Args:
        source: Tokens; the rows are the positions between them.
        hypothesis: Tokens; the columns are the positions between them.
        max_unchanged_words: Maximum number of unchanged words in a merged edit.

    Attributes:
        places: The row and the column of each vertex.
        edges: All edges as the official scorer lists them.
        lengths: For each vertex, the numbers of steps and unchanged words of the edges to it, by their sources.
        plain_costs: The costs of edges without an annotator.
        spans: The edges by the rows of their vertices.
    """

    def __init__(self, source: Sequence[str], hypothesis: Sequence[str], max_unchanged_words: int = 2):
        self.hypothesis = hypothesis
        mismatch = np.array([[word != other for other in hypothesis] for word in source], bool)
        steps = minimal_steps(mismatch.reshape(len(source), len(hypothesis)))
        self.places = sorted({*steps, (len(source), len(hypothesis))})
        number = {place: vertex for vertex, place in enumerate(self.places)}
        self.lengths: list[dict[int, tuple[int, int]]] = [{} for _ in self.places]
        self.edges: list[Edge] = []
        for vertex, (i, j) in enumerate(self.places):
            for place in steps.get((i, j), []):
                unchanged = place == (i + 1, j + 1) and source[i] == hypothesis[j]
                self.edges.append((vertex, number[place]))
                self.lengths[number[place]][vertex] = 1, int(unchanged)
        following = defaultdict(list)
        for vertex, target in dict.fromkeys(self.edges):
            following[vertex].append((target, self.lengths[target][vertex][1]))
        for between, targets in sorted(following.items()):
            for vertex, (length, words) in sorted(self.lengths[between].items()):
                for target, unchanged in targets:
                    known = self.lengths[target].get(vertex)
                    if words + unchanged <= max_unchanged_words and (known is None or length + 1 < known[0]):
                        self.lengths[target][vertex] = length + 1, words + unchanged
                        self.edges.append((vertex, target))
        for edge in self.edges:
            if not self.changes(edge) and self.lengths[edge[1]][edge[0]][0] > 1:
                self.edges.remove(edge)
        self.plain_costs: dict[Edge, float] = {}
        self.spans = defaultdict(list)
        for edge in self.edges:
            cost = self.plain_costs.get(edge, self.lengths[edge[1]][edge[0]][0])
            self.plain_costs[edge] = cost + EPSILON * self.changes(edge)
            self.spans[self.places[edge[0]][0], self.places[edge[1]][0]].append(edge)

    def changes(self, edge: Edge) -> bool:
        steps, unchanged = self.lengths[edge[1]][edge[0]]
        return steps != unchanged

    def text(self, edge: Edge) -> str:
        """What the hypothesis has at an edge."""
        return " ".join(self.hypothesis[self.places[edge[0]][1] : self.places[edge[1]][1]])

    def costs(self, gold_edits: Sequence[Edit]) -> dict[Edge, float]:
        """The cost of each edge for an annotator."""
        costs, gold = dict(self.plain_costs), defaultdict(list)
        for edit in gold_edits:
            gold[edit.start, edit.end].append(edit.alternatives)
        for (start, end), alternatives in gold.items():
            edges = self.spans[start, end]
            if start == end:
                costs |= self.insertion_costs(edges, alternatives)
            else:
                texts = set(chain.from_iterable(alternatives))
                costs |= {edge: -len(self.edges) for edge in edges if self.text(edge) in texts}
        return costs

    def insertion_costs(self, edges: Sequence[Edge], gold: Sequence[Sequence[str]]) -> dict[Edge, float]:
        """The costs of the edges that insert at a place in the source where the annotator inserts `gold`, each with
        its alternatives.

        The edges and the annotator's edits are processed from both ends. The side changes after each edge that is not
        one of these edits. After a matching edge, the edges that do not join it are skipped.
        """
        costs: dict[Edge, float] = {edge: self.lengths[edge[1]][edge[0]][0] for edge in edges}
        waiting, from_left = deque(sorted(edges)), True
        while waiting:
            from_left = from_left or len(waiting) == 1
            edge = waiting.popleft() if from_left else waiting.pop()
            text = self.text(edge)
            matches = [i for i, texts in enumerate(gold) if text in texts]
            if not matches:
                costs[edge] += EPSILON
                from_left = not from_left
                continue
            costs[edge] = -len(self.edges)
            gold = gold[matches[0] + 1 :] if from_left else gold[: matches[-1]]
            while waiting and (waiting[0][0] != edge[1] if from_left else waiting[-1][1] != edge[0]):
                costs[waiting.popleft() if from_left else waiting.pop()] += EPSILON
        return costs

    def cheapest_path(self, gold_edits: Sequence[Edit]) -> list[Edge]:
        """The edges on the cheapest path for an annotator that change something, in order."""
        costs = self.costs(gold_edits)
        edges = [(*edge, costs[edge]) for edge in self.edges]
        of_paths, sources = [0.0] + [float("inf")] * (len(self.places) - 1), {}
        relaxed = True
        while relaxed:
            relaxed = False
            for source, target, cost in edges:
                if of_paths[source] + cost < of_paths[target]:
                    of_paths[target], sources[target] = of_paths[source] + cost, source
                    relaxed = True
        path, vertex = [], len(self.places) - 1
        while vertex in sources:
            path.append((sources[vertex], vertex))
            vertex = sources[vertex]
        return [edge for edge in reversed(path) if self.changes(edge)]


def count_matches(edits: Iterable[tuple[int, int, str]], gold_edits: Sequence[Edit]) -> int:
    """The number of matches with an annotator's edits, in order. No match comes before an earlier match; duplicates
    all count."""
    count = first = 0
    for start, end, text in edits:
        found = [
            i
            for i, gold in enumerate(gold_edits)
            if i >= first and (gold.start, gold.end) == (start, end) and text in gold.alternatives
        ]
        if found:
            count += len(found)
            first = found[-1] + 1
    return count


def count_edits(
    source: Sequence[str],
    hypothesis: Sequence[str],
    annotations: Mapping[int, Sequence[Edit]],
    max_unchanged_words: int = 2,
) -> dict[int, tuple[int, int, int]]:
    """For each annotator, the numbers of correct edits, of the hypothesis' edits, and of the annotator's edits.

    Args:
        source: Tokens.
        hypothesis: Tokens.
        annotations: The edits of each annotator, in file order. The order matters: no edit matches an annotator's edit
            before an already matched one.
        max_unchanged_words: Maximum number of unchanged words in an edit of the hypothesis.
    """
    lattice = Lattice(list(source), list(hypothesis), max_unchanged_words)
    counts = {}
    for annotator, gold_edits in annotations.items():
        edits = []
        for edge in lattice.cheapest_path(gold_edits):
            (start, _), (end, _) = (lattice.places[vertex] for vertex in edge)
            edits.append((start, end, lattice.text(edge)))
        counts[annotator] = count_matches(edits, gold_edits), len(edits), len(gold_edits)
    return counts
