"""The data of a page: all that was gathered, as one tree of strings, numbers and lists, cut to size.

The page shows all of it as text and lines, so nothing here has to be trusted or escaped.
"""

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import networkx as nx
import numpy as np

from gossamer._version import __version__
from gossamer.records.record import Record, by_label
from gossamer.records.schema import COLUMNS, Header
from gossamer.report.conclusions import Claims
from gossamer.report.gather import Gathered, Group
from gossamer.report.graph import _layout
from gossamer.report.page.curves import ACROSS, MEASURED, curve, plain, points_for
from gossamer.report.summary import best_of, summarize

_LONG, _SHORT, _SPEC = 2000, 200, 100_000
_MOST_CLIENTS, _MOST_EDGES, _MOST_LABELS, _MOST_SENTENCES = 200, 4000, 60, 200
_MOST_METHODS, _MOST_CLAIMS, _MOST_FITS = 400, 2000, 200
_FINAL = ("round", "bits", "bits_nominal", "grad_norm", "loss", "accuracy", "worst_accuracy", "consensus", "seconds")
_VERSIONS = ("gossamer", "torch", "python", "device")

Tree = dict[str, Any]


def payload(found: Gathered) -> Tree:
    """The data of a page; sentences on what of it cannot be shown are added to `found.left_out`."""
    _cut(found)
    points = points_for(sum(_width(group) for group in found.groups))
    groups = [_group(group, name, points) for group, name in zip(found.groups, _names(found), strict=True)]
    hidden = len(found.left_out) - _MOST_SENTENCES
    more = [f"And {hidden:,} more."] if hidden > 0 else []
    return {
        "title": _title(found),
        "summary": _summary_lines(found),
        "claims": _claims(found.claims),
        "rates": [
            _short_texts(vars(fit)) | {"points": _few([[plain(v) for v in point] for point in fit.points])}
            for fit in found.rates
        ],
        "groups": groups,
        "across": ACROSS,
        "measured": {name: {"name": title, "about": COLUMNS[name]} for name, title in MEASURED.items()}
        | {name: {"name": text(name), "about": text(about)} for name, about in _extra(found).items()},
        "leftOut": [text(sentence, _LONG) for sentence in found.left_out[:_MOST_SENTENCES]] + more,
    }


def _extra(found: Gathered) -> dict[str, str]:
    """The columns that are not in every record, and what they hold."""
    records = [record for group in found.groups for record in group.records]
    return {name: record.header.columns.get(name, "") for record in records for name in record.rows[-1].extra}


def _short_texts(row: Mapping[str, object]) -> Tree:
    return {key: text(value, _LONG) if isinstance(value, str) else value for key, value in row.items()}


def text(value: object, most: int = _SHORT) -> str:
    """A value as text of bounded length."""
    if isinstance(value, str):
        shown = value
    elif isinstance(value, float):
        shown = f"{value:.6g}"
    else:
        try:
            shown = json.dumps(value, ensure_ascii=False, default=str)
        except (ValueError, RecursionError):  # a number of more digits than Python prints
            shown = "?"
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def _cut(found: Gathered) -> None:
    """Leave out what a page has no room for, and say so."""
    left = _MOST_METHODS
    for group in found.groups:
        labels = list(by_label(group.records))
        more = len(labels) - left
        if more > 0:
            found.left_out.append(f"Of '{group.folder}', {more:,} methods are left out: at most {_MOST_METHODS} fit.")
            group.records = [record for record in group.records if record.label in labels[:left]]
        left -= min(left, len(labels))
    found.groups = [group for group in found.groups if group.records]
    claims = () if found.claims is None else found.claims.claims
    for what, many, most in (("fits", len(found.rates), _MOST_FITS), ("claims", len(claims), _MOST_CLAIMS)):
        if many > most:
            found.left_out.append(f"The page shows {most:,} of {many:,} {what}.")
    found.rates = found.rates[:_MOST_FITS]
    if found.claims is not None:
        found.claims = replace(found.claims, claims=claims[:_MOST_CLAIMS])


def _title(found: Gathered) -> str:
    if len(found.groups) == 1 and found.claims is None:
        return text(found.groups[0].name)
    if found.claims is not None and found.claims.title:
        return text(found.claims.title)
    return text(found.path.resolve().name or "Report")


def _names(found: Gathered) -> list[str]:
    """Names of the experiments; the folder is added to those that would be the same."""
    names = [group.name for group in found.groups]
    return [
        text(name if names.count(name) == 1 else f"{name} ({group.folder.name})")
        for name, group in zip(names, found.groups, strict=True)
    ]


def _width(group: Group) -> int:
    """How many columns of numbers the curves of a group have."""
    width = 0
    for records in by_label(group.records).values():
        names = {name for record in records for name in record.rows[-1].columns()}
        width += len(ACROSS) + (3 if len(records) > 1 else 1) * len(names - (COLUMNS.keys() - MEASURED.keys()))
    return width


def _summary_lines(found: Gathered) -> list[str]:
    """What, when and with what: each a short sentence."""
    records = [record for group in found.groups for record in group.records]
    labels = sum(len(by_label(group.records)) for group in found.groups)
    many = {"experiment": len(found.groups), "method": labels, "run": len(records)}
    lines = [", ".join(f"{n} {what}{'s' * (n > 1)}" for what, n in many.items()) if records else ""]
    claims = found.claims or Claims()
    started = sorted({record.header.started[:10] for record in records if record.header.started})
    if claims.date:
        lines.append(text(claims.date, 40))
    elif started:
        lines.append(started[0] if len(started) == 1 else f"{started[0]} to {started[-1]}")
    versions = [f"{text(key, 40)} {text(value, 40)}" for key, value in list(claims.versions.items())[:12]]
    lines.append(", ".join(versions or _versions([record.header for record in records])))
    now = datetime.datetime.now(datetime.UTC)
    lines.append(f"page made {now:%Y-%m-%d %H:%M} UTC by gossamer {__version__}")
    return [line for line in lines if line]


def _versions(headers: Sequence[Header]) -> list[str]:
    """The versions that the records name, most often one of each."""
    versions = []
    for name in _VERSIONS:
        values = dict.fromkeys(text(value, 40) for header in headers if (value := getattr(header, name)))
        if values:
            several = list(values)[:3] + (["…"] if len(values) > 3 else [])
            versions.append(f"{'Python' if name == 'python' else name} {', '.join(several)}")
    return versions


def _claims(claims: Claims | None) -> Tree | None:
    if claims is None:
        return None
    rows = [
        _short_texts(vars(claim))
        | {"value": plain(claim.value), "values": [plain(value) for value in claim.values[:100]]}
        for claim in claims.claims
    ]
    return {"claims": rows, "command": text(claims.command, _LONG), "shortened": claims.shortened}


def _group(group: Group, name: str, points: int) -> Tree:
    methods = by_label(group.records).items()
    headers = [record.header for record in group.records]
    return {
        "name": name,
        "folder": text(str(group.folder), _LONG),
        "methods": [_method(label, records, points) for label, records in methods],
        "final": _final(group.records),
        "network": _network(headers),
        "shares": _shares(headers),
        "settings": [_settings(label, records) for label, records in methods],
        "about": _about(headers),
        "spec": text(group.spec, _SPEC),
    }


def _method(label: str, records: Sequence[Record], points: int) -> Tree:
    lost = [text(record.diverged, _LONG) for record in records if record.diverged]
    return {"label": text(label), "seeds": len(records), "diverged": lost, **curve(records, points)}


def _final(records: Sequence[Record]) -> Tree:
    """The table of final values: names of columns, one row per method, and which is best."""
    rows = summarize(records)
    names = [name for name in _FINAL if any(row.numbers[name] is not None for row in rows)]
    best = best_of(rows)
    table: list[Tree] = []
    for row in rows:
        cells: list[Tree] = []
        for name in names:
            value = row.numbers[name]
            known = [one for one in row.by_seed.get(name, {}).values() if one is not None]
            spread = [plain(min(known)), plain(max(known))] if len(known) > 1 and value is not None else None
            is_best = len(rows) > 1 and value is not None and value == best.get(name)
            cells.append({"value": plain(value), "range": spread, "best": is_best})
        lost = [text(sentence, _LONG) for sentence in row.diverged.values()]
        table.append({"label": text(row.method), "seeds": len(row.seeds), "diverged": lost, "cells": cells})
    return {"names": names, "rows": table}


def _settings(label: str, records: Sequence[Record]) -> Tree:
    """What one method was run with."""
    header = records[0].header
    values = {key: value for key, value in header.method.items() if key != "name"}
    values |= {key: getattr(header, key) for key in ("alpha", "rounds", "batch_size", "codec")}
    values["seeds"] = ", ".join(text(record.seed, 12) for record in records[:20])
    known = [(key, value) for key, value in values.items() if value is not None]
    return {"label": text(label), "values": {text(key, 40): text(value) for key, value in known[:20]}}


def _about(headers: Sequence[Header]) -> list[list[str]]:
    """What all runs of an experiment share, as pairs: problem, mixing, device, versions, command."""
    problem: Mapping[str, object] = next((header.problem for header in headers if header.problem), {})
    mixing = next((vars(header.mixing) for header in headers if header.mixing is not None), {})
    started = sorted({header.started for header in headers if header.started})
    commands = list(dict.fromkeys(text(header.command, _LONG) for header in headers if header.command))
    pairs = {
        "Problem": _listed(problem),
        "Graph and weights": _listed(mixing),
        "Versions": ", ".join(_versions(headers)),
        "Started": text(" to ".join(dict.fromkeys([*started[:1], *started[-1:]]))),
        "Command": "\n".join(commands[:4]),
    }
    return [[title, value] for title, value in pairs.items() if value]


def _listed(table: Mapping[str, object]) -> str:
    parts = [f"{name} {text(value, 80)}" for name, value in list(table.items())[:20] if value is not None]
    return text(", ".join(parts), _LONG)


def _network(headers: Sequence[Header]) -> Tree | None:
    """The first header's graph with its weights: clients' places, edges; or a sentence if it is too large."""
    network = next((header.network for header in headers if header.network is not None), None)
    if network is None:
        return None
    keep, edges = network.self, network.edges
    if len(keep) > _MOST_CLIENTS or len(edges) > _MOST_EDGES:
        return {
            "sentence": f"The graph has {len(keep):,} clients and {len(edges):,} edges; at most "
            f"{_MOST_CLIENTS:,} and {_MOST_EDGES:,} are drawn."
        }
    return {
        "places": _places(len(keep), tuple((i, j) for i, j, _ in edges)),
        "edges": [[i, j, plain(w, 4)] for i, j, w in edges],
        "self": [plain(w, 4) for w in keep],
    }


@lru_cache(maxsize=64)  # many experiments share one graph
def _places(clients: int, edges: tuple[tuple[int, int], ...]) -> list[list[float]]:
    """Where the clients are drawn."""
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
    return [[round(float(v), 3) for v in point] for point in (points - middle) / reach]


def _shares(headers: Sequence[Header]) -> Tree | None:
    """How many rows of each label every client holds."""
    shares = next((header.shares for header in headers if header.shares is not None), None)
    if shares is None:
        return None
    labels, counts = shares.labels, shares.counts
    if len(counts) > _MOST_CLIENTS or len(labels) > _MOST_LABELS:
        return {
            "sentence": f"The data are shared among {len(counts):,} clients and have {len(labels):,} labels; at most "
            f"{_MOST_CLIENTS:,} and {_MOST_LABELS:,} are drawn."
        }
    return {"labels": [text(label, 40) for label in labels], "counts": counts}


def _few(points: list[Any], most: int = 400) -> list[Any]:
    return points if len(points) <= most else [points[round(i)] for i in np.linspace(0, len(points) - 1, most)]
