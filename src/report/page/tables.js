// The tables: figures, keys, plans and configs of the runs.
'use strict';

// `best` chooses the value that is set in bold; `lost` says whether a missing value is one that is not finite.
const COLUMNS = [
  {
    title: 'step', value: (run) => run.step,
    text: (step, run) => [commas(step), run.steps ? element('span', { class: 'at' }, ` of ${commas(run.steps)}`) : null],
  },
  { title: 'tokens', value: (run) => run.finals.tokens || null, text: (tokens) => scaled(tokens, DECIMAL) },
  {
    title: 'train loss', value: (run) => run.finals.train_loss, lost: (run) => run.finals.tokens > 0,
    text: (loss) => fixed(loss, 4),
  },
  {
    title: 'val loss', best: Math.min, lost: (run) => run.finals.last, value: (run) => run.finals.last?.val_loss,
    text: (loss) => fixed(loss, 4),
  },
  {
    title: 'best val loss', best: Math.min, value: (run) => run.finals.best?.val_loss,
    text: (loss, run) => [fixed(loss, 4), element('span', { class: 'at' }, ` at ${commas(run.finals.best.step)}`)],
  },
  {
    title: 'best perplexity', value: (run) => (run.finals.best ? Math.exp(run.finals.best.val_loss) : null), text: significant,
  },
  {
    title: 'val accuracy', best: Math.max, value: (run) => run.finals.last?.val_accuracy, text: (share) => percent(share, 2),
  },
  { title: 'word perplexity', value: (run) => run.finals.last?.perplexity?.word, text: significant },
  { title: 'byte perplexity', value: (run) => run.finals.last?.perplexity?.byte, text: significant },
  { title: 'test loss', best: Math.min, value: (run) => run.finals.test?.loss, text: (loss) => fixed(loss, 4) },
  {
    title: 'test accuracy', best: Math.max, value: (run) => run.finals.test?.accuracy, text: (share) => percent(share, 2),
  },
  { title: 'test word perplexity', value: (run) => run.finals.test?.perplexity?.word, text: significant },
  { title: 'test byte perplexity', value: (run) => run.finals.test?.perplexity?.byte, text: significant },
  { title: 'consensus', value: (run) => run.finals.last?.consensus_distance, text: significant },
  { title: 'tokens/s', best: Math.max, value: (run) => run.finals.tokens_per_s, text: (speed) => scaled(speed, DECIMAL) },
  { title: 'of peak', value: (run) => run.finals.peak_share, text: (share) => percent(share) },
  { title: 'memory/rank', value: (run) => run.finals.memory_per_rank, text: bytes },
  {
    title: 'FLOP', value: (run) => run.finals.tokens * run.flops_per_token || null, text: (flops) => scaled(flops, DECIMAL),
  },
  { title: 'time', value: (run) => run.finals.seconds || null, text: duration },
];

function runCell(run) {
  const shown = state.hidden.has(run.index) ? null : '';
  const box = element('input', { type: 'checkbox', checked: shown, 'aria-label': `show ${run.name}` });
  box.addEventListener('change', () => {
    state.hidden.delete(run.index);
    if (!box.checked) state.hidden.add(run.index);
    box.closest('tr').classList.toggle('off', !box.checked);
    change({});
  });
  const line = element('svg', { class: 'swatch' }, element('path', { d: 'M0 4h22', 'stroke-dasharray': run.dashes || null }));
  const label = element('label', { title: run.folder }, several ? box : null, line, element('span', {}, run.name));
  return element('th', { scope: 'row' }, label);
}

const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

function addFinals() {
  const columns = COLUMNS.filter((column) => runs.some((run) => known(column.value(run))));
  const table = byId('finals');
  table.append(element('thead', {}, element('tr', {}, element('th', {}, 'run'), element('th', {}, 'state'),
    ...columns.map((column) => element('th', { class: 'number' }, column.title)))));
  const rows = runs.map((run) => element('tr', { class: state.hidden.has(run.index) ? 'run off' : 'run' },
    runCell(run), element('td', {}, element('span', { class: `state ${run.state}` }, run.state)),
    ...columns.map((column) => {
      const value = column.value(run);
      if (!known(value)) return element('td', { class: 'number at' }, column.lost?.(run) ? 'not finite' : '–');
      const values = runs.map(column.value).filter(known);
      const best = column.best && new Set(values).size > 1 && value === column.best(...values);
      return element('td', { class: best ? 'number best' : 'number' }, ...[column.text(value, run)].flat());
    })));
  rows.forEach((row, i) => row.style.setProperty('--run', runs[i].colour));
  table.append(element('tbody', {}, ...rows));
  for (const run of runs) {
    for (const note of run.notes) byId('notes').append(element('li', {}, several ? `${run.name}: ${note}` : note));
  }
}

// A table of texts: a key and a value for each run. A key with a meaning is one of the config.
function addTable(section, heads, rows) {
  section.hidden = rows.length === 0;
  const table = section.querySelector('table');
  const head = (text) => element('th', { class: 'wrap', title: text }, text);
  if (heads) table.append(element('thead', {}, element('tr', {}, element('th'), ...heads.map(head))));
  const row = ({ key, meaning, values }) => {
    const text = (value) => (meaning ? element('code', {}, value) : value);
    return element('tr', {}, element('th', { scope: 'row', title: meaning }, text(key)),
      ...values.map((value) => element('td', { class: 'wrap' }, value === null ? '–' : text(value))));
  };
  table.append(element('tbody', {}, ...rows.map(row)));
}

function addConfigs() {
  const section = byId('configs');
  section.hidden = !runs.some((run) => run.config);
  for (const run of runs.filter(({ config }) => config)) {
    const details = element('details', { open: state.open.has(run.index) ? '' : null },
      element('summary', {}, run.name), element('pre', {}, run.config));
    details.addEventListener('toggle', () => {
      if (details.open === state.open.has(run.index)) return;
      state.open.delete(run.index);
      if (details.open) state.open.add(run.index);
      keepState();
    });
    section.append(details);
  }
}

// A schedule's picture has styles of its own, which a shadow root keeps to it. It is SVG by the program, made of numbers.
function addSchedules() {
  for (const { run, svg } of data.plans.schedules) {
    const picture = element('div', { class: 'picture' });
    picture.attachShadow({ mode: 'open' }).innerHTML = svg;
    const caption = several ? element('figcaption', {}, element('b', {}, runs[run].name)) : null;
    byId('schedules').append(element('figure', {}, caption, picture));
  }
}

// The predicted step of a run that planned itself. As an image, a file can do nothing to the page.
function addTimelines() {
  for (const run of runs.filter(({ timeline }) => timeline)) {
    const image = element('img', { class: 'picture', alt: `The predicted step of ${run.name}`,
      src: `data:image/svg+xml,${encodeURIComponent(run.timeline)}` });
    const caption = several ? element('figcaption', {}, element('b', {}, run.name)) : null;
    byId('timelines').append(element('figure', {}, caption, image));
  }
}

// What the models wrote, the newest first: a row for each step, a column for each run.
function addSamples() {
  const writers = runs.filter(({ samples }) => samples.length);
  const section = byId('samples');
  section.hidden = writers.length === 0;
  const steps = [...new Set(writers.flatMap(({ samples }) => samples.map(({ step }) => step)))].sort((a, b) => b - a);
  const texts = (run, step) => run.samples.find((sample) => sample.step === step)?.texts ?? [];
  const row = (step) => element('tr', {}, element('th', { scope: 'row', class: 'number' }, commas(step)),
    ...writers.map((run) => element('td', {}, ...texts(run, step).map((text) => element('pre', {}, text)))));
  const table = section.querySelector('table');
  table.append(element('thead', {}, element('tr', {}, element('th', {}, 'step'),
    ...writers.map(({ name }) => element('th', {}, name)))));
  table.append(element('tbody', {}, ...steps.map(row)));
}

function addTexts() {
  const title = several ? `${runs.length} runs` : runs[0].name;
  document.title = several ? runs.map((run) => run.name).join(', ') : title;
  byId('title').textContent = title;
  const time = new Date(1000 * data.written).toLocaleString();
  byId('written').textContent = data.refresh ? `${time}; the page reloads itself until the run ends` : time;
  byId('differences').querySelector('h2').textContent =
    several ? 'Keys that differ' : 'Keys that are not at their defaults';
  byId('footer').textContent = `Written by shoal ${data.version}. Drag over a chart to zoom, double-click to see the whole run. ` +
    'FLOPs are 6 N + 12 L C T per token.';
}
