"use strict";
const episodes = JSON.parse(document.getElementById("data").textContent);
const chosen = { episode: 0, step: 0, view: "transcript" };
const find = (selector) => document.querySelector(selector);
const list = find(".list"), body = find("tbody"), chart = find(".chart"), slider = find("input"), view = find(".view");

function make(tag, kind = "", ...children) {
  const node = document.createElement(tag);
  node.className = kind;
  node.append(...children);
  return node;
}

function clickable(node, action) {
  node.addEventListener("click", action);
  return node;
}

function styled(node, style) {
  for (const [name, value] of Object.entries(style)) node.style.setProperty(name, value);
  return node;
}

function duration(seconds) {
  if (seconds === null) return "–";
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  return seconds < 100 ? `${seconds.toFixed(1)} s` : `${Math.round(seconds)} s`;
}

const number = (value) => (value === null ? "unknown" : String(Math.round(value * 1000) / 1000));
const tone = (reward) => (reward > 0 ? "good" : reward < 0 ? "bad" : "dim");
const shown = () => episodes[chosen.episode];

function showHeader(episode) {
  const facts = episode.facts.map(([name, text]) => make("span", "", make("span", "dim", `${name} `), text));
  find("header").replaceChildren(make("p", "", make("span", "", make("h1", "", episode.title)),
    make("span", episode.tone, episode.outcome), make("span", tone(episode.reward), `reward ${number(episode.reward)}`),
    make("span", "", episode.rounds), make("span", "", duration(episode.duration_s))), make("p", "", ...facts));
  if (episodes.length === 1) return;
  const picker = make("select", "", ...episodes.map(({ title, outcome }, index) =>
    make("option", "", `${index + 1} of ${episodes.length} · ${title} · ${outcome}`)));
  picker.selectedIndex = chosen.episode;
  picker.addEventListener("change", () => showEpisode(picker.selectedIndex));
  find("header").append(picker);
}

function stepRow(step, place) {
  const marks = [make("span", "warn", step.n_warnings ? "⚠ " : ""),
    make("span", "bad", step.problem ? `✗ ${step.problem}: ` : "")];
  return clickable(make("tr", "", make("td", "", String(step.index)),
    make("td", "", ...marks, step.action.slice(0, 200) || "(nothing)"),
    make("td", tone(step.reward), number(step.reward) + (step.done ? " ■" : "")),
    make("td", "", duration(step.model_s)), make("td", "", duration(step.env_s))), () => choose(place));
}

function showChart({ steps }) {
  const rewards = steps.map((step) => step.reward), share = 100 / steps.length;
  const low = rewards.reduce((a, b) => Math.min(a, b), 0), high = rewards.reduce((a, b) => Math.max(a, b), 0);
  const y = (value) => 98 * (high - value) / (high - low || 1);
  chart.replaceChildren(...rewards.map((reward, place) => {
    const top = `${Math.min(y(reward), y(0))}%`, height = `${Math.abs(y(reward) - y(0)) + 2}%`;
    return styled(make("div", tone(reward)), { top, height, left: `${place * share}%`, width: `${0.9 * share}%` });
  }));
  find(".scrub p").textContent = `reward of each step, from ${number(low)} to ${number(high)}`;
  slider.max = Math.max(steps.length - 1, 0);
}

function picture([title, rows]) {
  const runs = rows.flatMap((row) => [...row, ["\n", "plain", ""]]).map(([text, color, fill]) =>
    styled(make("span", fill, text), { "--color": `var(--${color})` }));
  return make("section", "", make("h3", "dim", title), make("pre", "", ...runs));
}

const block = ([kind, title, text]) => make("section", `block ${kind}`, make("h3", "", title), make("pre", "", text));

function stepNodes({ steps, world, end }, place) {
  const { world: after, blocks } = steps[place], before = place ? steps[place - 1].world : world;
  const pictures = [["before the step", before], ["after the step", after]].filter(([, rows]) => rows).map(picture);
  const last = place === steps.length - 1 ? end : [];
  return [make("div", "worlds", ...pictures), ...blocks.concat(last).map(block)];
}

function traceNodes({ spans, steps, n_spans }) {
  const whole = spans.reduce((end, { start_ms, length_ms }) => Math.max(end, start_ms + length_ms), 0) || 1;
  const rows = spans.map(({ name, category, depth, step, start_ms, length_ms }) => {
    const kind = step !== null && step === steps[chosen.step]?.index ? "span on" : "span";
    const bar = styled(make("div", `bar is-${category.replace(/\W/g, "-")}`),
      { "margin-left": `${Math.min(100 * start_ms / whole, 99)}%`, width: `${100 * length_ms / whole}%` });
    return make("div", kind, styled(make("span", "", name), { "padding-left": `${1.5 * depth}ch` }),
      make("div", "", bar), make("span", "dim", duration(length_ms / 1000)));
  });
  return [...rows, make("p", "dim", `${rows.length} of ${n_spans} recorded spans`)];
}

function showView(name = chosen.view) {
  const episode = shown(), { steps, end } = episode;
  if (name === "trace") view.replaceChildren(...traceNodes(episode));
  else if (!steps.length) view.replaceChildren(...end.map(block));
  else if (name === "transcript") view.replaceChildren(...stepNodes(episode, chosen.step));
  else view.replaceChildren(...steps.flatMap((step, place) =>
    [make("h2", "", `step ${step.index}`), ...stepNodes(episode, place)]));
  const mark = name === "trace" ? find(".on") : view.querySelectorAll("h2")[chosen.step];
  view.scrollTop = mark ? mark.offsetTop - 40 : 0;
  find("nav").replaceChildren(...["transcript", "all steps", "trace"].map((each) => {
    const tab = clickable(make("button", "", each), () => chooseView(each));
    tab.setAttribute("aria-pressed", each === name);
    return tab;
  }));
}

function choose(place) {
  body.children[chosen.step]?.removeAttribute("aria-selected");
  chosen.step = Math.max(0, Math.min(place, shown().steps.length - 1));
  const row = body.children[chosen.step];
  if (row) {
    row.setAttribute("aria-selected", true);
    const { offsetTop: top, offsetHeight: height } = row;
    list.scrollTop = Math.max(top + height - list.clientHeight, Math.min(list.scrollTop, top - height));
  }
  slider.value = chosen.step;
  chart.querySelector(".here")?.classList.remove("here");
  chart.children[chosen.step]?.classList.add("here");
  showView();
}

function showEpisode(place) {
  chosen.episode = Math.max(0, Math.min(place, episodes.length - 1));
  document.title = `${shown().title} · ${shown().outcome}`;
  showHeader(shown());
  body.replaceChildren(...shown().steps.map(stepRow));
  showChart(shown());
  choose(0);
}

function chooseView(name) {
  chosen.view = chosen.view === name ? "transcript" : name;
  showView();
}

function changeColors() {
  const root = document.documentElement.style, isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  root.colorScheme = (root.colorScheme || (isDark ? "dark" : "light")) === "dark" ? "light" : "dark";
}

const COMMANDS = [
  ["k ↑ ←", "previous", () => choose(chosen.step - 1)],
  ["j ↓ →", "next", () => choose(chosen.step + 1)],
  ["g Home", "first", () => choose(0)],
  ["G End", "last", () => choose(shown().steps.length)],
  ["f", "all steps", () => chooseView("all steps")],
  ["w", "trace", () => chooseView("trace")],
  ["p", "previous episode", () => showEpisode(chosen.episode - 1)],
  ["n", "next episode", () => showEpisode(chosen.episode + 1)],
  ["t", "light or dark", changeColors],
  ["?", "keys", () => (find("dialog").open ? find("dialog").close() : find("dialog").showModal())],
];
const ARROWS = { ArrowUp: "↑", ArrowDown: "↓", ArrowLeft: "←", ArrowRight: "→" };

function onKey(event) {
  const command = COMMANDS.find(([keys]) => keys.split(" ").includes(ARROWS[event.key] || event.key));
  const isElsewhere = event.target.tagName === "SELECT" || (find("dialog").open && event.key !== "?");
  if (!command || event.ctrlKey || event.metaKey || event.altKey || isElsewhere) return;
  event.preventDefault();
  command[2]();
}

for (const [keys, title, action] of COMMANDS) {
  const button = clickable(make("button", "", make("span", "key", keys[0]), ` ${title}`), action);
  if (!title.endsWith("episode")) find("footer").append(button);
  find("dialog").append(make("div", "", make("span", "key", keys), title));
}
if (episodes.length) {
  document.addEventListener("keydown", onKey);
  slider.addEventListener("input", () => choose(Number(slider.value)));
  addEventListener("beforeprint", () => showView("all steps"));
  addEventListener("afterprint", () => showView());
  showEpisode(0);
  view.focus({ preventScroll: true });
}
