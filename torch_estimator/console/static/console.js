// Charts that are on the screen, log lines as they are written, and parts of the page that are loaded anew.
// Everything else is HTML, and works without this.
"use strict";

(() => {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

  async function get(url) {
    const answer = await fetch(url);
    // The cookie with the token is gone.
    if (answer.status === 401 || answer.redirected) location.reload();
    if (!answer.ok) throw new Error(answer.status);
    return answer;
  }

  // Parts of the page that are loaded anew: those with data-refresh, the seconds between two looks. A part with data-seen
  // is loaded sooner if `follow` has seen something else than the part shows.

  async function refresh(id) {
    const part = document.getElementById(id);
    const here = part.dataset.here ?? location.href;
    const text = await (await get(here)).text();
    const old = document.getElementById(id);
    const page = new DOMParser().parseFromString(text, "text/html");
    const found = page.getElementById(id);
    if (!found || !old || here !== (old.dataset.here ?? location.href)) return;
    found.dataset.here = here;
    const beside = old.dataset.with;
    if (beside) replace(document.getElementById(beside), page.getElementById(beside));
    replace(old, found);
    timelineIsNew();
  }

  // Put a part that was loaded in the place of the old one. What a person types, chooses or has opened meanwhile stays.
  function replace(old, found) {
    if (old.innerHTML === found.innerHTML) {
      Object.assign(old.dataset, found.dataset);
      return;
    }
    const ticked = new Set([...old.querySelectorAll("input:checked")].map((one) => one.value));
    for (const one of found.querySelectorAll("input[type=checkbox]")) one.checked = ticked.has(one.value);
    const opened = [...old.querySelectorAll("details")].map((one) => one.open);
    [...found.querySelectorAll("details")].forEach((one, place) => { one.open = opened[place] ?? one.open; });
    const focused = old.contains(document.activeElement) ? document.activeElement : null;
    const key = (one) => one.getAttribute("href") ?? one.value;
    old.replaceWith(found);
    if (focused) [...found.querySelectorAll(focused.tagName)].find((one) => key(one) === key(focused))?.focus({ preventScroll: true });
  }

  const HOVER_LOOKS = 5;
  let isPressed = false;
  let seen;
  addEventListener("pointerdown", () => { isPressed = true; });
  for (const kind of ["pointerup", "pointercancel", "blur"]) addEventListener(kind, () => { isPressed = false; });

  async function keepFresh(id) {
    for (let looks = 0, age = 0; ;) {
      await sleep(1000);
      age++;
      const part = document.getElementById(id);
      if (!part) return;
      const isNew = seen !== undefined && "seen" in part.dataset && part.dataset.seen !== seen;
      if (document.hidden || (age < Number(part.dataset.refresh) && !isNew)) continue;
      // What a person points at is left in place for a while, and what is being clicked until it is.
      if (isPressed || (document.querySelector(`#${id} .track:hover`) && looks++ % HOVER_LOOKS !== 0)) continue;
      age = 0;
      try {
        await refresh(id);
        document.getElementById(id)?.classList.remove("stale");
      } catch {
        // The server is restarting, perhaps. Go on asking.
        document.getElementById(id)?.classList.add("stale");
      }
    }
  }

  // A search is answered while it is written.
  for (const form of document.querySelectorAll("form[data-live]")) {
    let waiting;
    form.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => {
        const address = `${form.getAttribute("action")}?${new URLSearchParams(new FormData(form))}`;
        history.replaceState(null, "", address);
        const list = document.getElementById(form.dataset.live);
        list.dataset.here = address;
        refresh(list.id).catch(() => {});
      }, 150);
    });
  }

  // Charts.

  const curves = document.getElementById("curves");
  const charts = new Map();
  const HEIGHT = 170;
  let marks = [];
  let axis = null;
  // The part of the axis that all charts show; null for all of it.
  let range = null;

  const series = (place) => css(`--series-${place % 12}`);

  const short = (value, digits = 4) => {
    if (value == null) return "–";
    const size = Math.abs(value);
    return size !== 0 && (size >= 1e5 || size < 1e-3) ? value.toExponential(digits - 2) : String(Number(value.toPrecision(digits)));
  };

  // The labels of ticks, with as many digits as it takes for them to differ.
  const labels = (plot, ticks) => {
    let digits = 4;
    while (digits < 15 && new Set(ticks.map((tick) => short(tick, digits))).size < ticks.length) digits++;
    return ticks.map((tick) => short(tick, digits));
  };

  const labelSize = (plot, texts) => Math.max(58, 16 + 7 * Math.max(...(texts ?? []).map((text) => text.length)));

  const clock = (plot, ticks) => {
    const isLong = ticks.at(-1) - ticks[0] > 86400;
    const form = isLong ? { month: "short", day: "numeric" } : { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
    if (ticks.length > 1 && ticks[1] - ticks[0] < 60) form.second = "2-digit";
    return ticks.map((tick) => new Date(tick * 1000).toLocaleString("en", form));
  };

  function paint(chart, data) {
    const width = chart.plot.clientWidth;
    const isTime = curves.dataset.by !== "step";
    const ids = JSON.parse(curves.dataset.ids ?? "null");
    const several = ids !== null;
    const shown = data.series.filter((one) => one.x.length);
    const table = shown.length ? uPlot.join(shown.map((one) => [one.x, one.y])) : [[], []];
    const names = new Set(shown.map((one) => one.label));
    const lines = shown.map((one, place) => ({
      label: several ? `${one.id.slice(one.id.indexOf(":") + 1)}${names.size > 1 ? ` ${one.label}` : ""}` : one.label,
      stroke: series(several ? ids.indexOf(one.id) : place),
      dash: several && one.label !== "training" && names.size > 1 ? [5, 3] : undefined,
      width: 1.5,
      spanGaps: true,
      points: { show: one.x.length < 40, size: 5, fill: series(several ? ids.indexOf(one.id) : place) },
      value: (plot, value) => (value == null ? "" : short(value)),
    }));
    const line = { stroke: css("--line"), width: 1 };
    const ink = { stroke: css("--muted"), grid: line, ticks: { show: false } };
    const options = {
      width,
      height: HEIGHT,
      cursor: { y: false, points: { size: 6 }, drag: { x: true, y: false, setScale: false }, sync: { key: "console" } },
      scales: { x: { time: isTime, range: range ?? (isTime && axis ? [axis.low, axis.high] : undefined) } },
      axes: [{ ...ink, size: 28, space: 80, ...(isTime ? { values: clock } : {}) }, { ...ink, size: labelSize, values: labels }],
      series: [{ value: (plot, x) => (x == null ? "" : isTime ? new Date(x * 1000).toLocaleTimeString() : `step ${x}`) }, ...lines],
      hooks: {
        setSelect: [(plot) => zoom(plot)],
        setCursor: [(plot) => isTime && point(plot.cursor.left >= 0 ? plot.posToVal(plot.cursor.left, "x") : null)],
        drawAxes: [(plot) => isTime && drawMarks(plot)],
      },
    };
    chart.drawn?.destroy();
    chart.drawn = new uPlot(options, table, chart.plot);
    chart.drawn.over.addEventListener("dblclick", () => show(null));
    chart.data = data;
  }

  // Restarts, which the lanes have, as lines behind the curves.
  function drawMarks(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = css("--bad");
    ctx.globalAlpha = 0.35;
    for (const time of marks) {
      const x = plot.valToPos(time, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  // A part of the axis that is chosen in a chart is asked for anew, with all its points.
  function zoom(plot) {
    if (plot.select.width < 4) return;
    const [low, high] = [plot.select.left, plot.select.left + plot.select.width].map((one) => plot.posToVal(one, "x"));
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    show([low, high]);
  }

  // Show a part of the axis in all charts, and in the lanes if it is one of time; all of it without a part.
  function show(part) {
    range = part;
    newCurves();
    const now = document.getElementById("now");
    if (!now || curves.dataset.by === "step") return;
    const address = new URL(now.dataset.here, location.href);
    for (const [place, name] of ["from", "to"].entries()) {
      if (range) address.searchParams.set(name, range[place]);
      else address.searchParams.delete(name);
    }
    now.dataset.here = address.pathname + address.search;
    refresh("now").catch(() => {});
  }

  async function load(chart) {
    if (chart.isLoading) { chart.isOld = true; return; }
    chart.isLoading = true;
    chart.isOld = false;
    const names = JSON.parse(chart.figure.dataset.names);
    const query = names.map((name) => `&name=${encodeURIComponent(name)}`).join("");
    const bounds = range ?? (curves.dataset.by !== "step" && axis?.isPart ? [axis.low, axis.high] : null);
    const part = bounds ? `&from=${bounds[0]}&to=${bounds[1]}` : "";
    try {
      const url = `${curves.dataset.points}${query}${part}&points=${Math.max(100, chart.plot.clientWidth)}`;
      const data = await (await get(url)).json();
      paint(chart, data);
      if (data.is_behind) chart.isOld = true;
      chart.figure.dataset.drawn = data.version;
    } catch {
      chart.isOld = true;
    }
    chart.isLoading = false;
    if (chart.isOld && chart.isSeen) setTimeout(() => load(chart), 1000);
  }

  const observer = new IntersectionObserver((seen) => {
    for (const one of seen) {
      const chart = charts.get(one.target);
      chart.isSeen = one.isIntersecting;
      if (chart.isSeen && chart.isOld) load(chart);
    }
  }, { rootMargin: "150px 0px" });

  function newCurves() {
    for (const chart of charts.values()) {
      chart.isOld = true;
      if (chart.isSeen) load(chart);
    }
  }

  function addChart(figure) {
    const chart = { figure, plot: figure.querySelector(".plot"), isOld: true, isSeen: false };
    charts.set(figure, chart);
    observer.observe(figure);
  }

  // The set of curves has changed: take the charts of a page that is loaded now, and keep those that are here already.
  async function newCharts() {
    const text = await (await get(location.href)).text();
    const found = new DOMParser().parseFromString(text, "text/html").getElementById("curves");
    const bottom = () => curves.getBoundingClientRect().bottom;
    const before = bottom();
    const known = new Map();
    for (const figure of charts.keys()) for (const name of JSON.parse(figure.dataset.names)) known.set(name, figure);
    const figures = [...found.querySelectorAll(".chart")].map((figure) => {
      const old = JSON.parse(figure.dataset.names).map((name) => known.get(name)).find(Boolean);
      if (!old) return figure;
      old.dataset.names = figure.dataset.names;
      old.querySelector("figcaption").replaceWith(figure.querySelector("figcaption"));
      return old;
    });
    for (const [figure, chart] of charts) {
      if (figures.includes(figure)) continue;
      chart.drawn?.destroy();
      observer.unobserve(figure);
      charts.delete(figure);
      figure.remove();
    }
    const list = curves.querySelector(".charts");
    for (const [place, figure] of figures.entries()) {
      if (list.children[place] !== figure) list.insertBefore(figure, list.children[place] ?? null);
      if (!charts.has(figure)) addChart(figure);
    }
    const notes = found.querySelectorAll(".note");
    curves.querySelectorAll(".note").forEach((note, place) => note.replaceWith(notes[place]));
    // Whoever reads what is below the charts goes on there.
    if (before < innerHeight / 2) scrollBy(0, bottom() - before);
    curves.dataset.set = found.dataset.set;
    newCurves();
  }

  // The line that follows the pointer, in the lanes and in the charts.

  const pointer = document.createElement("div");
  pointer.className = "pointer";
  pointer.hidden = true;

  function timelineIsNew() {
    const lanes = document.getElementById("lanes");
    if (!lanes) return;
    axis = { low: Number(lanes.dataset.low), high: Number(lanes.dataset.high), isPart: "part" in lanes.dataset };
    marks = [...lanes.querySelectorAll("[data-restart]")].map((one) => Number(one.dataset.restart));
    lanes.querySelector("[data-timeline]")?.append(pointer);
  }

  function point(time) {
    const track = document.querySelector("#lanes .axis .track");
    pointer.hidden = time === null || !track || time < axis.low || time > axis.high;
    if (pointer.hidden) return;
    const place = (time - axis.low) / (axis.high - axis.low);
    pointer.style.left = `${track.getBoundingClientRect().left - pointer.parentElement.getBoundingClientRect().left + place * track.clientWidth}px`;
  }

  document.addEventListener("pointermove", (event) => {
    const track = event.target.closest?.("#lanes .track");
    if (!track) return;
    const box = track.getBoundingClientRect();
    point(axis.low + ((event.clientX - box.left) / box.width) * (axis.high - axis.low));
  });

  // The log.

  const MOST_LINES = 2000;

  function append(log, lines) {
    const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    for (const [time, role, text, level] of lines) {
      const line = document.createElement("div");
      line.className = `line ${level}`;
      const parts = [["time", time], ["b", role], ["span", text]].map(([kind, content]) => {
        const part = document.createElement(kind);
        part.textContent = content;
        return part;
      });
      line.append(parts[0], " ", parts[1], " ", parts[2]);
      log.append(line);
    }
    while (log.childElementCount > MOST_LINES) log.firstElementChild.remove();
    if (isAtEnd) log.scrollTop = log.scrollHeight;
  }

  async function follow() {
    const log = document.querySelector(".log[data-follow]");
    let known = null;
    for (;;) {
      await sleep(500);
      if (document.hidden) continue;
      try {
        const cursor = log?.dataset.cursor ?? "";
        const news = await (await get(`${log?.dataset.follow ?? curves.dataset.follow}&cursor=${encodeURIComponent(cursor)}`)).json();
        if (log) {
          append(log, news.lines);
          log.dataset.cursor = news.cursor;
        }
        seen = news.seen;
        if (curves && curves.dataset.set !== news.set_of_charts) await newCharts();
        else if (known !== null && known !== news.curves) newCurves();
        known = news.curves;
        document.body.classList.remove("stale");
      } catch {
        document.body.classList.add("stale");
        await sleep(2000);
      }
    }
  }

  timelineIsNew();
  if (curves) {
    for (const figure of curves.querySelectorAll(".chart")) addChart(figure);
    let width = innerWidth;
    addEventListener("resize", () => {
      if (width === innerWidth) return;
      width = innerWidth;
      newCurves();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", newCurves);
  }
  for (const log of document.querySelectorAll(".log")) {
    const marked = log.querySelector(".marked");
    log.scrollTop = marked ? marked.offsetTop - log.offsetTop - 60 : log.scrollHeight;
  }
  for (const part of document.querySelectorAll("[data-refresh]")) keepFresh(part.id);
  if (document.querySelector("[data-follow]")) follow();
})();
