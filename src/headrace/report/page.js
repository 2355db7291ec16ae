// Values under the pointer, and buttons that copy commands. Everything of the page can be read without this script.
document.documentElement.classList.add("scripted");
const tip = document.body.appendChild(document.createElement("div"));
tip.className = "tip";
let marked = null;

const number = (text) => Number(text).toLocaleString("en", { maximumSignificantDigits: 5 });

function unmark() {
  marked?.querySelectorAll(".mark").forEach((mark) => mark.remove());
  marked = null;
  tip.replaceChildren();
  tip.style.display = "none";
}

function mark(chart, name, attributes) {
  const shape = chart.appendChild(document.createElementNS("http://www.w3.org/2000/svg", name));
  for (const [key, value] of Object.entries({ ...attributes, class: `mark ${attributes.class ?? ""}` })) {
    shape.setAttribute(key, value);
  }
}

// The point of each line that is nearest to a place from left to right; lines that end before it are left out.
function nearest(chart, place) {
  const found = [];
  for (const line of chart.querySelectorAll("polyline")) {
    const places = [...line.points].map((point) => point.x);
    if (!places.length || place < places[0] - 30 || place > places.at(-1) + 30) continue;
    const index = places.reduce((best, x, i) => (Math.abs(x - place) < Math.abs(places[best] - place) ? i : best), 0);
    const [x, y] = [line.dataset.x, line.dataset.y].map((values) => values.split(" ")[index]);
    found.push({ line, x, y, point: line.points[index], colour: line.getAttribute("class").match(/c\d/)[0] });
  }
  return found;
}

function show(chart, event) {
  unmark();
  const box = chart.getBoundingClientRect();
  const place = ((event.clientX - box.left) / box.width) * 1000;
  const found = nearest(chart, place);
  if (!found.length) return;
  marked = chart;
  const first = found.reduce((a, b) => (Math.abs(b.point.x - place) < Math.abs(a.point.x - place) ? b : a));
  mark(chart, "line", { x1: `${first.point.x / 10}%`, x2: `${first.point.x / 10}%`, y1: 0, y2: "100%", class: "guide" });
  const heading = tip.appendChild(document.createElement("b"));
  heading.textContent = `${chart.dataset.xLabel} ${number(first.x >= 100 ? Math.round(first.x) : first.x)}`;
  for (const { line, y, point, colour } of found) {
    mark(chart, "circle", { cx: `${point.x / 10}%`, cy: `${point.y / 10}%`, r: 4, class: `dot ${colour}` });
    const row = tip.appendChild(document.createElement("span"));
    row.appendChild(document.createElement("i")).className = colour;
    row.append(`${line.dataset.name} ${number(y)}`);
  }
  tip.style.display = "block";
  const left = Math.min(event.clientX + 16, document.documentElement.clientWidth - tip.offsetWidth - 8);
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${Math.max(8, event.clientY - tip.offsetHeight - 12)}px`;
}

for (const kind of ["pointermove", "pointerdown"]) {
  addEventListener(kind, (event) => {
    const chart = event.target.closest?.("svg.chart");
    if (chart) show(chart, event);
    else if (marked) unmark();
  });
}
addEventListener("scroll", unmark, { passive: true });

addEventListener("click", async (event) => {
  const button = event.target.closest?.("button.copy");
  if (!button) return;
  const code = button.parentElement.querySelector("code");
  getSelection().selectAllChildren(code);
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Selected"; // the browser forbids the clipboard: the keyboard can copy what is selected
  }
  setTimeout(() => (button.textContent = "Copy"), 1500);
});
