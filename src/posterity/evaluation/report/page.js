"use strict";
window.addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details.matters")) part.open = true;
});

// The slider of the selective answers. Its numbers are those of the record; the words are those of selective.py.
(() => {
  const form = document.querySelector("[data-selective]");
  if (!form) return;
  const record = JSON.parse(document.getElementById("evaluation").textContent);
  const method = document.getElementById("selective-method");
  const slider = document.getElementById("selective-threshold");
  const said = document.getElementById("selective-said");

  const fixed = (value, decimals) => {
    const [whole, rest] = Math.abs(value).toFixed(decimals).split(".");
    const text = whole.replace(/\B(?=(\d{3})+$)/g, "\u202f") + (rest ? "." + rest : "");
    return (value < 0 && /[1-9]/.test(text) ? "\u2212" : "") + text;
  };
  const grouped = (value) => fixed(value, 0);
  const hundred = (fraction) => {
    const value = 100 * fraction;
    const edge = Math.min(Math.abs(value), Math.abs(100 - value));
    const text = fixed(value, edge === 0 || edge >= 0.1 ? 1 : edge >= 0.01 ? 2 : 3);
    return text.includes(".") ? text.replace(/0+$/, "").replace(/\.$/, "") : text;
  };
  const percent = (fraction) => (fraction === null ? "–" : hundred(fraction) + "\u202f%");
  const percents = (low, high) => (low === null || high === null ? "–" : `${hundred(low)}–${hundred(high)}\u202f%`);
  const digits = (value) => {
    if (value === null) return "–";
    const size = Math.abs(value);
    if (size === 0 || (size < 1e9 && Number.isInteger(value))) return fixed(value, 0);
    if (size < 1e-3 || size >= 1e9) return value.toExponential(1).replace("-", "\u2212").replace("e\u2212", "e-").replace("e+", "e");
    return fixed(value, Math.max(0, 2 - Math.floor(Math.log10(size))));
  };
  const nearOne = (value) =>
    value === null || value <= 0 || value >= 1
      ? digits(value)
      : fixed(Math.min(value, 0.9999999), Math.min(7, Math.max(2, 1 - Math.floor(Math.log10(1 - Math.min(value, 0.9999999))))));

  const chosen = () => method.selectedOptions[0];
  const curve = () => record.rows[Number(chosen().dataset.row)].details.risk_coverage;

  const sentence = (table, index) => {
    const errors = table.errors[index];
    return (
      `answers ${grouped(table.answered[index])} of ${grouped(table.answered.at(-1))} rows ` +
      `(${percent(table.coverage[index])}), of which ${grouped(errors)} ${errors === 1 ? "is" : "are"} wrong: ` +
      `risk ${percent(table.risk[index])}, 95\u202f% interval ${percents(table.low[index], table.high[index])}; ` +
      `threshold: confidence ≥ ${nearOne(table.threshold[index])}`
    );
  };

  const place = (drawing) => {
    const [left, top, wide, high, most] = ["left", "top", "wide", "high", "most"].map((name) => Number(drawing.dataset[name]));
    return (coverage, risk) => [left + wide * coverage, top + high * (1 - risk / most)];
  };

  const show = () => {
    const table = curve();
    const index = Number(slider.value);
    said.textContent = sentence(table, index);
    slider.setAttribute("aria-valuetext", `${percent(table.coverage[index])} answered, risk ${percent(table.risk[index])}`);
    for (const drawing of document.querySelectorAll("svg.selective")) {
      const [x, floor] = place(drawing)(table.coverage[index], 0);
      const y = Math.max(Number(drawing.dataset.top), place(drawing)(0, table.risk[index])[1]);
      const here = drawing.querySelector(".here");
      here.setAttribute("cx", x);
      here.setAttribute("cy", y);
      drawing.querySelector(".drop").setAttribute("d", `M${x},${y}V${floor}`);
    }
  };

  const choose = () => {
    const table = curve();
    document.getElementById("selective-name").textContent = chosen().textContent;
    slider.max = table.risk.length - 1;
    slider.value = chosen().dataset.start;
    for (const drawing of document.querySelectorAll("svg.selective")) {
      for (const line of drawing.querySelectorAll(".curve")) line.classList.toggle("chosen", line.dataset.entry === method.value);
      const at = place(drawing);
      const points = (column) =>
        table.coverage.map((coverage, index) => (column[index] === null ? null : at(coverage, column[index]).map((part) => part.toFixed(1)))).filter(Boolean);
      const path = (found) => (found.length ? "M" + found.join("L") : "");
      const area = [...points(table.high), ...points(table.low).reverse()];
      const level = at(0, table.risk.at(-1));
      drawing.querySelector(".area").setAttribute("d", area.length ? path(area) + "Z" : "");
      drawing.querySelector(".area").style.setProperty("--own", drawing.querySelector(".chosen").style.getPropertyValue("--own"));
      drawing.querySelector(".random").setAttribute("d", `M${level}h${drawing.dataset.wide}`);
      drawing.querySelector(".oracle").setAttribute("d", table.oracle ? path(points(table.oracle)) : "");
    }
    show();
  };

  form.addEventListener("submit", (event) => event.preventDefault());
  method.addEventListener("change", choose);
  slider.addEventListener("input", show);
  for (const button of form.querySelectorAll("[data-risk]")) {
    button.addEventListener("click", () => {
      const within = curve().risk.reduce((last, risk, index) => (risk !== null && risk <= Number(button.dataset.risk) ? index : last), -1);
      if (within < 0) {
        said.textContent = `has no threshold that keeps the risk at ${percent(Number(button.dataset.risk))} or less`;
      } else {
        slider.value = within;
        show();
      }
    });
  }
  document.documentElement.classList.add("scripted-on");
  choose();
})();
