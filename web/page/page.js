// page.js — the page: what is dropped, typed and drawn goes to the Worker; what comes back is shown.

const $ = (id) => document.getElementById(id);
const worker = new Worker('worker.js', { type: 'module' });
const waiting = new Map();
let calls = 0;

worker.onmessage = ({ data: { id, event, result, error } }) => {
  const call = waiting.get(id);
  if (event) return call.onEvent(event);
  waiting.delete(id);
  return error === undefined ? call.done(result) : call.fail(new Error(error));
};
worker.onerror = (event) => {
  $('engine').textContent = `The Worker failed: ${event.message}`;
};

/** Has the Worker do a task of its list. */
function ask(name, argument, onEvent = () => {}) {
  return new Promise((done, fail) => {
    waiting.set(++calls, { done, fail, onEvent });
    worker.postMessage({ id: calls, name, argument });
  });
}

/** Runs an action; its error is shown at `place`. */
async function attempt(place, action) {
  $(place).textContent = '';
  try {
    return await action();
  } catch (error) {
    $(place).textContent = error.message;
    return undefined;
  }
}

/** A zone that takes a file, dropped or chosen. */
function takesFile(zone, input, take) {
  const element = $(zone);
  element.addEventListener('dragover', (event) => { event.preventDefault(); element.classList.add('over'); });
  element.addEventListener('dragleave', () => element.classList.remove('over'));
  element.addEventListener('drop', (event) => {
    event.preventDefault();
    element.classList.remove('over');
    if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
  });
  $(input).addEventListener('change', () => { if ($(input).files[0]) take($(input).files[0]); $(input).value = ''; });
}

for (const tab of document.querySelectorAll('nav button')) {
  tab.addEventListener('click', () => {
    for (const other of document.querySelectorAll('nav button')) {
      other.setAttribute('aria-selected', String(other === tab));
      $(other.dataset.part).hidden = other !== tab;
    }
  });
}

// ---- chat -----------------------------------------------------------------------------------------------------------

let messages = [], talking = false, ready = false;

function chatControls() {
  $('message').disabled = $('send').disabled = !ready || talking;
  $('stop').disabled = !talking;
  $('again').disabled = !ready || talking;
}

function say(role, text) {
  const line = document.createElement('div');
  line.className = role;
  line.textContent = text;
  $('talk').append(line);
  return line;
}

function newChat() {
  messages = [];
  $('talk').replaceChildren();
  $('speed').textContent = '';
}

const megabytes = (bytes) => `${(bytes / 1e6).toFixed(0)} MB`;

async function openWith(name, task, argument) {
  ready = false;
  chatControls();
  $('model-state').textContent = `Reading ${name} …`;
  const facts = await attempt('chat-error', () => ask(task, argument, ({ kept }) => {
    $('model-state').textContent = `Keeping ${name} for the next visit: ${(100 * kept).toFixed(0)} %`;
  }));
  if (!facts) {
    $('model-state').textContent = 'No model is open.';
    return;
  }
  const stored = facts.kept === false ? ` It could not be kept for the next visit: ${facts.why}.` : '';
  $('model-state').textContent = `${facts.file}: ${(facts.parameters / 1e6).toFixed(0)} million parameters in ${facts.quantization}, `
    + `${megabytes(facts.weightsBytes)}.${stored}`;
  newChat();
  ready = true;
  chatControls();
  $('message').focus();
}

takesFile('model-drop', 'model-file', (file) => openWith(file.name, 'openModel', file));

async function send() {
  const text = $('message').value.trim();
  if (!text || !ready || talking) return;
  talking = true;
  chatControls();
  $('message').value = '';
  const system = $('system').value.trim();
  const all = [...(system ? [{ role: 'system', content: system }] : []), ...messages, { role: 'user', content: text }];
  const question = say('user', text), line = say('assistant', '');
  const temperature = Number($('temperature').value);
  const request = { messages: all, maxTokens: Number($('most').value), ...(temperature > 0 ? { temperature } : { greedy: true }) };
  request.seed = crypto.getRandomValues(new Uint32Array(1))[0];
  const result = await attempt('chat-error', () => ask('chat', request, (event) => { line.textContent += event.text; }));
  if (result) {
    messages.push({ role: 'user', content: text }, { role: 'assistant', content: result.text });
    const prompt = result.promptTokensComputed, tokens = result.ids.length;
    $('speed').textContent = `${prompt} tokens read at ${(prompt / result.promptSeconds).toFixed(1)} per second, `
      + `${tokens} written at ${(tokens / result.tokenSeconds).toFixed(1)} per second (${result.stopped})`;
  } else {
    question.remove();
    line.remove();
    $('message').value = text;
  }
  talking = false;
  chatControls();
}

$('ask').addEventListener('submit', (event) => { event.preventDefault(); send(); });
$('message').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
$('stop').addEventListener('click', () => ask('stop'));
$('again').addEventListener('click', newChat);
$('forget').addEventListener('click', () => attempt('chat-error', async () => {
  await ask('forget');
  $('model-state').textContent += ' The stored copy was deleted.';
}));

// ---- classify -------------------------------------------------------------------------------------------------------

let network = null, picture = null, labels = [];

// Scale and shift of pixels from 0 to 255, by channel.
const scalings = {
  imagenet: (v, c) => (v / 255 - [0.485, 0.456, 0.406][c]) / [0.229, 0.224, 0.225][c],
  unit: (v) => v / 255,
  signed: (v) => v / 127.5 - 1,
  bytes: (v) => v,
};

/** The middle of the picture, scaled to the network's size, as a number for each pixel and channel. */
function pixels({ height, width }) {
  const context = new OffscreenCanvas(width, height).getContext('2d');
  const scale = Math.max(width / picture.width, height / picture.height);
  const shownWidth = picture.width * scale, shownHeight = picture.height * scale;
  context.imageSmoothingQuality = 'high';
  context.drawImage(picture, (width - shownWidth) / 2, (height - shownHeight) / 2, shownWidth, shownHeight);
  const { data } = context.getImageData(0, 0, width, height), number = scalings[$('scaling').value];
  const values = new Float32Array(3 * width * height);
  for (let i = 0; i < width * height; i++) for (let c = 0; c < 3; c++) values[3 * i + c] = number(data[4 * i + c], c);
  return values;
}

async function classify() {
  if (!network || !picture) return;
  const result = await attempt('classify-error', () => ask('classify', { values: pixels(network), top: 5 }));
  $('classes').replaceChildren();
  if (!result) return;
  for (const { index, chance } of result.best) {
    const item = document.createElement('li');
    item.textContent = `${labels[index] ?? `class ${index}`}: ${(100 * chance).toFixed(1)} %`;
    $('classes').append(item);
  }
  $('classify-speed').textContent = `computed in ${(1000 * result.seconds).toFixed(0)} ms`;
}

async function openNetwork(name, file) {
  network = null;
  $('network-state').textContent = `Reading ${name} …`;
  const opened = await attempt('classify-error', () => ask('openNetwork', file));
  $('network-state').textContent = opened ? `${opened.name}: pictures of ${opened.width} by ${opened.height} pixels` : 'No model is open.';
  if (!opened) return;
  network = opened;
  await classify();
}

takesFile('network-drop', 'network-file', (file) => openNetwork(file.name, file));

takesFile('picture-drop', 'picture-file', (file) => attempt('classify-error', async () => {
  picture = await createImageBitmap(file).catch(() => { throw new Error(`'${file.name}' is not a picture that this browser reads`); });
  const canvas = $('picture'), scale = canvas.width / Math.max(picture.width, picture.height);
  canvas.getContext('2d').clearRect(0, 0, canvas.width, canvas.height);
  canvas.getContext('2d').drawImage(picture, 0, 0, picture.width * scale, picture.height * scale);
  await classify();
}));

$('scaling').addEventListener('change', classify);
$('labels-file').addEventListener('change', async () => {
  const [file] = $('labels-file').files;
  labels = file ? (await file.text()).split('\n').map((line) => line.trim()).filter((line) => line) : [];
  classify();
});

// ---- train ----------------------------------------------------------------------------------------------------------

let points = [], total = 1;

/** Loss (left scale, 0 to the first value) and accuracy (right scale, 0 to 100 %) over the steps. */
function drawCurve() {
  const canvas = $('curve'), context = canvas.getContext('2d'), { width, height } = canvas, edge = 36;
  const most = Math.max(1, ...points.map((p) => p.loss)), color = getComputedStyle(document.body).color;
  const x = (step) => edge + (width - 2 * edge) * step / total, y = (part) => height - edge / 2 - (height - edge) * part;
  context.clearRect(0, 0, width, height);
  context.font = '12px system-ui';
  context.strokeStyle = '#8886';
  context.fillStyle = color;
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    context.beginPath();
    context.moveTo(edge, y(part));
    context.lineTo(width - edge, y(part));
    context.stroke();
    context.fillText((most * part).toFixed(1), 4, y(part) + 4);
    context.fillText(`${100 * part} %`, width - edge + 3, y(part) + 4);
  }
  for (const [name, value, stroke] of [['loss', (p) => p.loss / most, '#d97706'], ['accuracy', (p) => p.accuracy, '#2563eb']]) {
    context.strokeStyle = context.fillStyle = stroke;
    context.lineWidth = 2;
    context.beginPath();
    points.forEach((p) => context.lineTo(x(p.step), y(value(p))));
    context.stroke();
    context.lineWidth = 1;
    context.fillText(name, name === 'loss' ? edge + 4 : width - edge - 60, 12);
  }
}

$('start').addEventListener('click', async () => {
  points = [];
  total = Math.max(1, Number($('steps').value));
  $('start').disabled = true;
  $('halt').disabled = false;
  const argument = { network: $('network').value, steps: total, seed: 1 };
  const result = await attempt('train-error', () => ask('train', argument, (point) => {
    points.push(point);
    drawCurve();
    $('progress').textContent = `step ${point.step}: loss ${point.loss.toFixed(3)}, test accuracy ${(100 * point.accuracy).toFixed(1)} %, `
      + `${(point.step / point.seconds).toFixed(0)} steps per second`;
  }));
  if (result) $('progress').textContent += '. Done.';
  $('start').disabled = false;
  $('halt').disabled = true;
});
$('halt').addEventListener('click', () => ask('stop'));

const sheet = $('digit'), pen = sheet.getContext('2d', { willReadFrequently: true });

/** The drawing as 8 by 8 pixels from 0 to 1, each the mean of its square. */
function drawnPixels() {
  const { data } = pen.getImageData(0, 0, sheet.width, sheet.height), side = sheet.width / 8, values = new Array(64).fill(0);
  for (let row = 0; row < sheet.height; row++) {
    for (let column = 0; column < sheet.width; column++)
      values[Math.floor(row / side) * 8 + Math.floor(column / side)] += data[4 * (row * sheet.width + column)] / 255 / side ** 2;
  }
  return values;
}

async function guess() {
  const chances = await attempt('train-error', () => ask('guess', drawnPixels()));
  $('guess').replaceChildren();
  if (!chances) return;
  const best = chances.map((chance, digit) => ({ digit, chance })).sort((a, b) => b.chance - a.chance).slice(0, 3);
  for (const { digit, chance } of best) {
    const item = document.createElement('li');
    item.textContent = `${digit}: ${(100 * chance).toFixed(0)} %`;
    $('guess').append(item);
  }
}

pen.lineWidth = 22;
pen.lineCap = pen.lineJoin = 'round';
pen.strokeStyle = '#fff';
sheet.addEventListener('pointerdown', (event) => {
  sheet.setPointerCapture(event.pointerId);
  pen.beginPath();
  pen.moveTo(event.offsetX, event.offsetY);
});
sheet.addEventListener('pointermove', (event) => {
  if (!event.buttons) return;
  pen.lineTo(event.offsetX, event.offsetY);
  pen.stroke();
});
sheet.addEventListener('pointerup', guess);
$('clear').addEventListener('click', () => {
  pen.clearRect(0, 0, sheet.width, sheet.height);
  $('guess').replaceChildren();
});

// ---- what computes --------------------------------------------------------------------------------------------------

/** Says whether WebGPU can be chosen, and else why not. */
function offerDevices({ devices, whyNoWebGpu }) {
  const option = $('device').querySelector('[value=webgpu]');
  option.disabled = !devices.includes('webgpu');
  if (option.disabled) option.textContent += `: ${whyNoWebGpu}`;
}

$('device').addEventListener('change', () => attempt('chat-error', async () => {
  const open = await ask('use', $('device').value);
  if (open.model) await openWith(open.model, 'openModelAgain');
  if (open.network) await openNetwork(open.network);
}));

// ---- beginning ------------------------------------------------------------------------------------------------------

const engine = await attempt('chat-error', () => ask('begin'));
if (engine) {
  $('engine').textContent = `Version ${engine.version}, ${engine.relaxed ? 'relaxed SIMD' : 'SIMD128'}.`;
  offerDevices(engine);
  // Keeps the page's own files, so that it opens without a network.
  const module = engine.relaxed ? 'trunnion-relaxed.wasm.gz' : 'trunnion.wasm.gz';
  navigator.serviceWorker?.register(`offline.js?module=trunnion/${module}`).catch((error) => console.warn(error));
  if (engine.stored) await openWith(engine.stored.name, 'openStored');
} else {
  $('engine').textContent = 'The module could not be loaded.';
}
drawCurve();
