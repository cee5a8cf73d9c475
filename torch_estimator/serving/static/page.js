// Draws the load, and has htmx load the models anew when they change. Everything else on the page is HTML.
"use strict";

(() => {
  const section = document.getElementById("load");
  if (!section) return;

  const SECONDS = 300;
  const LEAST_SECONDS = 60;
  const HEIGHT = 180;
  const names = ["answered", "failed", "p50", "p99"];
  const history = { second: [], answered: [], failed: [], p50: [], p99: [] };
  let plots = [];
  let modelsAre = null;

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const short = (value) => {
    if (value == null) return "–";
    if (value >= 1000) return Math.round(value).toLocaleString("en");
    return String(Number(value.toPrecision(3)));
  };

  const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });

  // All that is known, at least a minute, so that the first seconds are not a dot at the edge.
  function shownSeconds() {
    const now = Date.now() / 1000;
    const first = Math.min(history.second[0] ?? now, now - LEAST_SECONDS);
    return [Math.max(first, now - SECONDS), now];
  }

  function options(element, unit, yScale, series) {
    // On a logarithmic axis, uPlot would draw nine lines for each power of ten.
    const filter = (plot, ticks) => ticks.map((tick) => (Number.isInteger(Math.log10(tick)) ? tick : null));
    const grid = { stroke: color("--line"), width: 1 };
    const axis = { stroke: color("--muted"), grid, ticks: { show: false } };
    const yGrid = yScale.distr === 3 ? { ...grid, filter } : grid;
    return {
      width: element.clientWidth,
      height: HEIGHT,
      legend: { live: true },
      cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
      scales: {
        x: { range: shownSeconds },
        y: yScale,
      },
      axes: [
        { ...axis, values: (plot, ticks) => ticks.map(clock), space: 90, size: 30 },
        { ...axis, grid: yGrid, values: (plot, ticks) => ticks.map((tick) => (tick == null ? "" : short(tick))), size: 52 },
      ],
      series: [
        {},
        ...series.map(([label, stroke, fill]) => ({
          label,
          stroke,
          fill,
          width: 1.75,
          points: { show: false },
          // Without a cursor there is no value to name.
          value: (plot, value, series, place) => (place == null ? "" : `${short(value)} ${unit}`),
        })),
      ],
    };
  }

  const fromZero = { range: (plot, low, high) => [0, high > 0 ? high * 1.1 : 1] };

  // Logarithmic, since the slowest requests may take a hundred times as long as the median.
  const logarithmic = {
    distr: 3,
    range: (plot, low, high) => (low > 0 ? uPlot.rangeLog(low, high, 10, true) : [0.1, 100]),
  };

  function draw() {
    for (const { plot } of plots) plot.destroy();
    plots = [
      ["requests", "/s", fromZero, ["answered", "failed"], [
        ["answered", color("--accent"), color("--accent-weak")],
        ["failed", color("--bad"), undefined],
      ]],
      ["latency", "ms", logarithmic, ["p50", "p99"], [
        ["median", color("--accent"), undefined],
        ["99 % within", color("--second"), undefined],
      ]],
    ].map(([name, unit, yScale, shown, series]) => {
      const element = section.querySelector(`[data-plot="${name}"]`);
      const data = () => [history.second, ...shown.map((one) => history[one])];
      return { element, data, plot: new uPlot(options(element, unit, yScale, series), data(), element) };
    });
  }

  function append(load) {
    load.second.forEach((second, place) => {
      const last = history.second.at(-1);
      if (last !== undefined && second <= last) return;
      // A second without a number makes the line end, where nobody has looked for a while.
      if (last !== undefined && second > last + 2) {
        history.second.push(last + 1);
        for (const name of names) history[name].push(null);
      }
      history.second.push(second);
      for (const name of names) history[name].push(load[name][place]);
    });
    const first = Date.now() / 1000 - SECONDS - 5;
    while (history.second.length && history.second[0] < first) {
      for (const name in history) history[name].shift();
    }
  }

  function show(load) {
    for (const { plot, data } of plots) plot.setData(data());
    if (history.second.length) {
      for (const name of names) {
        section.querySelector(`[data-now="${name}"]`).firstChild.textContent = short(history[name].at(-1));
      }
    }
    for (const element of document.querySelectorAll("[data-rate-of]")) {
      const rate = load.models[element.dataset.rateOf];
      element.textContent = rate ? `${short(rate)}/s` : "";
    }
    if (modelsAre !== null && modelsAre !== load.models_are) {
      for (const id of ["models", "title", "versions", "choices"]) document.getElementById(id)?.dispatchEvent(new Event("changed"));
    }
    modelsAre = load.models_are;
  }

  async function poll() {
    const began = Date.now();
    if (!document.hidden) {
      try {
        const since = history.second.at(-1) ?? 0;
        const answer = await fetch(`${section.dataset.load}?since=${since}`);
        if (answer.status === 401) {
          location.reload();
          return;
        }
        if (answer.ok) {
          const load = await answer.json();
          append(load);
          show(load);
        }
        section.classList.toggle("stale", !answer.ok);
      } catch {
        // The server is restarting, perhaps. Go on asking.
        section.classList.add("stale");
      }
    }
    setTimeout(poll, Math.max(100, 1000 - (Date.now() - began)));
  }

  draw();
  new ResizeObserver(() => {
    for (const { plot, element } of plots) plot.setSize({ width: element.clientWidth, height: HEIGHT });
  }).observe(section);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  poll();
})();
