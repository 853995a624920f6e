"""A picture of the rooms and their imports, made from the code."""

import ast
from html import escape
from pathlib import Path

import networkx as nx

_WIDE, _HIGH, _GAP_X, _GAP_Y = 118, 30, 26, 46


def imported(path: Path) -> set[str]:
    """Top-level rooms of the package that a file imports, wherever in it the import stands."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "gossamer" else [f"gossamer.{alias.name}" for alias in node.names]
            assert node.level == 0, f"{path}: imports are absolute"
        rooms |= {name.split(".")[1] for name in names if name.startswith("gossamer.")}
    return rooms


def graph(source: Path, leaves: set[str]) -> "nx.DiGraph[str]":
    """Which room imports which; the leaves are one."""
    rooms: nx.DiGraph[str] = nx.DiGraph()
    for path in sorted(source.rglob("*.py")):
        room = path.relative_to(source).parts[0].removesuffix(".py")
        if room.startswith("__"):
            continue
        room = "leaves" if room in leaves else room
        rooms.add_node(room)
        others = {"leaves" if other in leaves else other for other in imported(path)} - {room, "gossamer", "_version"}
        rooms.add_edges_from((room, other) for other in sorted(others))
    return rooms


def picture(rooms: "nx.DiGraph[str]") -> str:
    """An SVG: users above what they use; arrows that follow from others are left out."""
    shown = nx.transitive_reduction(rooms)
    depth: dict[str, int] = {}
    for room in reversed(list(nx.lexicographical_topological_sort(rooms))):
        depth[room] = max((depth[other] + 1 for other in rooms.successors(room)), default=0)
    layers = [sorted(room for room in rooms if depth[room] == k) for k in range(max(depth.values()), -1, -1)]
    width = max(len(layer) for layer in layers) * (_WIDE + _GAP_X) + _GAP_X
    at: dict[str, tuple[float, int]] = {}
    for row, layer in enumerate(layers):
        left = (width - len(layer) * (_WIDE + _GAP_X) + _GAP_X) / 2
        for place, room in enumerate(layer):
            at[room] = (left + place * (_WIDE + _GAP_X), _GAP_Y // 2 + row * (_HIGH + _GAP_Y))
    height = len(layers) * (_HIGH + _GAP_Y)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="14">',
        '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#777"/></marker></defs>',
    ]
    for room, other in sorted(shown.edges):
        (x, y), (u, v) = at[room], at[other]
        lines.append(
            f'<line x1="{x + _WIDE / 2:g}" y1="{y + _HIGH}" x2="{u + _WIDE / 2:g}" y2="{v}" stroke="#777" '
            'marker-end="url(#a)"/>'
        )
    for room, (x, y) in sorted(at.items()):
        lines.append(
            f'<rect x="{x:g}" y="{y}" width="{_WIDE}" height="{_HIGH}" rx="5" fill="#e8f1f8" stroke="#0072B2"/>'
            f'<text x="{x + _WIDE / 2:g}" y="{y + 20}" text-anchor="middle" fill="#111">{escape(room)}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])
