// The page of `headrace serve`: asks for a streamed completion and shows it, with the probabilities of each step.
const $ = (id) => document.getElementById(id);
const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens"];
const MOST_SHOWN = 8;
const token = decodeURIComponent(location.hash.slice(1));
const headers = { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) };
let running = null;

function say(text, isWrong = false) {
  $("status").textContent = text;
  $("status").classList.toggle("wrong", isWrong);
}

async function ask(path, options = {}) {
  const answer = await fetch(path, { headers, ...options });
  if (!answer.ok) {
    const body = await answer.json().catch(() => null);
    throw new Error(body?.error?.message ?? `${answer.status} ${answer.statusText}`);
  }
  return answer;
}

function showLikely(scores) {
  const rows = Object.entries(scores.likely).map(([text, value]) => {
    const row = document.createElement("li");
    const [name, bar, percent] = ["code", "meter", "span"].map((tag) => row.appendChild(document.createElement(tag)));
    const share = Math.exp(value);
    row.classList.toggle("drawn", text === scores.token);
    name.textContent = JSON.stringify(text).slice(1, -1).replaceAll(" ", "␣");
    bar.value = share;
    bar.setAttribute("aria-label", `probability of ${name.textContent}`);
    percent.textContent = `${(100 * share).toFixed(1)}%`;
    return row;
  });
  $("likely").replaceChildren(...rows);
}

function append(text, kind, scores) {
  const span = document.createElement("span");
  span.className = kind;
  span.textContent = text;
  if (scores) {
    showLikely(scores);
    span.addEventListener("pointerenter", () => {
      document.querySelector("pre .shown")?.classList.remove("shown");
      span.classList.add("shown");
      showLikely(scores);
    });
  }
  $("text").append(span);
}

async function* readEvents(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the connection ended before the text did");
    const parts = (held + value).split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

function readForm() {
  const wanted = Object.fromEntries(NUMBERS.map((id) => [id, Number($(id).value)]));
  const seed = $("seed").value;
  return { ...wanted, ...(seed && { seed: Number(seed) }), prompt: $("prompt").value, stream: true, logprobs: MOST_SHOWN };
}

async function generate() {
  const begun = performance.now();
  let count = 0;
  running = new AbortController();
  $("generate").disabled = $("further").disabled = true;
  $("stop").disabled = false;
  $("text").replaceChildren();
  append($("prompt").value, "given");
  say("Generating");
  try {
    const body = JSON.stringify(readForm());
    const answer = await ask("/v1/completions", { method: "POST", body, signal: running.signal });
    for await (const event of readEvents(answer)) {
      const { text, logprobs } = event.choices[0];
      count += logprobs.tokens.length;
      append(text, "token", { token: logprobs.tokens.at(-1), likely: logprobs.top_logprobs.at(-1) ?? {} });
    }
    say(`${count} tokens, ${(count / ((performance.now() - begun) / 1000)).toFixed(0)} per second`);
  } catch (problem) {
    if (problem.name === "AbortError") say(`Stopped after ${count} tokens`);
    else say(problem.message, true);
  }
  running = null;
  $("generate").disabled = $("further").disabled = false;
  $("stop").disabled = true;
}

for (const id of NUMBERS) {
  const show = () => { document.querySelector(`output[for=${id}]`).textContent = $(id).value === "0" && id === "top_k" ? "all" : $(id).value; };
  $(id).addEventListener("input", show);
  show();
}
$("form").addEventListener("submit", (event) => { event.preventDefault(); if (!running) generate(); });
$("stop").addEventListener("click", () => running?.abort());
$("further").addEventListener("click", () => { $("prompt").value = $("text").textContent; });
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit();
});
ask("/v1/models").then((answer) => answer.json()).then(({ data: [model] }) => {
  $("model").textContent = document.title = model.id;
  say(`It reads up to ${model.max_model_len} tokens at a time. Ctrl+Enter generates.`);
}).catch((problem) => say(problem.message, true));
