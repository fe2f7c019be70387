"use strict";
// The slider: a step of the staircase at a time, from the largest tolerance to the smallest.
const { steps, levels, routes, drawn } = JSON.parse(document.getElementById("steps").textContent);
const slider = document.getElementById("epsilon");
const lines = [...document.querySelectorAll("[id^='frontier-epsilon']")];
const ring = document.getElementById("frontier-winner");
const points = [...(document.getElementById("frontier-points")?.querySelectorAll("use") ?? [])];

function show() {
  // Left is strict, as on the axis; the last of the steps is below every loss.
  const at = steps[steps.length - 1 - Number(slider.value)];
  for (const name of ["epsilon", "eligible", "speed", "loss", "top1", "route", "note"]) {
    const place = document.getElementById("at-" + name);
    if (place) place.textContent = at[name];
  }
  for (const line of lines) line.setAttribute("transform", `translate(${at.x - drawn.x} 0)`);
  if (ring) {
    const [x, y] = at.point ?? drawn.point ?? [0, 0];
    const [x0, y0] = drawn.point ?? [x, y];
    ring.setAttribute("transform", `translate(${x - x0} ${y - y0})`);
    ring.setAttribute("visibility", at.point ? "visible" : "hidden");
  }
  points.forEach((point, index) => point.classList.toggle("over", levels[index] > at.level));
  slider.setAttribute("aria-valuetext", `ε ${at.epsilon}: ${at.route}`);
}

routes.forEach((route, index) => {
  const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
  title.textContent = route;
  points[index]?.append(title);
});
slider.addEventListener("input", show);
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => (one.open = true)));
show();
