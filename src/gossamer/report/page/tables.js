// Tables: the verdicts, the rates, the final values, the settings.

const HEADINGS = {
  round: "rounds", bits: "sent per link", bits_nominal: "paper's count", grad_norm: "gradient norm", loss: "loss",
  accuracy: "test accuracy", worst_accuracy: "worst client", consensus: "consensus", seconds: "seconds",
};

const VERDICTS = {
  holds: { kind: "yes", many: "hold", path: "M4 8.5l3 3 5.5-6.5" },
  "does not hold": { kind: "no", many: "do not hold", path: "M4.5 4.5l7 7M11.5 4.5l-7 7" },
  inconclusive: { kind: "open", many: "inconclusive", path: "M5.5 6a2.5 2.5 0 1 1 3.6 2.2c-.8.4-1.1.8-1.1 1.6M8 12v.4" },
};
const EARLIER = { "cannot be told": "inconclusive" };  // in files of earlier versions

const tableBox = (table, name) => el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": name }, table);

function verdictMark(verdict) {
  const { kind, path } = VERDICTS[verdict];
  return el("span", { class: `verdict ${kind}` },
    svg("svg", { width: 16, height: 16, viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: path })), verdict);
}

/** What the paper says, what was measured, and whether they agree. */
function claimsSection(given) {
  const claims = given.claims.map((claim) => ({ ...claim, verdict: EARLIER[claim.verdict] ?? claim.verdict }));
  const count = (verdict) => claims.filter((claim) => claim.verdict === verdict).length;
  const counts = Object.entries(VERDICTS).map(([verdict, { kind, many }]) => {
    const n = count(verdict);
    return n ? el("span", { class: kind }, `${n} ${n === 1 ? verdict : many}`) : null;
  }).filter(Boolean);
  const bodies = [];
  const places = [...new Set(claims.map((claim) => claim.where))];
  for (const where of places) {
    const rows = claims.filter((claim) => claim.where === where).map(claimRow);
    bodies.push(el("tbody", {}, el("tr", { class: "where" }, el("th", { colspan: 5, scope: "rowgroup" }, where || "Elsewhere")), rows));
  }
  const filters = el("div", { class: "strip filters", role: "group", "aria-label": "Which claims to show" });
  const pick = (verdict, node) => {
    for (const other of filters.children) press(other, other === node);
    for (const body of bodies) {
      for (const row of body.querySelectorAll("tr[data-verdict]")) row.hidden = verdict !== null && row.dataset.verdict !== verdict;
      body.hidden = !body.querySelector("tr[data-verdict]:not([hidden])");
    }
  };
  filters.append(button(`all ${claims.length}`, true, (node) => pick(null, node)));
  for (const verdict of Object.keys(VERDICTS)) {
    if (count(verdict)) filters.append(button(`${verdict} ${count(verdict)}`, false, (node) => pick(verdict, node), { "data-verdict": verdict }));
  }
  return el("section", { id: "verdicts" },
    el("h2", {}, "Verdicts"),
    el("p", { class: "score" }, counts.flatMap((part, k) => (k ? [", ", part] : [part])), "."),
    given.shortened ? el("p", { class: "warning" }, "These runs were shortened for a trial. Their verdicts say little about the paper.") : null,
    given.command ? el("p", { class: "quiet" }, "Made by ", el("code", {}, given.command)) : null,
    filters,
    el("table", { class: "claims" },
      el("thead", {}, el("tr", {}, ["verdict", "the paper says", "measured", "holds if", "note"].map((name) => el("th", { scope: "col" }, name)))),
      bodies));
}

function claimRow(claim) {
  // null stands for an infinite value: a run diverged, or never reached its target.
  const values = claim.values.map((value) => value ?? Infinity);
  const written = (value) => (Number.isFinite(value) ? show(value) : "infinite");
  const mean = values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
  const spread = values.length > 1 ? `${written(Math.min(...values))} to ${written(Math.max(...values))}, ${values.length} seeds` : "";
  const cell = (name, ...children) => el("td", { "data-name": name }, ...children);
  return el("tr", { "data-verdict": claim.verdict, id: claim.id ? `claim-${claim.id}` : null },
    cell("", verdictMark(claim.verdict)),
    cell("", el("div", {}, claim.says), claim.quantity ? el("div", { class: "quiet" }, claim.quantity) : null),
    cell("measured", el("div", { class: "figure" }, mean === null ? show(claim.value) : written(mean)), spread ? el("div", { class: "quiet" }, spread) : null),
    cell("holds if", el("div", {}, claim.rule), claim.why ? el("div", { class: "quiet" }, claim.why) : null),
    cell("note", claim.note));
}

/** Fitted slopes beside those of the theory. */
function ratesSection(rates) {
  const panels = [...new Set(rates.map((fit) => fit.what))];
  const rows = rates.map((fit) => el("tr", {},
    el("td", { class: "study" }, el("div", {}, fit.study), el("div", { class: "quiet" }, fit.what)), el("th", { scope: "row" }, fit.method),
    el("td", { class: "number" }, show(fit.slope)),
    el("td", { class: "number" }, fit.low === null || fit.high === null ? "–" : `${show(fit.low)} to ${show(fit.high)}`),
    el("td", { class: "number" }, show(fit.theory)), el("td", {}, EARLIER[fit.agrees] ?? fit.agrees)));
  return el("section", { id: "rates" },
    el("h2", {}, "Rates"),
    tableBox(el("table", {}, el("thead", {}, el("tr", {}, ["study", "method", "slope", "interval", "theory", "verdict"].map((name, k) =>
      el("th", { scope: "col", class: k > 1 && k < 5 ? "number" : null }, name)))), el("tbody", {}, rows)), "Fitted rates"),
    el("div", { class: "gallery" }, panels.map((what) => drawRates(what, rates.filter((fit) => fit.what === what)))));
}

/** One row per method; the best of each column in bold. */
function finalTable(final) {
  const head = el("tr", {}, el("th", { scope: "col" }, "method"), final.names.map((name) => el("th", { scope: "col", class: "number" }, HEADINGS[name] ?? name)));
  const rows = final.rows.map((row, index) => {
    const lost = row.diverged.length;
    const mark = lost ? el("span", { class: "mark" }, row.seeds ? `${lost} of ${lost + row.seeds} diverged` : "diverged") : null;
    const cells = row.cells.map(({ value, range, best }, k) => {
      const [low, high] = (range ?? [null, null]).map((end) => measured(final.names[k], end));
      return el("td", { class: best ? "number best" : "number" }, el("div", {}, measured(final.names[k], value)),
        low === high ? null : el("div", { class: "quiet" }, `${low} to ${high}`));
    });
    return el("tr", {}, el("th", { scope: "row" }, swatch(index), el("span", {}, row.label), mark ? " " : null, mark), cells);
  });
  return el("div", { class: "final" },
    el("h3", {}, "Final values"),
    tableBox(el("table", {}, el("thead", {}, head), el("tbody", {}, rows)), "Final values"),
    el("p", { class: "hint" }, "Means over the seeds, with their range below. Losses, norms, accuracies and consensus are averaged over the last tenth of the evaluations."));
}

/** Settings of the methods, problem, versions, command and spec. */
function settingsBlock(group) {
  const keys = [...new Set(group.settings.flatMap((method) => Object.keys(method.values)))];
  const rows = group.settings.map((method) => el("tr", {}, el("th", { scope: "row" }, method.label), keys.map((key) => el("td", {}, method.values[key] ?? "–"))));
  const pairs = [...group.about, ["Records", group.folder]];
  return el("details", { class: "settings" },
    el("summary", {}, "Settings, versions and command"),
    tableBox(el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "method"), keys.map((key) => el("th", { scope: "col" }, key)))),
      el("tbody", {}, rows)), "Settings of the methods"),
    el("dl", {}, pairs.map(([name, value]) => [el("dt", {}, name), el("dd", {}, name === "Command" || name === "Records" ? el("code", {}, value) : value)])),
    group.spec ? [el("h4", {}, "spec.toml"), el("pre", { tabindex: 0 }, group.spec)] : null);
}
