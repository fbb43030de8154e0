"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // moments as people say them; the exact one is the title
  const units = [["day", 864e5], ["hour", 36e5], ["min", 6e4], ["s", 1e3]];
  const ago = () => {
    for (const one of all("time.ago")) {
      const past = Date.now() - new Date(one.dateTime);
      const [unit, long] = units.find(([, long]) => past >= 1.5 * long) ?? units[3];
      const count = Math.round(past / long);
      if (past >= 0 && past < 60 * 864e5) one.textContent = `${count} ${unit}${count > 1 && /day|hour/.test(unit) ? "s" : ""} ago`;
    }
  };
  ago();
  setInterval(ago, 3e4);

  // places of the files beside this page, wherever it lies, and commands to copy: once they are seen
  const quoted = (text) => (/^[\w@%+=:,./~-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
  const placed = (text) => {
    const found = new URL(text, location.href);
    if (found.protocol !== "file:") return quoted(`${found.href}/index.html`);
    return quoted(decodeURIComponent(found.pathname).replace(/^\/(?=[A-Z]:)/i, ""));
  };
  const complete = (part) => {
    for (const box of all(".command:not(:has(button))", part)) {
      if (box.closest("details:not([open])")) continue;
      const place = box.querySelector("var");
      if (place) place.textContent = placed(place.textContent);
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = "Copy";
      button.setAttribute("aria-label", `Copy ${box.firstElementChild.dataset.what}`);
      box.append(button);
    }
  };
  complete(document);
  document.addEventListener("toggle", (event) => event.target.open && complete(event.target), true);
  const copied = async (text) => {
    try {
      await navigator.clipboard.writeText(text.textContent);
      return true;
    } catch {
      // plain http has no clipboard of its own
      getSelection().selectAllChildren(text);
      return document.execCommand("copy");
    }
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest(".command>button");
    if (!button) return;
    const text = button.previousElementSibling;
    const done = await copied(text);
    button.textContent = done ? "Copied" : "Selected";
    document.getElementById("said").textContent = done ? `Copied ${text.dataset.what}` : "Selected: copy it with Ctrl+C";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });

  // sorting: a button in each head, the state for who cannot see it
  const compare = new Intl.Collator("en", { numeric: true }).compare;
  const value = (row, at) => row.cells[at].dataset.v ?? row.cells[at].textContent.trim();
  const sort = (head) => {
    const table = head.closest("table");
    const down = head.getAttribute("aria-sort") === "ascending";
    const sign = down ? -1 : 1;
    for (const other of all("[aria-sort]", table)) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const at = head.cellIndex;
    const number = head.dataset.sort === "number";
    const rows = [...table.tBodies[0].rows].map((row) => [value(row, at), row]);
    rows.sort(([a], [b]) => {
      // what is not known comes last, whichever way
      if (a === "" || b === "") return (a === "") - (b === "");
      return sign * (number ? a - b : compare(a, b));
    });
    table.tBodies[0].append(...rows.map(([, row]) => row));
  };
  for (const head of all("th[data-sort]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(head));
    head.append(button);
    head.setAttribute("aria-sort", "none");
  }

  // filters: every row says what it is about; what it does not say does not hide it
  const status = document.getElementById("status");
  const form = document.getElementById("filter");
  const rows = all("[data-kind]").map((row) => ({ row, text: null, data: row.dataset }));
  const chosen = () => Object.fromEntries(new FormData(form));
  const apply = () => {
    const want = chosen();
    const words = want.text.toLowerCase().split(/\s+/).filter(Boolean);
    const seen = {};
    for (const one of rows) {
      const { row, data } = one;
      if (words.length) one.text ??= `${data.text ?? ""} ${row.textContent}`.toLowerCase();
      const fits =
        ["family", "ref", "python", "state"].every((name) => !want[name] || (data[name] ?? want[name]) === want[name]) &&
        words.every((word) => one.text.includes(word));
      if (data.kind === "square") row.classList.toggle("out", !fits);
      else {
        row.hidden = !fits;
        const count = (seen[data.kind] ??= [0, 0]);
        count[0] += fits;
        count[1] += 1;
      }
    }
    for (const row of all(".matrix tbody tr")) {
      row.hidden = !row.querySelector("td[data-kind]:not(.out)");
    }
    status.textContent = Object.entries(seen)
      .filter(([kind]) => ["cells", "wheels", "builds", "test runs"].includes(kind))
      .map(([kind, [shown, total]]) => `${shown} of ${total} ${kind}`)
      .join(", ");
  };
  let waiting = 0;
  const soon = () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(apply);
  };
  if (form) {
    form.hidden = false;
    form.addEventListener("input", soon);
    form.addEventListener("reset", () => setTimeout(apply));
    form.addEventListener("submit", (event) => event.preventDefault());
    if (Object.values(chosen()).some(Boolean)) apply();
  }

  // a link to a folded part opens it
  const open = () => {
    const target = document.getElementById(location.hash.slice(1))?.closest("details");
    if (target) {
      target.open = true;
      target.querySelector("summary").focus();
    }
  };
  addEventListener("hashchange", open);
  document.addEventListener("click", (event) => {
    // the same address again is no change
    if (location.hash && event.target.closest("a")?.hash === location.hash) open();
  });
  open();
})();
