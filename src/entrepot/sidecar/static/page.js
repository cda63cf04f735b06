// Keeps what the page shows up to date: whatever is marked data-live is fetched anew when the server
// says that there is news, and put in place unless the reader is at work in it.
(() => {
  "use strict";
  const live = document.getElementById("live");
  const LEAST_MS = 1000;
  let wanted = false, busy = false, at = 0;

  const say = (text) => { if (live.textContent !== text) live.textContent = text; };

  async function refresh() {
    busy = true;
    wanted = false;
    at = Date.now();
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (!answer.ok) throw new Error(String(answer.status));
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const old of document.querySelectorAll("[data-live]")) {
        const now = fresh.getElementById(old.id);
        const reads = old.contains(document.activeElement) || !getSelection().isCollapsed;
        if (now && !reads && now.innerHTML !== old.innerHTML) old.innerHTML = now.innerHTML;
      }
      say("live");
    } catch {
      say("the sidecar does not answer");
    }
    busy = false;
    if (wanted) later();
  }

  function later() {
    wanted = true;
    if (!busy && !document.hidden) {
      busy = true;
      setTimeout(refresh, Math.max(0, at + LEAST_MS - Date.now()));
    }
  }

  const news = new EventSource("/api/v1/events");
  news.addEventListener("stats", later);
  news.addEventListener("studies", later);
  news.onerror = () => say("the sidecar does not answer; trying again");
  document.addEventListener("visibilitychange", () => { if (!document.hidden) later(); });
})();
