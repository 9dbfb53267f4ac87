// Elements of the page, and numbers as text.
'use strict';

const SVG = 'http://www.w3.org/2000/svg';

// An element with attributes and children; texts become text nodes, so nothing of a run's is ever markup.
function element(name, attributes = {}, ...children) {
  const svg = ['svg', 'path', 'line', 'circle', 'rect', 'g', 'text', 'tspan', 'clipPath'].includes(name);
  const node = svg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const commas = (value) => Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, ',');
const fixed = (value, digits) => (Math.abs(value) < 1e6 ? value.toFixed(digits) : value.toExponential(digits));
// Four significant digits: 0.3214, 12.35, 5.120e-7; all digits of thousands.
function significant(value) {
  const size = Math.abs(value);
  if (size >= 1e3 && size < 1e9) return commas(value);
  return value === 0 || (size >= 1e-3 && size < 1e3) ? value.toPrecision(4) : value.toExponential(3);
}

const DECIMAL = [[1e18, 'E'], [1e15, 'P'], [1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k'], [1, '']];
const BINARY = [[2 ** 40, 'TiB'], [2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB'], [1, 'B']];
const TIMES = [[2 * 86400, 86400, 'days'], [2 * 3600, 3600, 'hours'], [120, 60, 'minutes'], [0, 1, 'seconds']];
const unitOf = (units, value) => units.find(([size]) => Math.abs(value) >= size) ?? units[units.length - 1];

function scaled(value, units, unit = '') {
  const [size, prefix] = unitOf(units, value);
  const digits = size === 1 ? 0 : value / size < 100 ? 1 : 0;
  return `${(value / size).toFixed(digits)}${unit || units === BINARY ? ' ' : ''}${prefix}${unit}`;
}
const bytes = (value) => scaled(value, BINARY);
const percent = (value, digits = 1) => `${(100 * value).toFixed(digits)} %`;

function duration(seconds) {
  if (seconds < 60) return `${seconds < 10 ? significant(seconds) : Math.round(seconds)} s`;
  const parts = [[86400, 'd'], [3600, 'h'], [60, 'm'], [1, 's']];
  let left = Math.round(seconds);
  const words = parts.map(([size, name]) => {
    const count = Math.floor(left / size);
    left -= count * size;
    return [count, name];
  });
  const first = words.findIndex(([count]) => count > 0);
  return words.slice(first, first + 2).map(([count, name]) => `${count}${name}`).join(' ');
}
