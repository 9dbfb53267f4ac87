// The pointer, the controls, and the start of the page.
'use strict';

// --- The pointer: values under it, and a dragged range to zoom into ---

let touched = 0;  // when the pointer last moved over a chart
function hideTip() {
  byId('tip').hidden = true;
  for (const chart of CHARTS) chart.overlay?.replaceChildren();
}

// The points of a chart's lines that are nearest to x. A run that ended long before x has none.
function pointsAt(chart, x) {
  const { atX, frame } = chart.view;
  return chart.lines.filter((line) => line.steps).flatMap((line) => {
    const i = nearestIndex(line.xs, line.ys, x, chart.marks);
    if (i < 0) return [];
    const beyond = x < line.xs[0] || x > line.xs[line.xs.length - 1];
    const px = atX(line.xs[i]);
    if ((beyond && Math.abs(px - atX(x)) > 24) || px < frame.left - 1 || px > frame.right + 1) return [];
    return [{ line, x: line.xs[i], y: line.ys[i], step: line.steps[i] }];
  }).sort((a, b) => a.line.run.index - b.line.run.index);
}

function showTip(chart, event) {
  const box = chart.svg.getBoundingClientRect();
  const { frame, atX } = chart.view;
  const x = atX.back(Math.min(Math.max(event.clientX - box.left, frame.left), frame.right));
  for (const other of CHARTS) {
    const px = other.view.atX(x);
    const { top, bottom } = other.view.frame;
    other.overlay.replaceChildren(element('line', { class: 'cross', x1: px, x2: px, y1: top, y2: bottom }));
  }
  const points = pointsAt(chart, x);
  for (const { line, x: at, y } of points) {
    const py = y === null ? NaN : chart.view.atY(y);
    if (!(py >= frame.top - 4 && py <= frame.bottom + 4)) continue;  // also where a logarithm is none
    chart.overlay.append(element('g', { class: 'run', style: `--run:${line.run.colour}` },
      element('circle', { class: 'near', cx: atX(at), cy: py, r: 3.2 })));
  }
  const most = window.innerWidth > 640 ? 14 : 9;
  const rows = points.slice(0, most).map(({ line, y, step }) => element('tr', { class: 'run', style: `--run:${line.run.colour}` },
    element('td', {}, element('i')),
    element('td', { class: 'name' }, line.run.name),
    element('td', { class: 'at' }, line.label),
    element('td', { class: 'number' }, element('b', {}, y === null ? 'not finite' : chart.text(y))),
    element('td', { class: 'at number' }, `step ${commas(step)}`)));
  const tip = byId('tip');
  tip.replaceChildren(element('div', { class: 'at' }, AXES[state.axis].text(x)), element('table', {}, ...rows));
  if (points.length > most) tip.append(element('div', { class: 'at' }, `and ${points.length - most} more`));
  tip.hidden = false;
  const right = event.clientX + 18, left = event.clientX - 18 - tip.offsetWidth;
  const beside = right + tip.offsetWidth < window.innerWidth ? right : left;
  tip.style.left = `${Math.max(8, Math.min(beside, window.innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${Math.max(8, Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8))}px`;
  touched = Date.now();
}

function followPointer(chart) {
  const { svg } = chart;
  let from = null;  // where a drag began, in pixels
  const pixel = (event) => {
    const { left, right } = chart.view.frame;
    return Math.min(Math.max(event.clientX - svg.getBoundingClientRect().left, left), right);
  };
  svg.addEventListener('pointerdown', (event) => {
    if (event.pointerType === 'mouse' && event.button === 0) {
      from = pixel(event);
      svg.setPointerCapture(event.pointerId);
    }
    showTip(chart, event);
  });
  svg.addEventListener('pointermove', (event) => {
    showTip(chart, event);
    const to = pixel(event);
    if (from === null || Math.abs(to - from) < 5) return;
    const { top, bottom } = chart.view.frame;
    const box = { x: Math.min(from, to), y: top, width: Math.abs(to - from), height: bottom - top };
    chart.overlay.append(element('rect', { class: 'selection', ...box }));
  });
  svg.addEventListener('pointerup', (event) => {
    const to = pixel(event);
    if (from !== null && Math.abs(to - from) >= 5) {
      const { back } = chart.view.atX;
      change({ zoom: [back(Math.min(from, to)), back(Math.max(from, to))] });
    }
    from = null;
  });
  svg.addEventListener('dblclick', () => change({ zoom: null }));
  svg.addEventListener('pointerleave', (event) => event.pointerType === 'mouse' && hideTip());
}

// --- Controls ---

function radio(parent, name, value, text, checked, chosen) {
  const input = element('input', { type: 'radio', name, value, checked: checked ? '' : null });
  input.addEventListener('change', chosen);
  parent.append(element('label', {}, input, element('span', {}, text)));
}

function addControls() {
  for (const axis of Object.keys(AXES).filter(hasAxis)) {
    radio(byId('axes'), 'axis', axis, AXES[axis].name, axis === state.axis, () => change({ axis, zoom: null }));
  }
  byId('axes').hidden = byId('axes').querySelectorAll('input').length < 2;
  radio(byId('scales'), 'scale', 'linear', 'linear', !state.log, () => change({ log: false }));
  radio(byId('scales'), 'scale', 'log', 'log', state.log, () => change({ log: true }));
  byId('smoothing').value = state.smooth;
  byId('smoothing').addEventListener('input', (event) => change({ smooth: Number(event.target.value) }));
  byId('whole').addEventListener('click', () => change({ zoom: null }));
  byId('controls').addEventListener('submit', (event) => event.preventDefault());
  document.addEventListener('pointerdown', (event) => event.target.closest('.chart') || hideTip());
  let width = byId('charts').clientWidth;
  new ResizeObserver(() => {
    if (byId('charts').clientWidth !== width) drawAll();
    width = byId('charts').clientWidth;
  }).observe(byId('charts'));
}

// --- A run that goes on ---

// Waits while somebody points at a value or cannot see the page.
function reloadLater() {
  if (!data.refresh) return;
  const due = Date.now() + 1000 * data.refresh;
  setInterval(() => {
    if (Date.now() >= due && Date.now() - touched > 3000 && !document.hidden) location.reload();
  }, 500);
}

runs.forEach((run, index) => { run.index = index; });
readState();
addTexts();
addFinals();
addControls();
CHARTS.forEach(addChart);
byId('charts').hidden = byId('controls').hidden = CHARTS.length === 0;
addTable(byId('differences'), data.differences.columns, data.differences.rows);
addTable(byId('plans'), several ? runs.map((run) => run.name) : null, data.plans.rows);
addSchedules();
addTimelines();
addSamples();
addConfigs();
drawAll();
reloadLater();
