// The data, the state of the page, and its charts.
'use strict';

const data = JSON.parse(document.getElementById('data').textContent);
const runs = data.runs;
const byId = (id) => document.getElementById(id);
const several = runs.length > 1;

// --- State, kept in the address so that a reload keeps it ---

// `units` are [least value, size, name] of the units of an axis.
const ONE = [[0, 1, '']];
const AXES = {
  step: {
    name: 'steps', units: ONE, title: () => 'step', value: (run, step) => step, text: (x) => `step ${commas(x)}`,
  },
  tokens: {
    name: 'tokens', units: ONE, title: () => 'tokens',
    value: (run, step) => clockAt(run, 'tokens', step), text: (x) => `${scaled(x, DECIMAL)} tokens`,
  },
  flops: {
    name: 'FLOPs', units: ONE, title: () => 'FLOP',
    value: (run, step) => clockAt(run, 'tokens', step) * (run.flops_per_token ?? NaN), text: (x) => scaled(x, DECIMAL, 'FLOP'),
  },
  time: {
    name: 'time', units: TIMES, title: (unit) => `${unit} of training, without evaluations`,
    value: (run, step) => clockAt(run, 'seconds', step), text: duration,
  },
};
const SMOOTHING = [0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2];  // shares of the longest run

const hasAxis = (axis) => runs.some((run) => AXES[axis].value(run, run.step) > 0);
const state = { axis: 'step', log: false, smooth: 0, hidden: new Set(), open: new Set(), zoom: null };

function readState() {
  const given = new URLSearchParams(location.hash.slice(1));
  const numbers = (key) => (given.get(key) ?? '').split(',').filter((text) => text !== '').map(Number);
  if (Object.hasOwn(AXES, given.get('x')) && hasAxis(given.get('x'))) state.axis = given.get('x');
  state.log = given.get('y') === 'log';
  const smooth = Number(given.get('smooth'));
  if (Number.isInteger(smooth) && smooth in SMOOTHING) state.smooth = smooth;
  state.hidden = new Set(numbers('hide').filter((index) => index in runs));
  state.open = new Set(numbers('open'));
  const zoom = numbers('zoom');
  if (zoom.length === 2 && zoom[0] < zoom[1]) state.zoom = zoom;
}

function keepState() {
  const kept = new URLSearchParams({ x: state.axis, y: state.log ? 'log' : 'linear', smooth: state.smooth });
  if (state.hidden.size) kept.set('hide', [...state.hidden]);
  if (state.open.size) kept.set('open', [...state.open]);
  if (state.zoom) kept.set('zoom', state.zoom);
  location.replace(`#${kept}`);
}

// --- Curves over the chosen axis ---

// Tokens or seconds of a run at a step, between the logged steps and past the last one by the last rate.
function clockAt(run, column, step) {
  const { step: steps, [column]: values } = run.curves.clock;
  if (steps.length < 2) return step === 0 ? 0 : NaN;
  const right = Math.min(Math.max(lowerBound(steps, step), 1), steps.length - 1);
  const share = (step - steps[right - 1]) / (steps[right] - steps[right - 1] || 1);
  return values[right - 1] + share * (values[right] - values[right - 1]);
}

const cache = new Map();
function cached(key, make) {
  if (!cache.has(key)) cache.set(key, make());
  return cache.get(key);
}
const xsOf = (run, key, steps) =>
  cached(`${run.index} ${key} ${state.axis}`, () => steps.map((step) => AXES[state.axis].value(run, step)));

const longest = Math.max(1, ...runs.map((run) => run.step));
function smoothLine(run, key, curve) {
  const steps = curve.mean_x ?? curve.x;
  const ys = cached(`${run.index} ${key} smooth ${state.smooth}`,
    () => smoothed(steps, curve.mean_y ?? curve.y, longest * SMOOTHING[state.smooth]));
  return { run, kind: 'smooth', xs: xsOf(run, `${key} smooth`, steps), ys };
}

const shownRuns = () => runs.filter((run) => !state.hidden.has(run.index) && AXES[state.axis].value(run, 1) >= 0);

// The lines of a chart, later ones on top: faint ones of all runs come first.
function linesOf(chart) {
  const layers = [];
  chart.curves.forEach(([key, kind, label], layer) => {
    for (const run of shownRuns()) {
      const curve = run.curves[key];
      if (!curve) continue;
      const smooths = kind === 'raw' && state.smooth > 0;
      const behind = smooths || (chart.id === 'loss' && kind === 'raw' && run.curves.val_loss);
      layers.push([2 * layer, {
        run, label, kind: behind ? 'raw behind' : kind, xs: xsOf(run, key, curve.x), ys: curve.y, steps: curve.x,
      }]);
      if (smooths) layers.push([2 * layer + 1, smoothLine(run, key, curve)]);
    }
  });
  return layers.sort(([a], [b]) => a - b).map(([, line]) => line);
}

// A line for every entropy floor, named after its run where the runs do not share it.
function floorsOf(chart) {
  if (chart.id !== 'loss') return [];
  const floors = new Map();
  for (const run of shownRuns()) {
    const value = run.finals.entropy_floor;
    if (value !== null) floors.set(value, [...(floors.get(value) ?? []), run]);
  }
  return [...floors].map(([value, of]) => ({
    value, run: of[0],
    text: `entropy floor ${value.toFixed(4)}${several && of.length === 1 ? ` of ${of[0].name}` : ''}`,
  }));
}

// A curve is [name in the data, kind, label]. `size` or `units` scale the y axis; `zero`: it begins there; `logs`: it follows the
// choice of a scale; `marks`: gaps are values that are not finite.
const CHARTS = [
  {
    id: 'loss', title: 'Loss', unit: 'nats per token', wide: true, logs: true, marks: true, text: (y) => fixed(y, 4),
    curves: [['loss', 'raw', 'train'], ['train_loss', 'evaluated', 'train, evaluated'], ['val_loss', 'main', 'validation']],
  },
  {
    id: 'accuracy', title: 'Validation accuracy', unit: '%', size: 0.01, text: (y) => percent(y, 2),
    curves: [['val_accuracy', 'main', '']],
  },
  {
    id: 'consensus', title: 'Consensus distance', unit: 'of the mean model\'s norm', logs: true, zero: true, text: significant,
    curves: [['consensus_distance', 'main', '']],
  },
  {
    id: 'norm', title: 'Gradient norm', unit: 'before clipping', logs: true, zero: true, marks: true, text: significant,
    curves: [['grad_norm', 'raw', '']],
  },
  { id: 'rate', title: 'Learning rate', zero: true, text: significant, curves: [['lr', 'exact', '']] },
  {
    id: 'speed', title: 'Speed', unit: 'tokens/s', zero: true, text: (y) => `${scaled(y, DECIMAL)} tokens/s`,
    curves: [['tokens_per_s', 'raw', '']],
  },
  {
    id: 'peak', title: 'Share of the machine\'s peak', unit: '%', size: 0.01, zero: true, text: percent,
    curves: [['peak_share', 'raw', '']],
  },
  {
    id: 'memory', title: 'Memory of a rank', units: BINARY, zero: true, text: bytes,
    curves: [['memory_per_rank', 'exact', '']],
  },
].filter((chart) => runs.some((run) => chart.curves.some(([key]) => run.curves[key])));

const KINDS = { raw: [1, '', 0.6], evaluated: [1.4, '5 3', 1], main: [2.2, '', 1] };
function swatch(kind) {
  const [width, dashes, opacity] = KINDS[kind];
  const path = { d: 'M0 4h24', 'stroke-width': width, 'stroke-dasharray': dashes || null, opacity };
  return element('svg', {}, element('path', path));
}

function addChart(chart) {
  chart.caption = element('span', { class: 'unit' }, chart.unit ?? '');
  const key = element('span', { class: 'key' });
  const present = chart.curves.filter(([name, , label]) => label && runs.some((run) => run.curves[name]));
  for (const [, kind, label] of present) key.append(element('span', {}, swatch(kind), label));
  chart.svg = element('svg', { id: chart.id, class: 'chart', role: 'img', 'aria-label': chart.title });
  byId('charts').append(element('figure', { class: chart.wide ? 'wide' : null },
    element('figcaption', {}, element('span', {}, element('b', {}, chart.title), ' ', chart.caption), key),
    chart.svg));
  followPointer(chart);
}

// The whole range of x, of the runs that are shown.
function wholeRange() {
  return [0, Math.max(0, ...shownRuns().map((run) => AXES[state.axis].value(run, run.step))) || 1];
}

function draw(chart) {
  const range = state.zoom ?? wholeRange();
  const [, xUnit, xName] = AXES[state.axis].units.find(([from]) => range[1] >= from);
  const lines = linesOf(chart);
  let unit = chart.size ?? 1;
  if (chart.units) {
    let name;
    [unit, name] = unitOf(chart.units, Math.max(1, ...lines.flatMap((line) => line.ys.filter((y) => y !== null))));
    chart.caption.textContent = name;
  }
  chart.lines = lines;
  const phone = window.innerWidth <= 640;
  chart.view = drawChart(chart.svg, {
    lines, floors: floorsOf(chart), xRange: range, xAxis: { title: AXES[state.axis].title(xName), unit: xUnit },
    log: state.log && Boolean(chart.logs), zero: Boolean(chart.zero), marks: Boolean(chart.marks), unit,
    height: chart.wide ? (phone ? 300 : 400) : 210,
  });
  chart.overlay = chart.svg.appendChild(element('g'));
}

function drawAll() {
  hideTip();
  byId('whole').hidden = !state.zoom;
  byId('smoothed').value = state.smooth ? `${100 * SMOOTHING[state.smooth]} %` : 'off';
  CHARTS.forEach(draw);
}

function change(changes) {
  Object.assign(state, changes);
  keepState();
  drawAll();
}
