"""The figure and the table of benchmarks/language_model.py."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.report.figure import drawing
from gossamer.resources import in_words

Line = dict[str, Any]
_LOOKS = {
    "All-reduce AdamW": ("#000000", "-"),
    "DiLoCo": ("#E69F00", "--"),
    "CHOCO-SGD": ("#009E73", "-."),
    "BEER": ("#0072B2", ":"),
}
_TITLES = {"iid": "text dealt at random", "topic": "each file at one client"}


def draw(lines: Sequence[Line], folder: Path) -> None:
    """Write language_model.png and language_model.md."""
    final = [line for line in lines if line["stage"] == "final"]
    if not final:
        raise SystemExit("There are no final runs yet; run --final first.")
    splits = [split for split in _TITLES if any(line["split"] == split for line in final)]
    _figure(final, splits, folder / "language_model.png")
    text = [*_heading(final), *_table(final, splits), "", "## Search", "", *_search(lines)]
    (folder / "language_model.md").write_text("\n".join(text) + "\n")


def _figure(final: Sequence[Line], splits: Sequence[str], path: Path) -> None:
    with drawing(path, 5.2 * len(splits), 4.2) as figure:
        panels = figure.subplots(1, len(splits), sharey=True, squeeze=False)[0]
        for panel, split in zip(panels, splits, strict=True):
            panel.set(xlabel="bytes sent per client", xscale="log", title=_TITLES[split])
            for line in (one for one in final if one["split"] == split and one["losses"]):
                colour, style = _LOOKS[line["contender"]]
                losses, sent = np.array(line["losses"]), np.array(line["bytes"]).mean(axis=1)
                panel.plot(sent, losses.mean(axis=1), style, color=colour, linewidth=2, label=line["contender"])
                panel.fill_between(sent, losses.min(axis=1), losses.max(axis=1), color=colour, alpha=0.18, linewidth=0)
        panels[0].set_ylabel("validation loss (nats per byte)")
        panels[0].legend(frameon=False, loc="lower left")


def _heading(final: Sequence[Line]) -> list[str]:
    line, scale = final[0], final[0]["scale"]
    ratios = [ratio for one in final for ratio in one["encoded"]]
    encoded = (
        f" Packets that were really encoded took {min(ratios):.4f} to {max(ratios):.4f} times that." if ratios else ""
    )
    return [
        "---",
        "orphan: true",
        "---",
        "",
        "# Language model: loss against bytes",
        "",
        f"A GPT of {line['d']:,} parameters on the text `{scale['text']}` (SHA-256 `{line['text_sha256'][:16]}...`). "
        f"8 clients on a ring; each takes {scale['steps']:,} steps of AdamW on {scale['batch']} windows of "
        f"{scale['context']} bytes. {scale['evaluations']} evaluations per run. Run on: {line['device']}. The loss is "
        f"the best on the way, in nats per byte on at most {scale['evaluated']:,} windows of validation text: mean "
        f"over the seeds {', '.join(map(str, line['seeds']))}, with the lowest and the highest.",
        "",
        "Bytes are those that a client sends in all. All-reduce AdamW and DiLoCo: a ring all-reduce, 2 (n - 1)/n d "
        "numbers of 4 bytes per sync. CHOCO-SGD and BEER: to both neighbours, by the entropy of the symbols plus 4 "
        f"bytes per block.{encoded}",
        "",
        "![Validation loss against bytes sent per client](language_model.png)",
        "",
    ]


def _table(final: Sequence[Line], splits: Sequence[str]) -> list[str]:
    text = [
        "| split | method | settings | loss | against DiLoCo | sent per client | fewer than DiLoCo | than all-reduce |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for split in splits:
        mine = {line["contender"]: line for line in final if line["split"] == split}
        for name, line in mine.items():
            if line["diverged"]:
                text.append(f"| {split} | {name} | {_settings(line)} | diverged | | | | |")
                continue
            losses, sent = np.array(line["losses"]).min(axis=0), _sent(line)
            more = f"{100 * (losses.mean() / _best(mine['DiLoCo']) - 1):+.2f} %" if "DiLoCo" in mine else ""
            fewer = [
                f"{_sent(mine[other]) / sent:.1f} times" if other in mine else ""
                for other in ("DiLoCo", "All-reduce AdamW")
            ]
            shown = f"{losses.mean():.4f} ({losses.min():.4f} to {losses.max():.4f})"
            cells = [split, name, _settings(line), shown, more, in_words(round(sent)), *fewer]
            text.append(f"| {' | '.join(cells)} |")
    return text


def _search(lines: Sequence[Line]) -> list[str]:
    text = [
        "One seed that the runs above do not use. The best setting of each contender went on; of CHOCO-SGD and BEER, "
        "the best of those with at most a tenth of DiLoCo's bytes.",
        "",
        "| split | method | settings | loss | sent per client |",
        "|---|---|---|---|---|",
    ]
    order = list(_LOOKS)
    searched = [line for line in lines if line["stage"] == "search"]
    for line in sorted(searched, key=lambda one: (one["split"], order.index(one["contender"]))):
        shown = "diverged | " if line["diverged"] else f"{_best(line):.4f} | {in_words(round(_sent(line)))}"
        text.append(f"| {line['split']} | {line['contender']} | {_settings(line)} | {shown} |")
    return text


def _settings(line: Line) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in line["setting"].items())


def _best(line: Line) -> float:
    return float(np.array(line["losses"]).min(axis=0).mean())


def _sent(line: Line) -> float:
    return float(np.mean(line["bytes"][-1]))
