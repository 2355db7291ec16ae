// Added by `headrace watch`: asks for the page again every few seconds, and shows what is new where the reader is.
const badge = document.body.appendChild(document.createElement("div"));
badge.className = "badge";
badge.textContent = "live";
let version = "";

async function refresh() {
  let pause = 2000;
  if (!document.hidden) {
    try {
      const answer = await fetch("/", { headers: version ? { "If-None-Match": version } : {} });
      if (answer.status === 200) {
        version = answer.headers.get("ETag");
        const next = new DOMParser().parseFromString(await answer.text(), "text/html");
        unmark();
        for (const part of ["header", "main", "footer"]) document.querySelector(part).replaceWith(next.querySelector(part));
        document.title = next.title;
      }
      badge.textContent = "live";
    } catch {
      badge.textContent = "headrace watch has ended";
      pause = 15000;
    }
    badge.classList.toggle("lost", badge.textContent !== "live");
  }
  setTimeout(refresh, pause);
}
setTimeout(refresh, 2000);
