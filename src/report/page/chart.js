// Axes, and one chart as SVG.
'use strict';

// Multiples of 1, 2 or 5 times a power of ten inside [low, high], about `wanted` of them.
function ticks(low, high, wanted) {
  const rough = (high - low) / Math.max(wanted, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const times = rough / power;
  const step = (times <= 1.5 ? 1 : times <= 3.5 ? 2 : times <= 7.5 ? 5 : 10) * power;
  const values = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) values.push(i * step);
  return { values, step };
}

function logTicks(low, high, wanted) {
  const decades = Math.log10(high / low);
  if (decades < 1) return ticks(low, high, wanted).values;
  const every = Math.max(1, Math.round(decades / wanted));
  const values = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); ++power) {
    if (power % every !== 0) continue;
    for (const times of decades < wanted / 2 ? [1, 2, 5] : [1]) values.push(times * 10 ** power);
  }
  return values.filter((value) => value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9));
}

function tickText(value, step, largest) {
  if (value === 0) return '0';
  if (largest < 0.01 || Math.abs(value) < 1e-4) {
    const exponent = Math.floor(Math.log10(Math.abs(value)) + 1e-9);
    return `${Math.round((value / 10 ** exponent) * 1000) / 1000}e${exponent}`;
  }
  if (largest >= 1e21) return value.toExponential(1);
  const [size, prefix] = largest >= 1e4 ? unitOf(DECIMAL, largest) : [1, ''];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9));
  return (value / size).toFixed(Math.min(digits, 6)) + prefix;
}
const logTickText = (value, low, high) =>
  tickText(value, high / low < 10 ? ticks(low, high, 4).step : value, Math.max(value, 0.01));

function mapping(low, high, from, to, log) {
  const f = log ? Math.log10 : (value) => value;
  const begin = f(low), slope = (to - from) / (f(high) - begin || 1);
  const map = (value) => from + (f(value) - begin) * slope;
  map.back = (pixel) => {
    const value = begin + (pixel - from) / slope;
    return log ? 10 ** value : value;
  };
  return map;
}

// The highest value that a linear axis shows: the largest, unless it lies far beyond nearly all the others, as the last losses
// of a run that diverges do.
function topOf(values) {
  const sorted = Float64Array.from(values).sort();
  const last = sorted.length - 1, most = sorted[Math.floor(0.95 * last)], width = most - sorted[0];
  if (width === 0 || sorted[last] <= most + 30 * width) return sorted[last];
  return sorted.findLast((value) => value <= most + 2 * width);
}

// The range of an axis around values, with some room; from zero where the chart says so.
function rangeOf(low, high, zero, log) {
  if (low > high) return log ? [0.1, 1] : [0, 1];
  if (zero && !log) return [Math.min(0, low), high > 0 ? high * 1.06 : 1];
  if (low === high) return log ? [low / 1.3, high * 1.3] : [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
  if (log) return [low / (high / low) ** 0.05, high * (high / low) ** 0.05];
  const room = (high - low) * 0.05;
  return [low >= 0 ? Math.max(0, low - room) : low - room, high + room];
}

// --- Curves ---

// A weighted mean around each point, over `width` of x: symmetric, so that it does not lag behind the curve.
function smoothed(xs, ys, width) {
  const out = new Array(ys.length).fill(null);
  let begin = 0;
  for (let i = 0; i < xs.length; ++i) {
    if (ys[i] === null) continue;
    while (xs[begin] < xs[i] - width / 2) ++begin;
    let sum = 0, weights = 0;
    for (let j = begin; j < xs.length && xs[j] <= xs[i] + width / 2; ++j) {
      if (ys[j] === null) continue;
      const weight = 1 - (2 * Math.abs(xs[j] - xs[i])) / width + 1e-9;
      sum += weight * ys[j];
      weights += weight;
    }
    out[i] = sum / weights;
  }
  return out;
}

// The first index whose x is not below `value`.
function lowerBound(xs, value) {
  let low = 0, high = xs.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The index of the point nearest to an x, or -1. Points that are null are left out unless `gaps` count as well.
function nearestIndex(xs, ys, x, gaps) {
  const at = lowerBound(xs, x);
  let right = at, left = at - 1;
  if (gaps) {
    const nearest = left < 0 || xs[right] - x < x - xs[left] ? right : left;
    if (ys[nearest] === null) return nearest;
  }
  while (right < xs.length && ys[right] === null) ++right;
  while (left >= 0 && ys[left] === null) --left;
  if (left < 0) return right < xs.length ? right : -1;
  return right < xs.length && xs[right] - x < x - xs[left] ? right : left;
}

// Draws `lines` into an SVG element of this many pixels. A line has run, kind (its class), xs and ys (null is a gap).
// `marks`: gaps are values that are not finite, and values far beyond the others leave the chart. Returns the mappings and the
// frame, for the pointer.
function drawChart(svg, { lines, floors, xRange, xAxis, log, zero, marks, height, unit }) {
  const width = Math.max(svg.clientWidth, 160);  // a page in the background may have no layout yet
  const inside = (x) => x >= xRange[0] && x <= xRange[1];
  const drawable = (y) => y !== null && (!log || y > 0);
  const values = lines.flatMap((line) => line.ys.filter((y, i) => inside(line.xs[i]) && drawable(y)));
  values.push(...floors.map((floor) => floor.value).filter(drawable));
  const lowest = values.reduce((a, b) => Math.min(a, b), Infinity);
  const highest = marks && !log && values.length > 0 ? topOf(values) : values.reduce((a, b) => Math.max(a, b), -Infinity);
  const [low, high] = rangeOf(lowest, highest, zero, log);

  const wanted = Math.max(2, Math.round(height / 55));
  const linear = ticks(low / unit, high / unit, wanted);
  const yTicks = (log ? logTicks(low / unit, high / unit, wanted) : linear.values).map((value) => ({
    value: value * unit,
    text: log ? logTickText(value, low / unit, high / unit) : tickText(value, linear.step, high / unit),
  }));
  const left = 12 + 6.6 * Math.max(3, ...yTicks.map((tick) => tick.text.length));
  const frame = { left, right: width - 10, top: 10, bottom: height - 34 };
  const atX = mapping(...xRange, frame.left, frame.right, false);
  const atY = mapping(low, high, frame.bottom, frame.top, log);

  svg.replaceChildren();
  svg.setAttribute('height', height);
  const put = (parent, name, attributes, ...children) => parent.appendChild(element(name, attributes, ...children));
  for (const tick of yTicks) {
    const y = atY(tick.value).toFixed(1);
    put(svg, 'line', { class: 'grid', x1: frame.left, x2: frame.right, y1: y, y2: y });
    put(svg, 'text', { x: frame.left - 7, y: +y + 4, 'text-anchor': 'end' }, tick.text);
  }
  put(svg, 'line', { class: 'axis', x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom });
  const xTicks = ticks(xRange[0] / xAxis.unit, xRange[1] / xAxis.unit, Math.max(2, (frame.right - frame.left) / 95));
  for (const value of xTicks.values) {
    const x = atX(value * xAxis.unit);
    const text = tickText(value, xTicks.step, xRange[1] / xAxis.unit);
    put(svg, 'line', { class: 'axis', x1: x, x2: x, y1: frame.bottom, y2: frame.bottom + 4 });
    put(svg, 'text', { x: Math.min(x, width - 3.4 * text.length), y: frame.bottom + 16, 'text-anchor': 'middle' }, text);
  }
  put(svg, 'text', { x: (frame.left + frame.right) / 2, y: height - 3, 'text-anchor': 'middle' }, xAxis.title);

  const clip = `clip-${svg.id}`;
  put(put(svg, 'clipPath', { id: clip }), 'rect',
    { x: frame.left - 4, y: frame.top - 6, width: frame.right - frame.left + 8, height: frame.bottom - frame.top + 8 });
  const area = put(svg, 'g', { 'clip-path': `url(#${clip})` });
  const inRun = (run) => put(area, 'g', { class: 'run', style: `--run:${run.colour}` });
  floors.forEach((floor, i) => {
    const y = atY(floor.value), group = inRun(floor.run);
    put(group, 'line', { class: 'floor', x1: frame.left, x2: frame.right, y1: y, y2: y });
    put(group, 'text', { class: 'label', x: frame.left + 6 + 190 * (i % 3), y: y - 5 }, floor.text);
  });
  for (const line of lines) drawLine(put, inRun(line.run), line, { atX, atY, log, marks, frame });
  return { atX, atY, frame };
}

function drawLine(put, group, line, { atX, atY, log, marks, frame }) {
  const { xs, ys } = line;
  const drawn = (i) => i >= 0 && i < ys.length && ys[i] !== null && (!log || ys[i] > 0);
  const dots = [], lost = [];
  let path = '';
  for (let i = 0; i < xs.length; ++i) {
    if (drawn(i)) {
      const y = Math.max(atY(ys[i]), -1e4);  // far outside, where browsers still compute exactly
      path += `${drawn(i - 1) ? 'L' : 'M'}${atX(xs[i]).toFixed(1)} ${y.toFixed(1)}`;
      if (!drawn(i - 1) && !drawn(i + 1)) dots.push(i);  // a point alone has no line
    } else if (marks && line.kind !== 'smooth' && ys[i] === null && (i === 0 || ys[i - 1] !== null)) {
      lost.push(i);
    }
  }
  const dashes = line.kind === 'evaluated' ? null : line.run.dashes || null;
  put(group, 'path', { class: `line ${line.kind}`, d: path, 'stroke-dasharray': dashes });
  const marked = line.kind === 'main' && xs.length <= 60;
  for (const i of marked ? xs.keys() : dots) {
    if (drawn(i)) put(group, 'circle', { class: 'dot', cx: atX(xs[i]), cy: atY(ys[i]), r: 2.8 });
  }
  for (const i of lost.slice(0, 100)) {
    const x = atX(xs[i]), y = frame.top;
    put(group, 'path', { class: 'lost', d: `M${x - 3.5} ${y - 3.5}l7 7m0 -7l-7 7` });
  }
}
