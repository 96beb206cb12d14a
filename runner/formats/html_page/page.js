"use strict";
const episodes = JSON.parse(document.getElementById("data").textContent);
const VIEWS = { transcript: "Transcript", all: "All steps", trace: "Trace" };
const chosen = { episode: 0, step: 0, view: "transcript" };

function make(tag, kind = "", ...children) {
  const node = document.createElement(tag);
  if (kind) node.className = kind;
  node.append(...children);
  return node;
}

function draw(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const number = (value) => (value === null ? "unknown" : String(Math.round(value * 1000) / 1000));

function duration(seconds) {
  if (seconds === null) return "–";
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds), pad = (value) => String(value).padStart(2, "0");
  const minutes = Math.floor(whole / 60) % 60, hours = Math.floor(whole / 3600);
  return hours ? `${hours}:${pad(minutes)}:${pad(whole % 60)}` : `${minutes}:${pad(whole % 60)}`;
}

const tone = (reward) => (reward > 0 ? "good" : reward < 0 ? "bad" : "dim");
const shown = () => episodes[chosen.episode];
const page = {
  header: make("header"), steps: make("tbody"), list: make("div", "list"), chart: make("div"), slider: make("input"),
  tabs: make("nav", "tabs"), view: make("section", "view"), keys: make("footer"), help: make("dialog"),
};

function showHeader(episode) {
  const place = `${chosen.episode + 1} of ${episodes.length}`;
  const first = make("p", "", make("span", "", make("h1", "", episode.title)), make("span", episode.tone, episode.outcome),
    make("span", tone(episode.reward), `reward ${number(episode.reward)}`),
    make("span", "", episode.rounds), make("span", "", duration(episode.duration_s)));
  const facts = episode.facts.map(([name, text]) => make("span", "", make("span", "dim", `${name} `), text));
  page.header.replaceChildren(first, make("p", "", ...facts));
  if (episodes.length > 1) {
    const picker = make("select", "", ...episodes.map((each, index) =>
      make("option", "", `${index + 1} · ${each.title} · ${each.outcome} · reward ${number(each.reward)}`)));
    picker.selectedIndex = chosen.episode;
    picker.setAttribute("aria-label", "episode");
    picker.addEventListener("change", () => showEpisode(picker.selectedIndex));
    page.header.append(make("p", "dim", picker, ` ${place}`));
  }
}

function stepRow(step, place) {
  const problem = step.problem ? make("span", "bad", `✗ ${step.problem}: `) : "";
  const warned = step.n_warnings ? make("span", "warn", "⚠ ") : "";
  const reward = make("td", tone(step.reward), number(step.reward) + (step.done ? " ■" : ""));
  const row = make("tr", "", make("td", "", String(step.index)), make("td", "", warned, problem, step.action || "(nothing)"),
    reward, make("td", "", duration(step.model_s)), make("td", "", duration(step.env_s)));
  row.addEventListener("click", () => choose(place));
  return row;
}

function showChart({ steps }) {
  let sum = 0;
  const sums = steps.map((step) => (sum += step.reward)), values = [0, ...sums, ...steps.map((step) => step.reward)];
  const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  const range = high - low || 1, y = (value) => 4 + 92 * (high - value) / range;
  page.here = draw("rect", { class: "here", y: 0, width: 1, height: 100 });
  const bars = steps.map(({ reward }, place) => draw("rect", { class: tone(reward), x: place + 0.15, width: 0.7,
    y: Math.min(y(reward), y(0)) - (reward ? 0 : 1), height: Math.abs(y(reward) - y(0)) || 2 }));
  const line = draw("polyline", { class: "sum", "vector-effect": "non-scaling-stroke",
    points: sums.map((value, place) => `${place + 0.5},${y(value)}`).join(" ") });
  const chart = draw("svg", { viewBox: `0 0 ${Math.max(steps.length, 1)} 100`, preserveAspectRatio: "none", role: "img",
    "aria-label": "rewards over the steps" }, page.here, ...bars, line);
  chart.addEventListener("click", (event) => {
    const box = chart.getBoundingClientRect();
    choose(Math.floor((event.clientX - box.left) / box.width * steps.length));
  });
  const title = make("p", "dim", make("span", "", "reward of each step, and their sum"),
    make("span", "", `${number(low)} to ${number(high)}`));
  page.chart.replaceChildren(title, chart);
  page.slider.max = Math.max(steps.length - 1, 0);
}

function picture(title, rows) {
  const lines = rows.flatMap((row) => [...row.map(([text, color, fill]) => fill === "solid"
    ? make("span", `c-${color} f-solid`, make("span", "", text))
    : make("span", `c-${color}${fill ? ` f-${fill}` : ""}`, text)), "\n"]);
  return make("section", "world", make("h3", "dim", title), make("pre", "", ...lines));
}

function worlds(episode, place) {
  const before = place ? episode.steps[place - 1].world : episode.world, after = episode.steps[place].world;
  const found = [["before the step", before], ["after the step", after]].filter(([, rows]) => rows);
  return found.length ? [make("div", "worlds", ...found.map(([title, rows]) => picture(title, rows)))] : [];
}

const block = ([kind, title, text]) => make("section", `block k-${kind}`, make("h3", "", title), make("pre", "", text));

function stepNodes(episode, place) {
  const blocks = episode.steps[place].blocks.concat(place === episode.steps.length - 1 ? episode.end : []);
  return [...worlds(episode, place), ...blocks.map(block)];
}

function allNodes(episode) {
  return episode.steps.flatMap((step, place) => [make("h2", "", `step ${step.index}`), ...stepNodes(episode, place)]);
}

function traceNodes(episode) {
  const whole = episode.spans.reduce((end, [, , , , start, length]) => Math.max(end, start + length), 0) || 1;
  const rows = episode.spans.map(([name, category, depth, step, start, length]) => {
    const label = make("span", "", name), bar = make("div", "bar");
    if (/^[a-z]+$/.test(category)) bar.classList.add(category);
    label.style.paddingLeft = `${1.5 * depth}ch`;
    bar.style.marginLeft = `${Math.min(100 * start / whole, 99.5)}%`;
    bar.style.width = `${Math.max(0, 100 * length / whole)}%`;
    const index = episode.steps[chosen.step]?.index;
    return make("div", step !== null && step === index ? "span on" : "span", label, make("div", "", bar),
      make("span", "", duration(length / 1000)));
  });
  const hidden = episode.n_spans - rows.length;
  if (hidden) rows.push(make("p", "dim", `${hidden} further spans are in the episode's file`));
  return rows.length ? rows : [make("p", "dim", "No span was recorded.")];
}

function showView(view = chosen.view) {
  const episode = shown(), hasSteps = episode.steps.length > 0;
  const nodes = view === "trace" ? traceNodes(episode) : !hasSteps
    ? [make("p", "dim", "No step was played."), ...episode.end.map(block)]
    : view === "all" ? allNodes(episode) : stepNodes(episode, chosen.step);
  page.view.replaceChildren(...nodes);
  page.view.scrollTop = 0;
  if (view === "trace") page.view.querySelector(".on")?.scrollIntoView({ block: "nearest" });
  if (view === "all") page.view.querySelectorAll("h2")[chosen.step]?.scrollIntoView({ block: "start" });
  [...page.tabs.children].forEach((tab) => tab.setAttribute("aria-pressed", tab.dataset.view === chosen.view));
}

function choose(place) {
  const last = Math.max(shown().steps.length - 1, 0), rows = page.steps.children;
  rows[chosen.step]?.setAttribute("aria-selected", "false");
  chosen.step = Math.max(0, Math.min(place, last));
  const row = rows[chosen.step];
  if (row) {
    row.setAttribute("aria-selected", "true");
    const top = row.offsetTop - row.offsetHeight, bottom = row.offsetTop + row.offsetHeight;
    page.list.scrollTop = Math.max(bottom - page.list.clientHeight, Math.min(page.list.scrollTop, top));
  }
  page.slider.value = chosen.step;
  page.here.setAttribute("x", chosen.step);
  showView();
}

function showEpisode(place) {
  chosen.episode = Math.max(0, Math.min(place, episodes.length - 1));
  const episode = shown();
  document.title = `${episode.title} · ${episode.outcome}`;
  showHeader(episode);
  page.steps.replaceChildren(...episode.steps.map(stepRow));
  showChart(episode);
  choose(0);
}

function chooseView(view) {
  chosen.view = chosen.view === view ? "transcript" : view;
  showView();
}

function changeColors() {
  const root = document.documentElement.style, isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  root.colorScheme = (root.colorScheme || (isDark ? "dark" : "light")) === "dark" ? "light" : "dark";
}

const COMMANDS = [
  [["k", "ArrowUp", "ArrowLeft"], "Previous", "previous step", () => choose(chosen.step - 1)],
  [["j", "ArrowDown", "ArrowRight"], "Next", "next step", () => choose(chosen.step + 1)],
  [["g", "Home"], "First", "first step", () => choose(0)],
  [["G", "End"], "Last", "last step", () => choose(Infinity)],
  [["f"], "All", "all steps at once", () => chooseView("all")],
  [["w"], "Trace", "trace of the episode", () => chooseView("trace")],
  [["p"], "", "previous episode of the page", () => showEpisode(chosen.episode - 1)],
  [["n"], "", "next episode of the page", () => showEpisode(chosen.episode + 1)],
  [["t"], "Light/dark", "light or dark", changeColors],
  [["?"], "Keys", "these keys", () => page.help.open ? page.help.close() : page.help.showModal()],
];

function onKey(event) {
  const command = COMMANDS.find(([keys]) => keys.includes(event.key));
  const isForSelect = event.target.tagName === "SELECT";
  if (!command || event.ctrlKey || event.metaKey || event.altKey || isForSelect) return;
  if (page.help.open && event.key !== "?") return;
  event.preventDefault();
  command[3]();
}

function button(kind, action, ...children) {
  const node = make("button", kind, ...children);
  node.addEventListener("click", action);
  return node;
}

function start() {
  const titles = ["#", "action", "reward", "model", "env"].map((title) => make("th", "", title));
  page.list.append(make("table", "", make("thead", "", make("tr", "", ...titles)), page.steps));
  page.slider.type = "range";
  page.slider.setAttribute("aria-label", "step");
  page.slider.addEventListener("input", () => choose(Number(page.slider.value)));
  for (const [view, title] of Object.entries(VIEWS)) {
    const tab = button("", () => { chosen.view = view; showView(); }, title);
    tab.dataset.view = view;
    page.tabs.append(tab);
  }
  page.view.tabIndex = 0;
  for (const [[key], title, , action] of COMMANDS)
    if (title) page.keys.append(button("", action, make("span", "key", key), ` ${title}`));
  for (const [keys, , about] of COMMANDS) page.help.append(make("div", "", make("span", "key", keys.join(" ")), about));
  const left = make("section", "left", page.list, make("div", "scrub", page.chart, page.slider));
  document.body.append(page.header, make("main", "", left, make("section", "right", page.tabs, page.view)), page.keys, page.help);
  document.addEventListener("keydown", onKey);
  addEventListener("beforeprint", () => showView("all"));
  addEventListener("afterprint", () => showView());
  showEpisode(0);
  page.view.focus({ preventScroll: true });
}

if (episodes.length) start();
else document.body.append("This page has no episode.");
