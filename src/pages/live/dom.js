// Helpers for text and elements.

const byId = (id) => document.getElementById(id);
const show = (id, is) => (byId(id).hidden = !is);
const known = (value) => value !== null && value !== undefined;

const count = (number) => (number ?? 0).toLocaleString("en");
const percent = (share) => (known(share) ? `${(share * 100).toFixed(1)}%` : "–");
function time(seconds) {
  if (!known(seconds)) return "–";
  const [value, unit] = seconds < 1 ? [seconds * 1000, "ms"] : [seconds, "s"];
  return `${value >= 100 ? value.toFixed(0) : Number(value.toPrecision(3))} ${unit}`;
}
const clock = (at) => new Date(at).toLocaleTimeString("en-GB");
function duration(seconds) {
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  return seconds < 172_800 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86_400)} days`;
}
const label = (name) => name.replaceAll("_", " ");
const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

function setText(id, text) {
  const element = byId(id);
  if (element.textContent !== text) element.textContent = text;
}

const SVG = "http://www.w3.org/2000/svg";
function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
function html(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
const figure = (id, text, name = "td") => html(name, { "data-figure": id }, text);

// Replaces the children of `parent` but keeps equal elements, so that selection, focus, and scroll position stay.
function updateChildren(parent, children) {
  children.forEach((child, index) => {
    const there = parent.children[index];
    if (!there) parent.append(child);
    else if (!there.isEqualNode(child)) there.replaceWith(child);
  });
  while (parent.children.length > children.length) parent.lastElementChild.remove();
}
