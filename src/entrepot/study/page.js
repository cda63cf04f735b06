"use strict";
// Says which trial a mark is when it is pointed at. The page is complete without it.
const data = JSON.parse(document.getElementById("data").textContent);
const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
document.body.append(tip);
const NEAR = 24; // pixels

function show(event, trial) {
  tip.textContent = data.trials[trial] || "trial " + trial;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, innerWidth - box.width - 8);
  const below = event.clientY + 16;
  const top = below + box.height > innerHeight ? event.clientY - box.height - 12 : below;
  tip.style.left = Math.max(8, left) + "px";
  tip.style.top = Math.max(8, top) + "px";
}

// A curve's corners, and where it is at x: straight between them, or a wave.
function corners(path) {
  const found = [];
  for (const part of path.getAttribute("d").match(/[MLC][^MLCH]*/g) || []) {
    const numbers = part.slice(1).split(/[ h]/).map(Number);
    const at = part[0] === "C" ? 4 : 0;
    found.push([numbers[at], numbers[at + 1]]);
  }
  return found;
}

function height(points, x, waves) {
  for (let i = 1; i < points.length; i++) {
    const [x0, y0] = points[i - 1], [x1, y1] = points[i];
    if (x < x0 || x > x1 || x1 === x0) continue;
    const t = (x - x0) / (x1 - x0);
    return y0 + (y1 - y0) * (waves ? t * t * (3 - 2 * t) : t);
  }
  return null;
}

function points(area, plot) {
  const marks = data.marks[area.dataset.name] || [];
  const ring = plot.querySelector(".ring");
  return {
    find(x, y, wide, tall) {
      let best = null, least = NEAR * NEAR;
      for (const mark of marks) {
        const far = ((mark[0] - x) * wide) ** 2 + ((mark[1] - y) * tall) ** 2;
        if (far < least) { least = far; best = mark; }
      }
      if (best) ring.setAttribute("d", "M" + best[0] + " " + best[1] + "h0");
      return best && best[2];
    },
    clear() { ring.setAttribute("d", ""); },
  };
}

function lines(area, plot) {
  const waves = area.dataset.kind === "waves";
  const curves = [...plot.querySelectorAll(".curve")].map((path) => [path, corners(path)]);
  let on = null;
  const clear = () => { if (on) on.classList.remove("on"); on = null; };
  return {
    find(x, y, wide, tall) {
      clear();
      let least = NEAR;
      for (const [path, at] of curves) {
        const there = height(at, x, waves);
        const far = there === null ? Infinity : Math.abs(there - y) * tall;
        if (far < least) { least = far; on = path; }
      }
      if (on) on.classList.add("on");
      return on && on.dataset.t;
    },
    clear,
  };
}

for (const area of document.querySelectorAll(".area")) {
  const plot = area.querySelector(".plot");
  const finder = area.dataset.kind === "points" ? points(area, plot) : lines(area, plot);
  const frame = plot.querySelector(".grid, .post");
  const away = () => { finder.clear(); tip.hidden = true; };
  const look = (event) => {
    const box = area.getBoundingClientRect();
    const top = Number(plot.getAttribute("y")), tall = Number(plot.getAttribute("height"));
    const x = (event.clientX - box.left) / box.width * 1000;
    const y = (event.clientY - box.top - top) / tall * 1000;
    const trial = frame && finder.find(x, y, box.width / 1000, tall / 1000);
    if (trial === null || trial === undefined) away();
    else show(event, trial);
  };
  area.addEventListener("pointermove", look);
  area.addEventListener("pointerdown", look);
  area.addEventListener("pointerleave", away);
}
