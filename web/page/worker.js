// worker.js — everything that computes: the module lives here, so that the page stays responsive.
//
// The page sends {id, name, argument}; a function of `tasks` answers {id, result} or {id, error}, and may send
// {id, event} before that. `stop` ends the task that runs.
import { load } from './trunnion/trunnion.js';

const FOLDER = 'models'; // of the origin private file system
const PIECE = 16 << 20; // bytes that are copied at once
let trunnion, device = 'cpu', model, modelFile, network, networkFile, layout, training, stopper;

// ---- models that the browser keeps ----------------------------------------------------------------------------------

async function storedModels() {
  const root = await navigator.storage.getDirectory();
  return root.getDirectoryHandle(FOLDER, { create: true });
}

/** The file that was kept, or null. */
async function storedModel() {
  try {
    for await (const handle of (await storedModels()).values()) if (!handle.name.startsWith('.')) return await handle.getFile();
  } catch { /* no such file system here: nothing was kept */ }
  return null;
}

async function forgetModels() {
  const folder = await storedModels();
  for await (const name of folder.keys()) await folder.removeEntry(name);
}

/** Keeps a copy of the file under its name, in place of others: whole or not at all. */
async function keepModel(file, onPart) {
  const folder = await storedModels(), partial = `.${file.name}`;
  await forgetModels();
  const handle = await folder.getFileHandle(partial, { create: true });
  const access = await handle.createSyncAccessHandle();
  try {
    for (let at = 0; at < file.size; at += PIECE) {
      access.write(new Uint8Array(await file.slice(at, at + PIECE).arrayBuffer()), { at });
      onPart(Math.min(at + PIECE, file.size) / file.size);
    }
    access.flush();
  } finally {
    access.close();
  }
  await handle.move(file.name);
}

// ---- tasks ----------------------------------------------------------------------------------------------------------

async function openModel(file) {
  await model?.close();
  model = modelFile = null;
  model = await trunnion.openModel(file, { context: 2048, device });
  modelFile = file;
  return { file: file.name, ...model.facts };
}

/** How a network takes a picture: [1, channels, height, width], or with the channels last. Throws if it takes none. */
function layoutOf({ inputs }) {
  const [input] = inputs, shape = input?.shape ?? [], colors = (extent) => extent === 3 || extent === 1;
  if (inputs.length !== 1 || shape.length !== 4 || input.dtype !== 0 || !(colors(shape[1]) || colors(shape[3])))
    throw new Error(`the model has ${inputs.length} inputs, the first of type ${input?.type} and shape [${shape}]; `
      + 'a classifier of pictures has one of FLOAT and [1, channels, height, width] or [1, height, width, channels]');
  const last = !colors(shape[1]), [height, width] = last ? shape.slice(1) : shape.slice(2);
  return { last, channels: shape[last ? 3 : 1], height: height > 0 ? height : 224, width: width > 0 ? width : 224 };
}

/** The input of these pixels, each red, green and blue. */
function pictureInput({ last, channels, height, width }, values) {
  const size = height * width, data = new Float32Array(channels * size);
  for (let i = 0; i < size; i++) {
    const [r, g, b] = values.subarray(3 * i, 3 * i + 3), of = channels === 1 ? [0.299 * r + 0.587 * g + 0.114 * b] : [r, g, b];
    for (let c = 0; c < channels; c++) data[last ? i * channels + c : c * size + i] = of[c];
  }
  return { data, shape: last ? [1, height, width, channels] : [1, channels, height, width] };
}

/** Values as probabilities, if they are none yet. */
function probabilities(values) {
  const sum = values.reduce((a, b) => a + b, 0);
  if (values.every((v) => v >= 0) && Math.abs(sum - 1) < 1e-3) return Array.from(values);
  const most = values.reduce((a, b) => Math.max(a, b)), powers = Array.from(values, (v) => Math.exp(v - most));
  const total = powers.reduce((a, b) => a + b, 0);
  return powers.map((p) => p / total);
}

const tasks = {
  async begin() {
    trunnion = await load({ onLine: (line) => console.warn(line) });
    const file = await storedModel();
    const { version, relaxed, devices, whyNoWebGpu } = trunnion;
    return { version, relaxed, devices, whyNoWebGpu, stored: file ? { name: file.name, size: file.size } : null };
  },

  /** What computes from now on; says which models are open and must be opened anew. */
  use(name) {
    device = name;
    return { model: modelFile?.name, network: networkFile?.name };
  },

  openModelAgain: () => openModel(modelFile),

  async openStored() {
    const file = await storedModel();
    if (!file) throw new Error('the browser has removed the stored model; drop the file again');
    return openModel(file);
  },

  /** Opens a file; keeps it only once the library has accepted it. */
  async openModel(file, tell) {
    const facts = await openModel(file);
    try {
      await keepModel(file, (part) => tell({ kept: part }));
      return { ...facts, kept: true };
    } catch (error) {
      return { ...facts, kept: false, why: error.message };
    }
  },

  forget: forgetModels,

  async chat(request, tell) {
    stopper = new AbortController();
    return model.generate({ ...request, signal: stopper.signal }, (text) => tell({ text }));
  },

  async openNetwork(given) {
    const file = given ?? networkFile;
    await network?.close();
    network = networkFile = null;
    const opened = await trunnion.openOnnx(file, { device });
    try {
      layout = layoutOf(opened);
    } catch (error) {
      await opened.close();
      throw error;
    }
    network = opened;
    networkFile = file;
    return { name: file.name, height: layout.height, width: layout.width };
  },

  async classify({ values, top }) {
    const start = performance.now();
    const out = await network.run({ [network.inputs[0].name]: pictureInput(layout, values) });
    const seconds = (performance.now() - start) / 1000;
    const chances = probabilities(out[network.outputs[0].name].data);
    const best = chances.map((chance, index) => ({ index, chance })).sort((a, b) => b.chance - a.chance).slice(0, top);
    return { best, seconds };
  },

  async train({ network: name, steps, seed }, tell) {
    stopper = new AbortController();
    const { signal } = stopper;
    const table = await (await fetch('trunnion/digits.csv')).arrayBuffer();
    await training?.close();
    training = null;
    const run = await trunnion.trainDigits(table, { model: name, seed, device });
    training = run;
    const start = performance.now();
    let shown = 0;
    for (let step = 1; step <= steps && !signal.aborted; step++) {
      const loss = await run.step(), last = step === steps;
      if (performance.now() - shown < 100 && !last) continue;
      shown = performance.now();
      tell({ step, loss, accuracy: await run.accuracy(), seconds: (shown - start) / 1000 });
      await new Promise((done) => setTimeout(done, 0)); // messages are handled
    }
    return { steps: run.steps, accuracy: await run.accuracy() };
  },

  async guess(pixels) { return training ? Array.from(await training.predict(pixels)) : null; },

  stop() { stopper?.abort(); },
};

onmessage = async ({ data: { id, name, argument } }) => {
  try {
    const result = await tasks[name](argument, (event) => postMessage({ id, event }));
    postMessage({ id, result });
  } catch (error) {
    postMessage({ id, error: error.message });
  }
};
