// The page, top to bottom.

function experiment(group, data, number) {
  const seeds = Math.max(...group.methods.map((method) => method.seeds));
  const pictures = [group.network ? drawNetwork(group.network) : null, group.shares ? drawShares(group.shares) : null].filter(Boolean);
  const drawable = group.methods.some((method) => Object.keys(method.y).length && Object.keys(method.x).length);
  const curves = drawable ? new Plot(group, data).node : el("p", { class: "quiet" }, "These records hold nothing to draw.");
  return el("section", { class: "experiment", id: `experiment-${number}` },
    el("h2", {}, group.name),
    el("p", { class: "quiet" }, `${group.methods.length} method${group.methods.length > 1 ? "s" : ""}, ${seeds} seed${seeds > 1 ? "s" : ""}`),
    el("div", { class: pictures.length ? "bench" : "bench alone" }, curves, pictures.length ? el("aside", {}, pictures) : null),
    finalTable(group.final),
    settingsBlock(group));
}

function contents(data) {
  const links = [];
  if (data.claims) links.push(["#verdicts", "Verdicts"]);
  if (data.rates.length) links.push(["#rates", "Rates"]);
  data.groups.forEach((group, number) => links.push([`#experiment-${number}`, group.name]));
  if (data.leftOut.length) links.push(["#left-out", "Not read"]);
  if (links.length < 2) return null;
  return el("nav", { "aria-label": "On this page" }, el("ol", {}, links.map(([href, name]) => el("li", {}, el("a", { href }, name)))));
}

const data = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page");
page.append(
  el("header", {}, el("p", { class: "eyebrow" }, "Gossamer report"), el("h1", {}, data.title),
    el("ul", { class: "facts" }, data.summary.map((line) => el("li", {}, line)))));
const overview = contents(data);
if (overview) page.append(overview);
if (data.claims) page.append(claimsSection(data.claims));
if (data.rates.length) page.append(ratesSection(data.rates));
data.groups.forEach((group, number) => page.append(experiment(group, data, number)));
if (data.leftOut.length) {
  page.append(el("section", { id: "left-out" }, el("h2", {}, "Not read"), el("ul", {}, data.leftOut.map((sentence) => el("li", {}, sentence)))));
}
document.documentElement.dataset.ready = "yes";
