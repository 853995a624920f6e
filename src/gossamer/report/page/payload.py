"""What a page is told: all that was gathered, as one tree of strings, numbers and lists, checked and cut to size.

The page puts all of it on the screen as text and lines, so nothing here has to be trusted or escaped.
"""

import datetime
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from gossamer._version import __version__
from gossamer.records.record import COLUMNS, Record
from gossamer.report.gather import Gathered, Group, number
from gossamer.report.graph import _layout
from gossamer.report.page.curves import ACROSS, MEASURED, curve, plain, points_for
from gossamer.report.summary import summarize

_LONG, _SHORT, _SPEC = 2000, 200, 100_000
_MOST_CLIENTS, _MOST_EDGES, _MOST_LABELS, _MOST_SENTENCES = 200, 4000, 60, 200
_MOST_METHODS, _MOST_CLAIMS, _MOST_FITS = 400, 2000, 200
_FINAL = ("round", "bits", "bits_nominal", "grad_norm", "loss", "accuracy", "worst_accuracy", "consensus", "seconds")
_BEST = {"grad_norm": min, "loss": min, "accuracy": max, "worst_accuracy": max}
_VERSIONS = ("gossamer", "torch", "python", "device")

Tree = dict[str, Any]


def payload(found: Gathered) -> Tree:
    """The data of a page; sentences on what of it cannot be shown are added to `found.left_out`."""
    _cut(found)
    columns = sum(_width(group) for group in found.groups)
    points, places = points_for(columns), Places()
    names = _names(found)
    groups = [
        _group(group, name, points, places, found.left_out) for group, name in zip(found.groups, names, strict=True)
    ]
    hidden = len(found.left_out) - _MOST_SENTENCES
    more = [f"And {hidden:,} more."] if hidden > 0 else []
    return {
        "title": _title(found),
        "summary": _summary_lines(found),
        "claims": _claims(found),
        "rates": [
            {key: text(value, _LONG) if isinstance(value, str) else value for key, value in fit.items()}
            | {"points": _few([[plain(v) for v in point] for point in fit["points"]])}
            for fit in found.rates
        ],
        "groups": groups,
        "across": ACROSS,
        "measured": {name: {"name": said, "about": COLUMNS[name]} for name, said in MEASURED.items()},
        "leftOut": [text(sentence, _LONG) for sentence in found.left_out[:_MOST_SENTENCES]] + more,
    }


def text(value: object, most: int = _SHORT) -> str:
    """A value as text of bounded length."""
    if isinstance(value, str):
        said = value
    elif isinstance(value, float):
        said = f"{value:.6g}"
    else:
        try:
            said = json.dumps(value, ensure_ascii=False, default=str)
        except (ValueError, RecursionError):  # a number of more digits than Python prints
            said = "?"
    return said if len(said) <= most else said[: most - 1] + "…"


def _cut(found: Gathered) -> None:
    """Leave out what is beyond all measure, and say so."""
    left = _MOST_METHODS
    for group in found.groups:
        labels = list(dict.fromkeys(record.label for record in group.records))
        if len(labels) > left:
            found.left_out.append(
                f"Of '{group.folder}', {len(labels) - left:,} methods are left out: a page has no room."
            )
            kept = set(labels[:left])
            group.records = [record for record in group.records if record.label in kept]
        left -= min(left, len(labels))
    found.groups = [group for group in found.groups if group.records]
    lists: list[tuple[str, list[Any], int]] = [("fits", found.rates, _MOST_FITS)]
    if found.claims is not None:
        lists.append(("claims", found.claims["claims"], _MOST_CLAIMS))
    for what, things, most in lists:
        if len(things) > most:
            found.left_out.append(f"The page shows {most:,} of {len(things):,} {what}.")
            del things[most:]


def _title(found: Gathered) -> str:
    if len(found.groups) == 1 and found.claims is None:
        return text(found.groups[0].name)
    if found.claims and found.claims.get("title"):
        return text(found.claims["title"])
    return text(found.path.resolve().name or "Report")


def _names(found: Gathered) -> list[str]:
    """Names of the experiments; the folder is added to those that would be the same."""
    names = [group.name for group in found.groups]
    return [
        text(name if names.count(name) == 1 else f"{name} ({group.folder.name})")
        for name, group in zip(names, found.groups, strict=True)
    ]


def _width(group: Group) -> int:
    labels: dict[str, set[str]] = {}
    seeds: dict[str, int] = {}
    for record in group.records:
        labels.setdefault(record.label, set()).update(record.rows[-1])
        seeds[record.label] = seeds.get(record.label, 0) + 1
    return sum(
        len(ACROSS) + (3 if seeds[label] > 1 else 1) * len(names & MEASURED.keys()) for label, names in labels.items()
    )


def _summary_lines(found: Gathered) -> list[str]:
    """What, when and with what: each a short sentence."""
    records = [record for group in found.groups for record in group.records]
    lines = []
    if records:
        experiments, labels = len(found.groups), sum(len({r.label for r in g.records}) for g in found.groups)
        lines.append(
            f"{experiments} experiment{'s' * (experiments > 1)}, {labels} method{'s' * (labels > 1)}, "
            f"{len(records)} run{'s' * (len(records) > 1)}"
        )
    claims = found.claims or {}
    started = sorted(
        {text(r.header["started"], 20)[:10] for r in records if isinstance(r.header.get("started"), str)} - {""}
    )
    if claims.get("date"):
        lines.append(text(claims["date"], 40))
    elif started:
        lines.append(started[0] if len(started) == 1 else f"{started[0]} to {started[-1]}")
    versions = claims.get("versions") or {}
    told = [f"{text(key, 40)} {text(value, 40)}" for key, value in list(versions.items())[:12]]
    lines.append(", ".join(told or _versions(records)))
    now = datetime.datetime.now(datetime.UTC)
    lines.append(f"page made {now:%Y-%m-%d %H:%M} UTC by gossamer {__version__}")
    return [line for line in lines if line]


def _versions(records: Sequence[Record]) -> list[str]:
    """The versions that the records name, most often one of each."""
    told = []
    for name in _VERSIONS:
        values = dict.fromkeys(text(r.header[name], 40) for r in records if isinstance(r.header.get(name), str))
        if values:
            several = list(values)[:3] + (["…"] if len(values) > 3 else [])
            told.append(f"{'Python' if name == 'python' else name} {', '.join(several)}")
    return told


def _claims(found: Gathered) -> Tree | None:
    if found.claims is None:
        return None
    claims = [
        {key: text(value, _LONG) if isinstance(value, str) else value for key, value in claim.items()}
        | {"value": plain(claim["value"]), "values": [plain(value) for value in claim["values"][:100]]}
        for claim in found.claims["claims"]
    ]
    command = text(found.claims["command"], _LONG)
    return {"claims": claims, "command": command, "shortened": found.claims["shortened"]}


def _group(group: Group, name: str, points: int, places: "Places", left_out: list[str]) -> Tree:
    labels = list(dict.fromkeys(record.label for record in group.records))
    by_label = {label: [record for record in group.records if record.label == label] for label in labels}
    headers = [record.header for record in group.records]
    return {
        "name": name,
        "folder": text(str(group.folder), _LONG),
        "methods": [_method(label, records, points) for label, records in by_label.items()],
        "final": _final(group.records),
        "network": places.network(headers, group.folder, left_out),
        "shares": _shares(headers, group.folder, left_out),
        "settings": [_settings(label, records) for label, records in by_label.items()],
        "about": _about(headers),
        "spec": text(group.spec, _SPEC),
    }


def _method(label: str, records: Sequence[Record], points: int) -> Tree:
    lost = [text(record.diverged, _LONG) for record in records if record.diverged]
    return {"label": text(label), "seeds": len(records), "diverged": lost, **curve(records, points)}


def _final(records: Sequence[Record]) -> Tree:
    """The table of final values: names of columns, one row a method, and which is best."""
    rows = summarize(records)
    names = [name for name in _FINAL if any(row[name] is not None for row in rows)]
    best = {
        name: pick((row[name] for row in rows if row[name] is not None), default=None) for name, pick in _BEST.items()
    }
    table: list[Tree] = []
    for row in rows:
        cells: list[Tree] = []
        for name in names:
            known = [value for value in row.get(f"{name}_by_seed", {}).values() if value is not None]
            spread = [plain(min(known)), plain(max(known))] if len(known) > 1 and row[name] is not None else None
            is_best = len(rows) > 1 and row[name] is not None and row[name] == best.get(name)
            cells.append({"value": plain(row[name]), "range": spread, "best": is_best})
        lost = [text(sentence, _LONG) for sentence in row["diverged"].values()]
        table.append({"label": text(row["method"]), "seeds": len(row["seeds"]), "diverged": lost, "cells": cells})
    return {"names": names, "rows": table}


def _settings(label: str, records: Sequence[Record]) -> Tree:
    """What one method was run with; keys whose values are no tables."""
    header = records[0].header
    method = header.get("method")
    told = {key: value for key, value in method.items() if key != "name"} if isinstance(method, dict) else {}
    told |= {key: header[key] for key in ("alpha", "rounds", "batch_size", "codec") if header.get(key) is not None}
    told["seeds"] = ", ".join(text(record.seed, 12) for record in records[:20])
    return {"label": text(label), "values": {text(k, 40): text(v) for k, v in list(told.items())[:20] if v is not None}}


def _about(headers: Sequence[Tree]) -> list[list[str]]:
    """What all runs of an experiment share, as pairs: problem, mixing, device, versions, command."""
    pairs: list[list[str]] = []
    for key, title in (("problem", "Problem"), ("mixing", "Graph and weights")):
        table: Tree = next((header[key] for header in headers if isinstance(header.get(key), dict)), {})
        told = [f"{name} {text(value, 80)}" for name, value in list(table.items())[:20] if value is not None]
        if told:
            pairs.append([title, text(", ".join(told), _LONG)])
    versions = ", ".join(_versions([Record(header) for header in headers]))
    if versions:
        pairs.append(["Versions", versions])
    for key, title in (("started", "Started"), ("command", "Command")):
        told = list(dict.fromkeys(text(h[key], _LONG) for h in headers if isinstance(h.get(key), str) and h[key]))
        if key == "started" and len(told) > 1:
            told = [f"{min(told)} to {max(told)}"]
        if told:
            pairs.append([title, "\n".join(told[:4])])
    return pairs


class Places:
    """Networks as the page draws them; the places of the clients are found once for each graph."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], list[list[float]]] = {}

    def network(self, headers: Sequence[Tree], folder: Path, left_out: list[str]) -> Tree | None:
        """The first header's graph with its weights: clients' places, edges; or a sentence if it is too large."""
        told = next((header["network"] for header in headers if header.get("network") is not None), None)
        if told is None:
            return None
        checked = _checked_network(told)
        if checked is None:
            left_out.append(f"The graph in the records of '{folder}' cannot be drawn: it is damaged.")
            return None
        keep, edges = checked
        if len(keep) > _MOST_CLIENTS or len(edges) > _MOST_EDGES:
            return {
                "sentence": f"The graph has {len(keep):,} clients and {len(edges):,} edges; at most "
                f"{_MOST_CLIENTS:,} and {_MOST_EDGES:,} are drawn."
            }
        return {
            "places": self._places(len(keep), [(i, j) for i, j, _ in edges]),
            "edges": [[i, j, plain(w, 4)] for i, j, w in edges],
            "self": [plain(w, 4) for w in keep],
        }

    def _places(self, clients: int, edges: list[tuple[int, int]]) -> list[list[float]]:
        key = (clients, *edges)
        if key not in self._known:
            graph: nx.Graph[Any] = nx.empty_graph(clients)
            graph.add_edges_from(edges)
            ring = nx.is_connected(graph) and all(degree == 2 for _, degree in graph.degree())
            if ring:  # in its own order, beginning at the top
                order = [0, *(j for _, j in nx.dfs_edges(graph, 0))]
                turn = {client: 2 * math.pi * place / clients for place, client in enumerate(order)}
                points = np.array([[math.sin(turn[i]), -math.cos(turn[i])] for i in range(clients)])
            elif clients > 1 and nx.is_connected(graph):
                points = _layout(graph)
            else:
                points = np.array(list(nx.circular_layout(graph).values()))
            low, high = points.min(axis=0), points.max(axis=0)
            middle, reach = (low + high) / 2, max(float((high - low).max()) / 2, 1e-9)
            self._known[key] = [[round(float(v), 3) for v in point] for point in (points - middle) / reach]
        return self._known[key]


def _checked_network(told: object) -> tuple[list[float], list[tuple[int, int, float]]] | None:
    if not isinstance(told, dict) or not isinstance(told.get("edges"), list) or not isinstance(told.get("self"), list):
        return None
    keep, edges = told["self"], told["edges"]
    if not keep or any(number(weight) is None for weight in keep):
        return None
    for edge in edges:
        if not isinstance(edge, list) or len(edge) != 3 or number(edge[2]) is None:
            return None
        if any(type(i) is not int or not 0 <= i < len(keep) for i in edge[:2]) or edge[0] == edge[1]:
            return None
    return keep, [(i, j, w) for i, j, w in edges]


def _shares(headers: Sequence[Tree], folder: Path, left_out: list[str]) -> Tree | None:
    """How many rows of each label every client holds."""
    told = next((header["shares"] for header in headers if header.get("shares") is not None), None)
    if told is None:
        return None
    checked = _checked_shares(told)
    if checked is None:
        left_out.append(f"The shares of labels in the records of '{folder}' cannot be drawn: they are damaged.")
        return None
    labels, counts = checked
    if len(counts) > _MOST_CLIENTS or len(labels) > _MOST_LABELS:
        return {
            "sentence": f"The data are shared among {len(counts):,} clients and have {len(labels):,} labels; at most "
            f"{_MOST_CLIENTS:,} and {_MOST_LABELS:,} are drawn."
        }
    return {"labels": [text(label, 40) for label in labels], "counts": counts}


def _checked_shares(told: object) -> tuple[list[Any], list[list[float]]] | None:
    labels, counts = (told.get("labels"), told.get("counts")) if isinstance(told, dict) else (None, None)
    if not isinstance(labels, list) or not isinstance(counts, list) or not labels or not counts:
        return None
    for row in counts:
        if not isinstance(row, list) or len(row) != len(labels):
            return None
        amounts = [number(value) for value in row]
        if any(amount is None or amount < 0 for amount in amounts):
            return None
    return labels, counts


def _few(points: list[Any], most: int = 400) -> list[Any]:
    return points if len(points) <= most else [points[round(i)] for i in np.linspace(0, len(points) - 1, most)]
