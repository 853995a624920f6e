// The curves of one experiment: what to show and against what, which methods, how much of it, and what is where.

const LOG_FIRST = { grad_norm: true, consensus: true, bits: true, bits_nominal: true };
const TOUCH_SLACK = 10;
const BANDS = "Lines are means over the seeds, bands reach from the smallest to the largest.";

class Plot {
  constructor(group, names, number) {
    this.methods = group.methods;
    this.names = names;
    this.number = number;
    this.off = new Set();
    this.zoom = null;
    this.cursor = null;
    this.pointers = new Map();
    const some = (side, name) => this.methods.some((method) => method[side][name]);
    this.ys = Object.keys(names.measured).filter((name) => some("y", name));
    this.xs = Object.keys(names.across).filter((name) => some("x", name));
    this.choose("y", this.ys[0]);
    this.choose("x", this.xs[0]);
    this.node = this.layOut();
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.frame);
  }

  choose(side, name) {
    this[side] = name;
    this[side + "Log"] = Boolean(LOG_FIRST[name]);
    if (side === "x") this.zoom = null;
    if (this.node) this.refresh();
  }

  // ------------------------------------------------------------------------------------------------------- structure

  layOut() {
    const choices = (side, all, said) => all.map((name) =>
      button(said(name), name === this[side], () => this.choose(side, name), { "data-axis": side, "data-name": name }));
    const strip = (title, kind, children) =>
      el("div", { class: "choice " + kind, role: "group", "aria-label": title }, el("span", { class: "title" }, title), el("div", { class: "strip" }, children));
    const log = (side) => button(`log ${side}`, this[side + "Log"], () => { this[side + "Log"] = !this[side + "Log"]; this.refresh(); },
      { "data-log": side, title: `Logarithmic ${side} axis` });
    this.frame = el("div", { class: "canvas", tabindex: 0, role: "group", "aria-label": "Curves; the arrow keys read values, + and - zoom, 0 shows all" });
    this.tip = el("div", { class: "tip", hidden: true });
    this.canvas = svg("svg", { role: "img" });
    this.frame.append(this.canvas, this.tip);
    this.legend = el("ul", { class: "legend" });
    this.place = el("p", { class: "place", "aria-live": "polite" });
    this.legendParts = this.methods.map((method, index) => this.legendItem(method, index));
    const lost = this.methods.flatMap((method) => method.diverged);
    return el("div", { class: "plot" },
      el("div", { class: "controls" },
        strip("Show", "wide", choices("y", this.ys, (name) => this.names.measured[name].name)),
        strip("Against", "", choices("x", this.xs, (name) => this.names.across[name])),
        strip("Scale", "", [log("y"), log("x")]),
        strip("Zoom", "", [
          button("−", null, () => this.zoomBy(2), { "data-zoom": "out", "aria-label": "Zoom out" }),
          button("+", null, () => this.zoomBy(0.5), { "data-zoom": "in", "aria-label": "Zoom in" }),
          button("reset", null, () => this.reset(), { "data-zoom": "reset" }),
        ])),
      this.frame,
      this.place,
      this.legend,
      el("p", { class: "hint mouse" }, "Drag over the curves to zoom, double-click to see all again; click a method to hide it. " + BANDS),
      el("p", { class: "hint fingers" }, "Touch the curves to read them, pinch to zoom; touch a method to hide it. " + BANDS),
      lost.length ? el("ul", { class: "lost" }, lost.map((sentence) => el("li", {}, sentence))) : null);
  }

  legendItem(method, index) {
    const value = el("span", { class: "value" });
    const lost = method.diverged.length;
    const mark = lost ? el("span", { class: "mark" }, lost === method.seeds ? "diverged" : `${lost} of ${method.seeds} diverged`) : null;
    const node = button("", true, () => {
      this.off.has(index) ? this.off.delete(index) : this.off.add(index);
      press(node, !this.off.has(index));
      this.draw();
    }, { class: "entry", "data-method": index });
    node.append(swatch(index), el("span", { class: "label" }, method.label, mark ? " " : null, mark), value);
    this.legend.append(el("li", {}, node));
    return { node, value };
  }

  refresh() {
    for (const node of this.node.querySelectorAll("[data-axis]")) press(node, this[node.dataset.axis] === node.dataset.name);
    for (const node of this.node.querySelectorAll("[data-log]")) press(node, this[node.dataset.log + "Log"]);
    this.cursor = null;
    this.draw();
  }

  // ------------------------------------------------------------------------------------------------------ the curves

  /** Points of a method that can stand on the axes as they are now. */
  points(method) {
    const xs = method.x[this.x], y = method.y[this.y];
    if (!xs || !y) return [];
    const fits = (value, log) => value !== null && (!log || value > 0);
    return xs.map((x, k) => ({
      x, y: y.mean[k], low: y.low ? y.low[k] : y.mean[k], high: y.high ? y.high[k] : y.mean[k],
      ok: fits(x, this.xLog) && fits(y.mean[k], this.yLog),
    }));
  }

  shown() {
    return this.methods.map((method, index) => ({ method, index, points: this.off.has(index) ? [] : this.points(method) }));
  }

  fullRange() {
    const xs = this.shown().flatMap(({ points }) => points.filter((p) => p.ok).map((p) => p.x));
    if (!xs.length) return null;
    return widen(this.xLog, xs.reduce((a, b) => Math.min(a, b)), xs.reduce((a, b) => Math.max(a, b)), 0);
  }

  heights(curves, low, high) {
    // What diverged would press all the others flat; it leaves through the ceiling instead.
    const sound = curves.filter(({ method }) => method.diverged.length < method.seeds);
    const inside = (sound.some(({ points }) => points.length) ? sound : curves)
      .flatMap(({ points }) => points.filter((p) => p.ok && p.x >= low && p.x <= high));
    const values = inside.flatMap((p) => [p.y, p.low, p.high]).filter((v) => v !== null && (!this.yLog || v > 0));
    if (!values.length) return null;
    return widen(this.yLog, values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b)), 0.05);
  }

  draw() {
    const width = Math.max(280, Math.round(this.frame.clientWidth)), height = Math.round(Math.min(520, Math.max(300, width * 0.56)));
    this.canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.canvas.setAttribute("height", height);
    const box = { left: 62, top: 34, right: width - 14, bottom: height - 48 };
    const full = this.fullRange(), curves = this.shown();
    const range = this.zoom ?? full, heights = full && (this.heights(curves, ...range) ?? this.heights(curves, ...full));
    this.canvas.replaceChildren();
    this.box = box;
    this.canvas.setAttribute("aria-label", this.describe());
    if (!full || !heights) {
      this.axes = null;
      this.canvas.append(svg("text", { class: "nothing", x: width / 2, y: height / 2, "text-anchor": "middle" }, "Nothing to draw on these axes."));
      this.read();
      return;
    }
    const x = { at: scale(this.xLog, ...range, box.left, box.right), marks: ticks(this.xLog, ...range, Math.max(3, width / 130)) };
    const y = { at: scale(this.yLog, ...heights, box.bottom, box.top), marks: ticks(this.yLog, ...heights, 6) };
    this.axes = { x, y, range, full };
    const clip = `clip-${this.number}`;
    this.canvas.append(svg("defs", {}, svg("clipPath", { id: clip },
      svg("rect", { x: box.left, y: box.top - 2, width: box.right - box.left, height: box.bottom - box.top + 4 }))));
    this.canvas.append(drawAxes(box, x, y, { x: this.names.across[this.x], y: this.names.measured[this.y].name }));
    const inside = svg("g", { "clip-path": `url(#${clip})` });
    for (const { index, points } of curves) inside.append(...this.curve(points, index));
    this.marks = svg("g", { class: "marks", "aria-hidden": "true" });
    this.canvas.append(inside, this.marks);
    this.read();
  }

  curve(points, index) {
    if (!points.some((p) => p.ok)) return [];
    const { x, y } = this.axes, most = 1e5;
    const px = (v) => Math.max(-most, Math.min(most, x.at(v))).toFixed(1), py = (v) => Math.max(-most, Math.min(most, y.at(v))).toFixed(1);
    let line = "", pen = "M";
    for (const p of points) {
      if (p.ok) { line += `${pen}${px(p.x)} ${py(p.y)}`; pen = "L"; } else pen = "M";
    }
    const banded = points.filter((p) => p.ok && p.high !== null && p.low !== null && p.high > p.low);
    const floor = this.yLog ? y.at.back(this.box.bottom + 20) : -Infinity;  // a band may reach down to zero
    const around = [...banded.map((p) => `${px(p.x)} ${py(p.high)}`), ...banded.reverse().map((p) => `${px(p.x)} ${py(Math.max(p.low, floor))}`)];
    return [
      around.length > 2 ? svg("path", { class: `band c${index % 7}`, d: `M${around.join("L")}Z` }) : null,
      svg("path", { class: `curve ${look(index)}`, d: line, "data-method": index }),
    ].filter(Boolean);
  }

  describe() {
    const ends = this.methods.filter((_, index) => !this.off.has(index)).slice(0, 12).map((method) => {
      const y = method.y[this.y];
      return `${method.label} ends at ${measured(this.y, y ? y.mean.at(-1) : null)}`;
    });
    return `${this.names.measured[this.y].name} against ${this.names.across[this.x]}: ${ends.join("; ")}`;
  }

  // -------------------------------------------------------------------------------------------------- what is where

  /** Show the values at the cursor, or the last ones when there is none. */
  read() {
    const rows = [];
    this.marks?.replaceChildren();
    const at = this.axes && this.cursor !== null ? this.axes.x.at(this.cursor) : null;
    this.methods.forEach((method, index) => {
      const points = this.points(method).filter((p) => p.ok);
      let near = points.at(-1) ?? null;
      if (at !== null) {
        near = points.reduce((best, p) => (best === null || Math.abs(this.axes.x.at(p.x) - at) < Math.abs(this.axes.x.at(best.x) - at) ? p : best), null);
        const ends = near && this.axes.x.at(points.at(-1).x) + TOUCH_SLACK < at;
        if (ends || (near && this.axes.x.at(points[0].x) - TOUCH_SLACK > at)) near = null;
      }
      const said = near ? measured(this.y, near.y) : "–";
      this.legendParts[index].value.textContent = said;
      if (near && at !== null && !this.off.has(index)) {
        const spread = near.high > near.low ? ` (${measured(this.y, near.low)} to ${measured(this.y, near.high)})` : "";
        rows.push({ index, label: method.label, said: said + spread, y: near.y });
        const py = this.axes.y.at(near.y);
        if (py >= this.box.top - 3 && py <= this.box.bottom + 3) {
          this.marks.append(svg("circle", { class: `dot c${index % 7}`, cx: this.axes.x.at(near.x), cy: py, r: 4 }));
        }
      }
    });
    const name = this.names.measured[this.y].name;
    this.place.textContent = at === null ? `${name} at the end` : `${name} at ${this.whereText()}`;
    if (at === null || !rows.length) { this.tip.hidden = true; return; }
    this.marks.prepend(svg("line", { class: "cross", x1: at, x2: at, y1: this.box.top, y2: this.box.bottom }));
    this.showTip(rows.sort((a, b) => b.y - a.y), at);
  }

  whereText() {
    if (this.x === "round") return `round ${Math.round(this.cursor).toLocaleString("en-GB")}`;
    return measured(this.x, this.cursor) + (this.x === "bits_nominal" ? " (the paper's count)" : "");
  }

  showTip(rows, at) {
    this.tip.hidden = this.touching || this.frame.clientWidth < 560;
    this.tip.replaceChildren(el("strong", {}, this.whereText()), ...rows.slice(0, 14).map((row) =>
      el("div", { class: "row", "data-method": row.index }, swatch(row.index), el("span", {}, row.label), el("span", { class: "value" }, row.said))));
    if (this.tip.hidden) return;
    const ratio = this.frame.clientWidth / this.canvas.viewBox.baseVal.width, width = this.tip.offsetWidth;
    const right = at * ratio + 16, fits = right + width < this.frame.clientWidth;
    this.tip.style.left = `${fits ? right : Math.max(0, at * ratio - 16 - width)}px`;
    this.tip.style.top = `${this.box.top + 6}px`;
  }

  // ------------------------------------------------------------------------------------------------------ the pointer

  pixel(event) {
    const place = this.canvas.getBoundingClientRect();
    const x = ((event.clientX - place.left) / place.width) * this.canvas.viewBox.baseVal.width;
    return Math.max(this.box.left, Math.min(this.box.right, x));
  }

  listen() {
    const frame = this.frame;
    frame.addEventListener("pointerdown", (event) => {
      if (!this.axes || (event.pointerType === "mouse" && event.button !== 0)) return;
      this.touching = event.pointerType !== "mouse";
      this.pointers.set(event.pointerId, this.pixel(event));
      frame.setPointerCapture(event.pointerId);
      this.grip = [...this.pointers.values()].map((pixel) => this.axes.x.at.back(pixel));
      if (this.touching && this.pointers.size === 1) this.point(event);
      this.from = this.touching ? null : this.pixel(event);
    });
    frame.addEventListener("pointermove", (event) => {
      if (!this.axes) return;
      this.touching = event.pointerType !== "mouse";
      if (this.pointers.has(event.pointerId)) this.pointers.set(event.pointerId, this.pixel(event));
      if (this.pointers.size === 2) this.pinch();
      else {
        this.point(event);
        if (this.from !== null && this.from !== undefined) this.select(this.from, this.pixel(event));
      }
    });
    const leave = (event) => {
      const from = this.from;
      this.pointers.delete(event.pointerId);
      this.from = null;
      if (event.type === "pointerup" && from !== null && from !== undefined && this.axes) {
        const to = this.pixel(event), back = this.axes.x.at.back;
        if (Math.abs(to - from) > 6) this.setZoom(back(Math.min(from, to)), back(Math.max(from, to)));
      }
    };
    frame.addEventListener("pointerup", leave);
    frame.addEventListener("pointercancel", leave);
    frame.addEventListener("pointerleave", (event) => {
      if (event.pointerType !== "mouse" || this.pointers.size) return;
      this.cursor = null;
      this.read();
    });
    frame.addEventListener("dblclick", () => this.reset());
    frame.addEventListener("keydown", (event) => this.key(event));
    frame.addEventListener("blur", () => { this.cursor = null; this.read(); });
  }

  point(event) {
    this.cursor = this.axes.x.at.back(this.pixel(event));
    this.read();
  }

  select(from, to) {
    this.marks.append(svg("rect", { class: "selection", x: Math.min(from, to), y: this.box.top, width: Math.abs(to - from), height: this.box.bottom - this.box.top }));
  }

  /** Two fingers keep hold of the values that they were put on. */
  pinch() {
    const [p, q] = [...this.pointers.values()], [a, b] = this.grip;
    if (this.grip.length < 2 || Math.abs(p - q) < 12 || a === b) return;
    const place = this.xLog ? Math.log10 : (v) => v, back = this.xLog ? (v) => 10 ** v : (v) => v;
    const slope = (place(b) - place(a)) / (q - p);
    if (!(slope > 0)) return;
    this.setZoom(back(place(a) + (this.box.left - p) * slope), back(place(a) + (this.box.right - p) * slope));
  }

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1 };
    if (event.ctrlKey || event.metaKey || event.altKey || !this.axes) return;
    if (steps[event.key]) {
      const { left, right } = this.box, now = this.cursor === null ? (left + right) / 2 : this.axes.x.at(this.cursor);
      this.cursor = this.axes.x.at.back(Math.max(left, Math.min(right, now + steps[event.key] * (right - left) * 0.02)));
      this.read();
    } else if (event.key === "+" || event.key === "=") this.zoomBy(0.5);
    else if (event.key === "-") this.zoomBy(2);
    else if (event.key === "0" || event.key === "Escape") this.reset();
    else return;
    event.preventDefault();
  }

  zoomBy(factor) {
    if (!this.axes) return;
    const { left, right } = this.box, middle = this.cursor === null ? (left + right) / 2 : this.axes.x.at(this.cursor);
    const back = this.axes.x.at.back;
    this.setZoom(back(middle - (middle - left) * factor), back(middle + (right - middle) * factor));
  }

  setZoom(low, high) {
    const [first, last] = this.axes.full, place = this.xLog ? Math.log10 : (v) => v;
    const a = Math.max(low, first), b = Math.min(high, last);
    if (!(place(b) - place(a) > (place(last) - place(first)) * 1e-4)) return;
    this.zoom = a <= first && b >= last ? null : [a, b];
    this.draw();
  }

  reset() {
    this.zoom = null;
    this.draw();
  }
}
